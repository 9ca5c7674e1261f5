"""The experiments of the paper, and those that check it: the registry of what `phibe run NAME` can run.

To list it imports no experiment, nor torch. A new experiment is one `Experiment` (`report.py`) in a module of its own,
and one line here. Read next: `report.py`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from phibe.experiments.report import Experiment

PRESETS = ("smoke", "laptop", "paper")


class Entry(NamedTuple):
    """What an experiment is for, in one line, and where it is: module:ATTRIBUTE in this package."""

    purpose: str
    place: str


EXPERIMENTS = {
    "ou_theory": Entry(
        "Every theorem, measured: bias, bounds and sampling rates, on OU and nonlinear processes", "theory:OU_THEORY"
    ),
    "affine_ou": Entry("Affine flows of the OU processes: orbits, samples at t = 15, moments in time", "ou:AFFINE_OU"),
    "ou": Entry("An MLP on the reversible OU process: error in time, convergence in Δt and paths", "ou_mlp:MLP_OU"),
    "estimators": Entry("Objectives on the OU processes: bias, variance, and MLPs", "estimators:ESTIMATORS"),
    "nonlinear": Entry("Objectives on a double well and three stationary nonlinear systems", "estimators:NONLINEAR"),
    "pendulum_states": Entry(
        "The stochastic double pendulum from states: path errors and marginals", "pendulum.states:PENDULUM_STATES"
    ),
    "pendulum_images": Entry(
        "The same from images: distance-preserving codec, latent flow, decoded rollouts",
        "pendulum.images:PENDULUM_IMAGES",
    ),
    "pendulum_real": Entry(
        "A measured double pendulum: sixteen recorded runs, friction included", "pendulum.real:PENDULUM_REAL"
    ),
    "navier_stokes": Entry(
        "Stochastic Navier–Stokes: vorticity rollouts and spectra, with PFI and MCVD", "turbulence.run:NAVIER_STOKES"
    ),
    "figure_features": Entry(
        "The features behind the figure Fréchet distance, and what it ranks", "video.features:FIGURE_FEATURES"
    ),
    "video": Entry("Video prediction by latent flows on clips of drawn figures, with PFI and MCVD", "video.run:VIDEO"),
    "video_real": Entry("Video prediction on real clips, such as those of KTH", "video.run:VIDEO_REAL"),
    "own_data": Entry("`phibe fit` on three known systems, scored at left-out observations", "own_data:OWN_DATA"),
}
"""Names of `phibe run` and of the folders in artifacts/."""


def experiment(name: str) -> Experiment:
    """The experiment of that name, imported when it is asked for."""
    module, _, attribute = _entry(name).place.partition(":")
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def description(name: str) -> str:
    """What that experiment is for, in one line."""
    return _entry(name).purpose


def _entry(name: str) -> Entry:
    if name not in EXPERIMENTS:
        raise ValueError(f"An experiment is one of {', '.join(EXPERIMENTS)}; got {name!r}.")
    return EXPERIMENTS[name]
