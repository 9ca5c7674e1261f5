"""Training: `fit` a network to trajectories, on one device or many, and have it back from its folder."""
