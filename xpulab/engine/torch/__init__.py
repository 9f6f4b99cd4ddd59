"""PyTorch on the ranks: the process group, the loop of a cell, and Horovod's words. Only these modules import torch."""
