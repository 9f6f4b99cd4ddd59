"""Clusters of rows: k-means and its relatives, density, and scores of labelled rows."""
