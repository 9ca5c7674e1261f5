"""Training: the loop, its samples, its devices, and runs that stop and go on."""
