"""The command lines with which MPI libraries start ranks, from pure functions."""
