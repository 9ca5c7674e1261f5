"""Measures: distances between velocities and laws, spectra of fields, what a forecast is worth, films and motion."""

from phibe.metrics.corruptions import CORRUPTIONS, ladders
from phibe.metrics.distances import (
    Estimate,
    Moments,
    energy_distance,
    gaussian_w2,
    global_velocity_error,
    moments,
    sliced_w2,
    velocity_error,
)
from phibe.metrics.forecasts import Stability, crps, histogram_distance, relative_mse, spread_skill, stability
from phibe.metrics.frechet import Distance, Protocol, frechet_distance
from phibe.metrics.i3d import I3DFeatures, open_i3d
from phibe.metrics.motion import background, diversity, gait, oscillation, position_drift, silhouette
from phibe.metrics.spectra import (
    Spectrum,
    energy_spectrum,
    enstrophy_spectrum,
    log_spectral_error,
    spectral_distance,
)
from phibe.metrics.video import Scores, SoFar, mse, psnr, score, score_so_far, ssim

__all__ = [
    "CORRUPTIONS",
    "Distance",
    "Estimate",
    "I3DFeatures",
    "Moments",
    "Protocol",
    "Scores",
    "SoFar",
    "Spectrum",
    "Stability",
    "background",
    "crps",
    "diversity",
    "energy_distance",
    "energy_spectrum",
    "enstrophy_spectrum",
    "frechet_distance",
    "gait",
    "gaussian_w2",
    "global_velocity_error",
    "histogram_distance",
    "ladders",
    "log_spectral_error",
    "moments",
    "mse",
    "open_i3d",
    "oscillation",
    "position_drift",
    "psnr",
    "relative_mse",
    "score",
    "score_so_far",
    "silhouette",
    "sliced_w2",
    "spectral_distance",
    "spread_skill",
    "ssim",
    "stability",
    "velocity_error",
]
