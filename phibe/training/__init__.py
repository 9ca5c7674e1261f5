"""Training: a network fitted to trajectories, on one device or many, and opened again from its folder."""
