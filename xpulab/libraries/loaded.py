"""Loads the oneAPI runtime before other modules import dpctl, unless ``xpulab run`` or the engine has loaded it."""

import sys

from xpulab.libraries import oneapi

if "dpctl" not in sys.modules:
    oneapi.load()
