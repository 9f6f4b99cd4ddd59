"""What the notebook and the engines of one host share: memory, the board, checkpoints, and rules for their end."""
