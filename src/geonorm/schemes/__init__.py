"""Residual schemes: each written once, as what a sub-layer reads and how its output is written to the stream."""

from .base import Placement, Scheme, Site, restore
from .combine import First, Mix, PerKind
from .flat import DeepNorm, Keel, LayerNormScaling, Olmo2, Peri, Post, Pre, Sandwich, Sqrt
from .geodesic import GeoNorm
from .hybrid import Hybrid
from .hypersphere import NGPT, AnGPT
from .learned import LayerScale, ReZero
from .parse import find, names, parse, register
from .streams import Hyper, ResidualDual, Siamese
from .tangent import NormPreserving, Orthogonal

__all__ = [
    "NGPT",
    "AnGPT",
    "DeepNorm",
    "First",
    "GeoNorm",
    "Hybrid",
    "Hyper",
    "Keel",
    "LayerNormScaling",
    "LayerScale",
    "Mix",
    "NormPreserving",
    "Olmo2",
    "Orthogonal",
    "PerKind",
    "Peri",
    "Placement",
    "Post",
    "Pre",
    "ReZero",
    "ResidualDual",
    "Sandwich",
    "Scheme",
    "Siamese",
    "Site",
    "Sqrt",
    "find",
    "names",
    "parse",
    "register",
    "restore",
]
