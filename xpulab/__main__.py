"""``python -m xpulab``: the same as the command ``xpulab``."""

import sys

from xpulab.cli import main

sys.exit(main())
