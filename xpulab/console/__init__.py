"""What a user types in a notebook: the commands behind the magics and the command line, and cells."""
