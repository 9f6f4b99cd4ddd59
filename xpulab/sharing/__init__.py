"""Memory, the board and checkpoints that the notebook and the engines of one host share, and rules for their end."""
