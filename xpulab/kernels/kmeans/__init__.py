"""The kernels of k-means, for dense and for sparse rows."""
