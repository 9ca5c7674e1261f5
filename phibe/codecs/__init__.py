"""Codecs: pictures to a few numbers and back. That of the pendulum keeps distances, that of video has a codebook."""

from phibe.codecs.codebook import Codebook
from phibe.codecs.geometry import GeometryCodec, distortion, reconstruction, smoothness, with_velocity
from phibe.codecs.taming import TamingCodec, open_taming
from phibe.codecs.vq import VQCodec

__all__ = [
    "Codebook",
    "GeometryCodec",
    "TamingCodec",
    "VQCodec",
    "distortion",
    "open_taming",
    "reconstruction",
    "smoothness",
    "with_velocity",
]
