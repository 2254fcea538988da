"""Residual schemes: each written once, as what a sub-layer reads and how its output is written to the stream."""

from .pre import Pre  # first, as in every list of names

# isort: split
from .base import About, Placement, Scheme, Site, enter_as
from .combine import First, Mix, PerKind, state_of
from .flat import DeepNorm, Keel, LayerNormScaling, Olmo2, Peri, Post, Sandwich, Sqrt
from .geodesic import GeoNorm
from .grammar import find, parse
from .history import AttentionResiduals
from .hybrid import Hybrid
from .hypersphere import NGPT, AnGPT
from .lambdas import Lambdas, Lanes
from .learned import GPAS, LayerScale, ReZero
from .manifold import ManifoldHyper
from .nag import NAG
from .origin import schemes_in, sources_of, stored
from .parts import Parts, Progress, advance, belongs_to_scheme, read_at, restore, slot_at, slots_at, write_at
from .prores import ProRes
from .registry import names, register
from .shipped import AffineResidual, Beam, GatedStreams, Muse
from .streams import Hyper, ResidualDual, Siamese
from .tangent import NormPreserving, Orthogonal

__all__ = [
    "GPAS",
    "NAG",
    "NGPT",
    "About",
    "AffineResidual",
    "AnGPT",
    "AttentionResiduals",
    "Beam",
    "DeepNorm",
    "First",
    "GatedStreams",
    "GeoNorm",
    "Hybrid",
    "Hyper",
    "Keel",
    "Lambdas",
    "Lanes",
    "LayerNormScaling",
    "LayerScale",
    "ManifoldHyper",
    "Mix",
    "Muse",
    "NormPreserving",
    "Olmo2",
    "Orthogonal",
    "Parts",
    "PerKind",
    "Peri",
    "Placement",
    "Post",
    "Pre",
    "ProRes",
    "Progress",
    "ReZero",
    "ResidualDual",
    "Sandwich",
    "Scheme",
    "Siamese",
    "Site",
    "Sqrt",
    "advance",
    "belongs_to_scheme",
    "enter_as",
    "find",
    "names",
    "parse",
    "read_at",
    "register",
    "restore",
    "schemes_in",
    "slot_at",
    "slots_at",
    "sources_of",
    "state_of",
    "stored",
    "write_at",
]
