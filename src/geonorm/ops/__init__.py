"""Tensor operations, each with a plain reference and a fast path. They know tensors, not schemes."""

from .angle import AngleMap
from .geodesic import backends, geodesic_step, geodesic_step_read, geodesic_update
from .sums import WeightedSum, fused_write

__all__ = [
    "AngleMap",
    "WeightedSum",
    "backends",
    "fused_write",
    "geodesic_step",
    "geodesic_step_read",
    "geodesic_update",
]
