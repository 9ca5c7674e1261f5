"""Closed-form fits: minimisers of the objectives among fields linear in their parameters, in one pass over the data."""
