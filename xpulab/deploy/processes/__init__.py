"""The processes of a cluster, and the record by which other processes find it."""
