"""Linear models that single targets, however far they are, change little."""
