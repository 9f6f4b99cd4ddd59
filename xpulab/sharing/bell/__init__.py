"""Tasks for engines of this host: a ring of tasks in shared memory, and mailboxes for the replies."""
