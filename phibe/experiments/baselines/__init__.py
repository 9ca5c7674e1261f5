"""What the method is compared with; each gives a `Flow` or what `Flow.generate` gives."""
