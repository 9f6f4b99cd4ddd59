"""Random forests: the bins of values, the targets, and the trees of each rank."""
