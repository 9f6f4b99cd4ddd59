"""Compiles the kernels when xpulab is built. Only this folder needs the compiler, and engines do not import it."""
