"""PyTorch on the ranks: the process group, the loop of a cell, Horovod's functions. Only these modules import it."""
