"""The record of a call, and its text, HTML, figure and live progress."""
