"""Stops the installation on versions of Python that do not work; everything else is in pyproject.toml.

pip also reads `requires-python`, but its message ("a different Python: 3.9.18 not in '<3.15,>=3.10'") does not say what
to do. pip runs this file first, with any Python, so the file must not use syntax that is newer than 3.6.
"""

import sys

FIRST, LAST = (3, 10), (3, 14)

MESSAGE = """
xpulab needs CPython 3.10 to 3.14, and this is {found}.

scikit-learn has no release for an earlier one that xpulab works with, and dpctl none for a later one. What to do:

  anywhere, uv      uv venv --seed --clear --python 3.13 .venv
  anywhere, pyenv   pyenv install 3.13 && PYENV_VERSION=3.13 python -m venv --clear .venv
  Debian 12 or 13   its own python3 is 3.11 or 3.13:   /usr/bin/python3 -m venv --clear .venv

and then, in this folder:   .venv/bin/pip install .
"""


def complaint(implementation: str, version: "tuple[int, ...]") -> str:
    """The message for a version of Python that does not work; "" for a version that works.

    Parameters
    ----------
    implementation : str
        `sys.implementation.name`.
    version : tuple of int
        `sys.version_info[:3]`.
    """
    if implementation == "cpython" and FIRST <= version[:2] <= LAST:
        return ""
    return MESSAGE.format(found=implementation.replace("cp", "CP") + " " + ".".join(str(n) for n in version))


if __name__ == "__main__":
    message = complaint(sys.implementation.name, sys.version_info[:3])
    if message:
        sys.exit(message)

    from setuptools import setup

    setup()
