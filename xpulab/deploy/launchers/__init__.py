"""How a command is started on a host: the words of the command line, from pure functions."""

__all__ = ["LAUNCHERS"]

#: The launchers from which users choose.
LAUNCHERS = ("local", "ssh", "slurm")
