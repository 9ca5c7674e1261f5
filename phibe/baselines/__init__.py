"""What the method is compared with; each gives a `Flow` or what `Flow.generate` gives."""

from phibe.baselines.forecaster import Forecaster, conditional_unet
from phibe.baselines.kernel import fit_kernel
from phibe.baselines.mcvd import MCVD
from phibe.baselines.persistence import ConstantVelocity, Persistence
from phibe.baselines.pfi import PFI
from phibe.baselines.training import fit_forecaster, open_forecaster

__all__ = [
    "MCVD",
    "PFI",
    "ConstantVelocity",
    "Forecaster",
    "Persistence",
    "conditional_unet",
    "fit_forecaster",
    "fit_kernel",
    "open_forecaster",
]
