"""``python -m tests.faults --seed 1 --trials 100``: faults at random moments, and a table of their outcomes.

With ``--hosts 2`` or ``--hosts 3``, the cluster is one over this machine and one or two hosts of `machines`. With
``--rows 2000000``, Ctrl-C comes at random moments of calls with so many rows.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
sys.path.insert(0, str(Path(__file__).parents[0]))
sys.path.insert(0, str(Path(__file__).parents[1] / "hosts"))

import trials_of_hosts
from clients import several
from long_calls import PressedCall, pressed_calls
from machines import network, why_not
from trials import FAULTS, PHASES, Bench, Trial

import xpulab
from xpulab.deploy.mpi.command import DEFAULT, NAMES


def main() -> None:
    """Run the trials. The exit status is 1 if one went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--faults", nargs="*", help="by default all")
    parser.add_argument("--hosts", type=int, choices=(2, 3), help="as root: a cluster over so many hosts")
    parser.add_argument("--mpi", choices=NAMES, default=DEFAULT, help="the MPI of a cluster over hosts")
    parser.add_argument(
        "--clients", type=int, default=0, help="no faults: so many clients at once, with --trials tasks"
    )
    parser.add_argument("--phases", nargs="*", help="by default all")
    parser.add_argument("--rows", type=int, default=0, help="only interrupts, of calls with so many rows")
    arguments = parser.parse_args()
    for name, every in _choices(arguments.hosts).items():
        given = getattr(arguments, name) or every
        if unknown := sorted({*given} - {*every}):
            parser.error(f"--{name}: received {unknown[0]!r}, expected some of {', '.join(every)}")
        setattr(arguments, name, given)
    if arguments.hosts:
        sys.exit(not _over_hosts(arguments))
    if arguments.clients:
        sys.exit(not _together(arguments.clients, arguments.trials, arguments.engines))
    if arguments.rows:
        sys.exit(not _interrupted(arguments))
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


def _choices(hosts: int | None) -> dict[str, list[str]]:
    """All faults and phases."""
    if hosts:
        return {"faults": list(trials_of_hosts.FAULTS), "phases": list(trials_of_hosts.PHASES)}
    return {"faults": list(FAULTS), "phases": list(PHASES)}


def _over_hosts(arguments: argparse.Namespace) -> bool:
    """Run trials on a cluster over hosts, and return whether all were good. The faults take turns."""
    if reason := why_not():
        sys.exit(reason)
    chance = random.Random(arguments.seed)
    done: list[trials_of_hosts.Trial] = []
    with network(arguments.hosts - 1) as hosts:
        bench = trials_of_hosts.Bench(hosts, arguments.phases, arguments.mpi)
        try:
            for number in range(arguments.trials):
                fault = arguments.faults[(arguments.seed + number) % len(arguments.faults)]
                trial = bench.trial(fault, chance.choice(arguments.phases), chance)
                done.append(trial)
                print(
                    f"{number:4} {trial.fault:10} {trial.victim:12} {trial.phase:8} after {trial.moment:6.3f} s: "
                    f"{trial.outcome:10} seen {trial.seen:6.2f} s, ended {trial.seconds:6.2f} s later  "
                    f"{trial.words.partition(chr(10))[0]}",
                    *([f"     WRONG: {trial.wrong}\n{trial.words}"] * bool(trial.wrong)),
                    sep="\n",
                    flush=True,
                )
        finally:
            bench.close()
    outcomes = ("done", "recovered", "told", "ended")
    print(f"\n{'fault':10} {'trials':>6} {'good':>5} {'seen (s)':>9} {'end (s)':>8}  outcomes; the longest times")
    for fault in sorted({trial.fault for trial in done}):
        of = [trial for trial in done if trial.fault == fault]
        counts = {name: sum(trial.outcome == name for trial in of) for name in outcomes}
        print(
            f"{fault:10} {len(of):6} {sum(not trial.wrong for trial in of):5} {max(t.seen for t in of):9.2f} "
            f"{max(t.seconds for t in of):8.2f}  {', '.join(f'{n} {name}' for name, n in counts.items() if n)}"
        )
    return not any(trial.wrong for trial in done)


def _interrupted(arguments: argparse.Namespace) -> bool:
    """Interrupt calls with many rows at random moments, and return whether each has told of it."""
    done: list[PressedCall] = []
    with xpulab.XPUCluster(arguments.engines, display="none") as cluster:
        for each in pressed_calls(cluster, arguments.rows, arguments.trials, random.Random(arguments.seed)):
            done.append(each)
            told = each.said.partition("; ")[0] or "had ended before"
            print(
                f"{len(done):4} {each.name:34} after {each.moment:6.3f} s: {each.seconds:6.3f} s later: {told}"
                f"{'   WRONG: ' * bool(each.wrong)}{each.wrong}",
                flush=True,
            )
    print(f"\n{'call':34} {'trials':>6} {'told':>5} {'longest (s)':>12}")
    for name in dict.fromkeys(each.name for each in done):
        of = [each for each in done if each.name == name]
        told = sum(bool(each.said) and not each.wrong for each in of)
        print(f"{name:34} {len(of):6} {told:5} {max(each.seconds for each in of):12.2f}")
    return not any(each.wrong for each in done)


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
