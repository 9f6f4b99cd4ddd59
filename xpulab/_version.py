"""The version of xpulab, which modules below the package's face import too."""

__version__ = "0.1.0"
