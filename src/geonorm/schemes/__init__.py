"""Residual schemes: each written once, as what a sub-layer reads and how its output is written to the stream."""

from .base import Placement, Scheme, Site, restore
from .combine import Mix
from .flat import DeepNorm, LayerNormScaling, Olmo2, Peri, Post, Pre, Sqrt
from .geodesic import GeoNorm
from .hypersphere import NGPT
from .parse import find, names, parse, register
from .streams import ResidualDual

__all__ = [
    "NGPT",
    "DeepNorm",
    "GeoNorm",
    "LayerNormScaling",
    "Mix",
    "Olmo2",
    "Peri",
    "Placement",
    "Post",
    "Pre",
    "ResidualDual",
    "Scheme",
    "Site",
    "Sqrt",
    "find",
    "names",
    "parse",
    "register",
    "restore",
]
