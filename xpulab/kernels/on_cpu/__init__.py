"""Computations of the CPU between two launches, and trees: machine code that is compiled when xpulab is built."""
