"""The function `train_test_split` for rows that are on the engines."""

from xpulab.model_selection._split import train_test_split

__all__ = ["train_test_split"]
