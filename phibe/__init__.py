"""phibe: probability velocities from discretely observed stochastic trajectories (PhiBE-Flow)."""

from phibe import kth
from phibe.diagnosis import diagnose
from phibe.flow import Flow
from phibe.linear import fit_affine, fit_basis
from phibe.objectives import OBJECTIVES, isotropic, phibe, regression, symmetric
from phibe.systems import OU
from phibe.training import FitConfig, fit
from phibe.trajectories import Trajectories

__version__ = "0.1.0"
__all__ = [
    "OBJECTIVES",
    "OU",
    "FitConfig",
    "Flow",
    "Trajectories",
    "diagnose",
    "fit",
    "fit_affine",
    "fit_basis",
    "isotropic",
    "kth",
    "phibe",
    "regression",
    "symmetric",
]
