"""Training: `fit` a network to trajectories, on one device or many, and have it back from its folder."""

from phibe.training.cache import open_data
from phibe.training.closed import fit_closed
from phibe.training.config import FitConfig
from phibe.training.loop import Diverged, fit, train
from phibe.training.runs import open_flow, save_flow
from phibe.training.shifts import Shifted
from phibe.training.tasks import VelocityTask

__all__ = [
    "Diverged",
    "FitConfig",
    "Shifted",
    "VelocityTask",
    "fit",
    "fit_closed",
    "open_data",
    "open_flow",
    "save_flow",
    "train",
]
