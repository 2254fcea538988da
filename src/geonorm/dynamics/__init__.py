"""The particle system of normalization (arXiv:2510.22026), driven by the schemes that train."""

from .fields import Attention, Field, Fresh, Mlp, random_attention, random_mlp, trained_attention
from .flow import Flow
from .gradients import Sensitivity, sensitivity
from .integrators import METHODS, integrate
from .laws import Law, collapse_time, terminal_law
from .observables import (
    cluster_variance,
    clusters,
    cosine_rate,
    effective_depth,
    gap,
    labels,
    mean_cosine,
    order_parameter,
    radius_cv,
    variance,
)
from .rates import radial_rate, rates, speed
from .starts import STARTS, cone, equiangular, from_array, gaussian, uniform

__all__ = [
    "METHODS",
    "STARTS",
    "Attention",
    "Field",
    "Flow",
    "Fresh",
    "Law",
    "Mlp",
    "Sensitivity",
    "cluster_variance",
    "clusters",
    "collapse_time",
    "cone",
    "cosine_rate",
    "effective_depth",
    "equiangular",
    "from_array",
    "gap",
    "gaussian",
    "integrate",
    "labels",
    "mean_cosine",
    "order_parameter",
    "radial_rate",
    "radius_cv",
    "random_attention",
    "random_mlp",
    "rates",
    "sensitivity",
    "speed",
    "terminal_law",
    "trained_attention",
    "uniform",
    "variance",
]
