"""The device code: one algorithm a file, numba-dpex kernels and then the plain function of arrays that launches them.

Nothing here knows of MPI. `xpulab.oneapi.load()` must have run before a module of this package is imported.
"""
