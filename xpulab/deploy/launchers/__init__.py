"""How a command is started on a host: the words of the command line, from pure functions."""
