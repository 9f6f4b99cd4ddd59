"""Signs of life of the processes of a cluster, and what is left of processes that have ended."""
