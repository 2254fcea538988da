"""The particle system of normalization (arXiv:2510.22026), driven by the schemes that train."""

from .fields import Attention, Fresh, Mlp, random_attention, random_mlp
from .flow import Flow
from .integrators import METHODS, integrate
from .observables import cosine_rate, gap, mean_cosine, order_parameter, variance
from .rates import radial_rate, rates, speed

__all__ = [
    "METHODS",
    "Attention",
    "Flow",
    "Fresh",
    "Mlp",
    "cosine_rate",
    "gap",
    "integrate",
    "mean_cosine",
    "order_parameter",
    "radial_rate",
    "random_attention",
    "random_mlp",
    "rates",
    "speed",
    "variance",
]
