"""Linear models that are fitted by steps for batches of rows."""
