"""Loads the oneAPI runtime, before other modules import dpctl; ``xpulab run`` and engines have done so already."""

import sys

from xpulab import oneapi

if "dpctl" not in sys.modules:
    oneapi.load()
