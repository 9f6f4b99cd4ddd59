"""What metrics are computed from: sums over the rows, and tables of distinct labels and numbers with their weights."""
