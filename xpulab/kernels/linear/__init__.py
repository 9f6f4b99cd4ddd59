"""Losses of linear models."""
