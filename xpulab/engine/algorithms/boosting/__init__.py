"""Gradient boosting on the hosts of the ranks."""
