"""Worlds that can be simulated, with exact answers where they exist."""

from phibe.systems.acrobot import Acrobot
from phibe.systems.ou import OU, Gaussian

__all__ = ["OU", "Acrobot", "Gaussian"]
