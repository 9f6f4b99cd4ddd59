"""k-means by hand: the explorer, its picture, its widget."""
