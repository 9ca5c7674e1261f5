"""Worlds that can be simulated, with exact answers where they exist."""

from phibe.systems.acrobot import Acrobot
from phibe.systems.diffusions import double_well, langevin, multiplicative, rotating_well
from phibe.systems.figures import Figures, Scenes
from phibe.systems.fokker_planck import GridLaw, solve_fokker_planck
from phibe.systems.laws import Law, boltzmann
from phibe.systems.navier_stokes import NavierStokes
from phibe.systems.ou import OU, Gaussian
from phibe.systems.sde import SDE

__all__ = [
    "OU",
    "SDE",
    "Acrobot",
    "Figures",
    "Gaussian",
    "GridLaw",
    "Law",
    "NavierStokes",
    "Scenes",
    "boltzmann",
    "double_well",
    "langevin",
    "multiplicative",
    "rotating_well",
    "solve_fokker_planck",
]
