"""Methods that PhiBE-Flow is compared with; each is a `Flow` or generates trajectories as `Flow.generate` does."""
