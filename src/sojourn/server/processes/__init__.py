"""Several processes behind one address: those that take epochs, and the one that does all else."""
