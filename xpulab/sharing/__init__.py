"""Things that the notebook and the engines of one host share: memory, the board, checkpoints, and who outlives whom."""
