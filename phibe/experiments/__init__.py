"""The paper's experiments and our own: one file each, with its presets and `run(preset) -> Report`."""

from types import ModuleType

from phibe.experiments import affine_ou, estimators, nonlinear, ou, own_data
from phibe.experiments import theory as ou_theory
from phibe.experiments.pendulum import images as pendulum_images
from phibe.experiments.pendulum import real as pendulum_real
from phibe.experiments.pendulum import states as pendulum_states
from phibe.experiments.turbulence import run as navier_stokes
from phibe.experiments.video import features_run as figure_features
from phibe.experiments.video import real as video_real
from phibe.experiments.video import run as video_drawn

EXPERIMENTS: dict[str, ModuleType] = {
    "ou_theory": ou_theory,
    "affine_ou": affine_ou,
    "ou": ou,
    "estimators": estimators,
    "nonlinear": nonlinear,
    "pendulum_states": pendulum_states,
    "pendulum_images": pendulum_images,
    "pendulum_real": pendulum_real,
    "navier_stokes": navier_stokes,
    "figure_features": figure_features,
    "video": video_drawn,
    "video_real": video_real,
    "own_data": own_data,
}
