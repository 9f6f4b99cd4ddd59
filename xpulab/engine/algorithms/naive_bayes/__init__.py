"""Naive Bayes classifiers: sums over the rows of each class, and the joint probabilities of rows and classes."""
