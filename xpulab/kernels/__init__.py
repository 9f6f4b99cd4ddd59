"""The device code, with one subject per file: kernels for numba-dpex, and functions of arrays that launch them.

This package does not use MPI. Call `xpulab.libraries.oneapi.load()` before you import one of its modules.
"""
