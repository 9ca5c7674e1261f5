"""Training: `fit` a network to trajectories, on one device or many, and have it back from its folder."""

from phibe.training.cache import open_data
from phibe.training.closed import fit_closed
from phibe.training.config import FitConfig
from phibe.training.loop import Diverged, fit
from phibe.training.runs import open_flow, save_flow

__all__ = ["Diverged", "FitConfig", "fit", "fit_closed", "open_data", "open_flow", "save_flow"]
