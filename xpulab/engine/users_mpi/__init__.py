"""mpi4py's classes for a user's code on a rank: their waits can be left."""
