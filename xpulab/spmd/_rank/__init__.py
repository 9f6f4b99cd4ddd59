"""The estimators of a rank: its own rows, and the calls that all ranks make together."""
