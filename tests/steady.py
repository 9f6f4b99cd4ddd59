"""``python -m tests.steady [FILES] --rounds 10 --load 4``: the tests again and again, beside busy processes.

Prints a line for each round, then each test that failed or was run once more, how often, and its first traceback. The
exit status is 1 if there is any. Without files, all tests run. What follows ``--`` are options for pytest.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).with_name("support")))

from junit import count_tests, failures_in

__all__ = ["busy", "main"]


@contextlib.contextmanager
def busy(load: int) -> Iterator[None]:
    """Open a context beside which so many processes compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def main() -> int:
    """Run the rounds, and return the exit status."""
    words, _, options = "\0".join(sys.argv[1:]).partition("\0--\0")
    parser = argparse.ArgumentParser(prog="python -m tests.steady", description=__doc__)
    parser.add_argument("files", nargs="*", help="files, folders or tests, as pytest takes them")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--load", type=int, default=0, help="number of busy processes beside the tests")
    parser.add_argument("-n", type=int, default=3, help="number of pytest's workers; 0 for none")
    arguments = parser.parse_args(words.split("\0") if words else [])
    tracebacks: dict[str, list[str]] = {}
    bad = 0
    with tempfile.TemporaryDirectory() as folder, busy(arguments.load):
        for number in range(1, arguments.rounds + 1):
            file, began = Path(folder) / f"{number}.xml", time.monotonic()
            command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={file}"]
            command += ["-n", str(arguments.n)] if arguments.n else []
            command += [*arguments.files, *(options.split("\0") if options else [])]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            tests, failures = (count_tests(file), failures_in(file)) if file.exists() else (0, {})
            took = time.monotonic() - began
            print(
                f"round {number}: {tests} tests, {len(failures)} failed, status {done.returncode}, {took:.0f} s",
                flush=True,
            )
            for test, texts in failures.items():
                tracebacks.setdefault(test, []).extend(texts)
            if done.returncode:
                bad += 1
                if not failures:  # the fault of the whole run, such as what it has left behind
                    print("\n".join((done.stdout + done.stderr).splitlines()[-30:]))
    for test, texts in sorted(tracebacks.items(), key=lambda each: -len(each[1])):
        print(f"\n=== {test}: {len(texts)} x; the first:\n{texts[0]}")
    print(f"{bad} of {arguments.rounds} rounds failed")
    return 1 if bad or tracebacks else 0


if __name__ == "__main__":
    sys.exit(main())
