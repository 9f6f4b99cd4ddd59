"""Reads SPIR-V, as far as the tests need it."""

from __future__ import annotations

import numpy as np

OP_CAPABILITY = 17
FLOAT64 = 10


def capabilities(spirv: bytes) -> set[int]:
    """Return the operands of a module's OpCapability instructions (SPIR-V specification, sections 2.3 and 3.31)."""
    words = np.frombuffer(spirv, np.uint32)
    found, at = set(), 5  # five words of header
    while at < len(words):
        length, operation = int(words[at]) >> 16, int(words[at]) & 0xFFFF
        if operation == OP_CAPABILITY:
            found.add(int(words[at + 1]))
        at += length
    return found
