"""Jobs of a scheduler, such as Slurm, in which engines run."""
