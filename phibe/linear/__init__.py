"""Closed-form fits: minimisers of the objectives among fields linear in their parameters, in one pass over the data.

`sums` adds up what the data says, apart for parts of it and merged in any order; `basis` solves the normal
equations for fields of any basis, with error bars and cross-validation; `affine` for fields affine in x.
"""

from phibe.linear.affine import AffineField, fit_affine
from phibe.linear.basis import BasisField, fit_basis

__all__ = ["AffineField", "BasisField", "fit_affine", "fit_basis"]
