"""The algorithms that the ranks run together, one per file."""
