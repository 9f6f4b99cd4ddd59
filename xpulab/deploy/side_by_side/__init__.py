"""Calls side by side: joblib's jobs, such as the fits of a search, each on one engine."""
