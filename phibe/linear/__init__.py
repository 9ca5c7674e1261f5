"""Closed-form fits: minimisers of the objectives among fields linear in their parameters, in one pass over the data."""

from phibe.linear.affine_fit import AffineField, fit_affine
from phibe.linear.basis_fit import BasisField, fit_basis

__all__ = ["AffineField", "BasisField", "fit_affine", "fit_basis"]
