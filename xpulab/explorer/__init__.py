"""k-means one iteration at a time: the explorer, its picture and its widget."""
