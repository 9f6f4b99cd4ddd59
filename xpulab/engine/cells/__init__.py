"""A user's code on a rank: cells, functions of the notebook, and scripts."""
