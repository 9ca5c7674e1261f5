"""The paper's experiments and our own: one file each, with its presets and `run(preset) -> Report`."""

from types import ModuleType

from phibe.experiments import (
    affine_ou,
    estimators,
    figure_features,
    navier_stokes,
    nonlinear,
    ou,
    ou_theory,
    own_data,
    pendulum_images,
    pendulum_real,
    pendulum_states,
    video,
    video_real,
)

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
    "video": video,
    "video_real": video_real,
    "own_data": own_data,
}
