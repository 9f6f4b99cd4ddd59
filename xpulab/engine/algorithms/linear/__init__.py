"""Linear models: least squares, cross-validated penalties, and logistic regression."""
