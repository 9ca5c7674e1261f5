"""phibe: probability velocities from discretely observed stochastic trajectories (PhiBE-Flow)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; at run time a name is imported when it is first asked for
    from phibe.diagnostics import diagnose as diagnose
    from phibe.evaluation import evaluate as evaluate
    from phibe.fitting import fit as fit
    from phibe.flow import Flow as Flow
    from phibe.io import open_data as open_data
    from phibe.io import save_data as save_data
    from phibe.objectives import OBJECTIVES as OBJECTIVES
    from phibe.objectives import isotropic as isotropic
    from phibe.objectives import phibe as phibe
    from phibe.objectives import regression as regression
    from phibe.objectives import symmetric as symmetric
    from phibe.report import write_report as write_report
    from phibe.systems.ou import OU as OU
    from phibe.training.config import FitConfig as FitConfig
    from phibe.training.runs import open_flow as open_flow
    from phibe.training.runs import save_flow as save_flow
    from phibe.trajectories import Trajectories as Trajectories
    from phibe.widget import explore as explore

__version__ = "0.1.0"

_HOMES = {
    "phibe.diagnostics": ("diagnose",),
    "phibe.evaluation": ("evaluate",),
    "phibe.fitting": ("fit",),
    "phibe.flow": ("Flow",),
    "phibe.io": ("open_data", "save_data"),
    "phibe.objectives": ("OBJECTIVES", "isotropic", "phibe", "regression", "symmetric"),
    "phibe.report": ("write_report",),
    "phibe.systems.ou": ("OU",),
    "phibe.training.config": ("FitConfig",),
    "phibe.training.runs": ("open_flow", "save_flow"),
    "phibe.trajectories": ("Trajectories",),
    "phibe.widget": ("explore",),
}
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    """A public name, imported from its module on first use and kept."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'phibe' has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(home), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
