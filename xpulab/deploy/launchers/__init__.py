"""How a job is submitted, and a command started on a host: command lines and scripts, from pure functions."""

__all__ = ["LAUNCHERS"]

#: The launchers from which users choose.
LAUNCHERS = ("local", "ssh", "slurm", "pbs")
