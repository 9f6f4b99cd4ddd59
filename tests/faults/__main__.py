"""``python -m tests.faults --seed 1 --trials 100``: faults at random moments, and a table of their outcomes."""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[0]))

from clients import several
from trials import FAULTS, PHASES, Bench, Trial

import xpulab


def main() -> None:
    """Run the trials. The exit status is 1 if one went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument(
        "--clients", type=int, default=0, help="no faults: so many clients at once, with --trials tasks"
    )
    parser.add_argument("--phases", nargs="*", choices=PHASES, default=list(PHASES))
    arguments = parser.parse_args()
    if arguments.clients:
        sys.exit(not _together(arguments.clients, arguments.trials, arguments.engines))
    chance = random.Random(arguments.seed)
    bench = Bench(arguments.engines, arguments.phases)
    done: list[Trial] = []
    try:
        for number in range(arguments.trials):
            trial = bench.trial(chance.choice(arguments.faults), chance.choice(arguments.phases), chance)
            done.append(trial)
            print(
                f"{number:4} {trial.fault:10} {trial.phase:10} after {trial.moment:6.3f} s: {trial.outcome:12} "
                f"{trial.seconds:6.3f} s later{'   WRONG: ' * bool(trial.wrong)}{trial.wrong}",
                flush=True,
            )
    finally:
        bench.close()
    print(f"\n{'fault':10} {'phase':10} {'trials':>6} {'good':>5} {'longest (s)':>12}")
    for fault, phase in sorted({(trial.fault, trial.phase) for trial in done}):
        of = [trial for trial in done if (trial.fault, trial.phase) == (fault, phase)]
        longest = max(trial.seconds for trial in of)
        print(f"{fault:10} {phase:10} {len(of):6} {sum(not trial.wrong for trial in of):5} {longest:12.2f}")
    sys.exit(any(trial.wrong for trial in done))


def _together(clients: int, tasks: int, engines: int) -> bool:
    """Run several clients on one cluster, and return whether all results were right."""
    each = -(-tasks // clients)
    with xpulab.XPUCluster(engines) as cluster:
        started = time.monotonic()
        right = several(cluster, clients, each)
        seconds = time.monotonic() - started
    print(f"{clients} clients, {each} tasks each, in {seconds:.1f} s; right: {', '.join(map(str, right))}")
    return right == [each] * clients


if __name__ == "__main__":
    main()
