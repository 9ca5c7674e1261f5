"""phibe: probability velocities from discretely observed stochastic trajectories (PhiBE-Flow)."""

from phibe.diagnostics import diagnose
from phibe.fitting import fit_auto
from phibe.flow import Flow
from phibe.io import open_data
from phibe.linear.affine import fit_affine
from phibe.linear.basis import fit_basis
from phibe.objectives import OBJECTIVES, isotropic, phibe, regression, symmetric
from phibe.systems.ou import OU
from phibe.training.config import FitConfig
from phibe.training.loop import fit
from phibe.training.runs import open_flow
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
    "fit_auto",
    "fit_basis",
    "isotropic",
    "open_data",
    "open_flow",
    "phibe",
    "regression",
    "symmetric",
]
