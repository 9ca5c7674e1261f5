"""phibe: probability velocities from discretely observed stochastic trajectories (PhiBE-Flow)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is first asked for
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

_HOMES = {
    "phibe.fitting": ("fit_auto",),
    "phibe.diagnostics": ("diagnose",),
    "phibe.flow": ("Flow",),
    "phibe.linear.affine": ("fit_affine",),
    "phibe.linear.basis": ("fit_basis",),
    "phibe.objectives": ("OBJECTIVES", "isotropic", "phibe", "regression", "symmetric"),
    "phibe.systems.ou": ("OU",),
    "phibe.io": ("open_data",),
    "phibe.training.config": ("FitConfig",),
    "phibe.training.loop": ("fit",),
    "phibe.training.runs": ("open_flow",),
    "phibe.trajectories": ("Trajectories",),
}


def __getattr__(name: str) -> Any:
    """A public name, imported from its module on first use and kept."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'phibe' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
