"""Measures: distances between velocities and laws, spectra of fields, and what a forecast is worth."""

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
from phibe.metrics.spectra import (
    Spectrum,
    energy_spectrum,
    enstrophy_spectrum,
    log_spectral_error,
    spectral_distance,
)

__all__ = [
    "Estimate",
    "Moments",
    "Spectrum",
    "Stability",
    "crps",
    "energy_distance",
    "energy_spectrum",
    "enstrophy_spectrum",
    "gaussian_w2",
    "global_velocity_error",
    "histogram_distance",
    "log_spectral_error",
    "moments",
    "relative_mse",
    "sliced_w2",
    "spectral_distance",
    "spread_skill",
    "stability",
    "velocity_error",
]
