"""Finds and loads libraries that are not Python's: the oneAPI runtime that pip installed, and MPI."""
