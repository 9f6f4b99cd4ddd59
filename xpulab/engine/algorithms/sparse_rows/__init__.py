"""Algorithms for rows in CSR form only; many others take dense and sparse rows."""
