"""The algorithms that ranks run together, one a file."""
