"""What the method is compared with; each gives a `Flow` or what `Flow.generate` gives."""

from phibe.baselines.kernel import fit_kernel

__all__ = ["fit_kernel"]
