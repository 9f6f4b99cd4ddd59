"""What stores, fetches and starts compiled kernels on a device. Another runtime would replace this folder."""
