"""Linear models of classes."""
