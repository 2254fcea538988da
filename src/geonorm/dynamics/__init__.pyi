from .fields import Attention as Attention, Field as Field, Fresh as Fresh, random_attention as random_attention
from .flow import Flow as Flow
from .integrators import integrate as integrate
from .laws import (
    Law as Law,
    clusters as clusters,
    collapse_time as collapse_time,
    cosine_rate as cosine_rate,
    gap as gap,
    order_parameter as order_parameter,
    radius_cv as radius_cv,
    terminal_law as terminal_law,
    variance as variance,
)
from .rates import radial_rate as radial_rate, speed as speed
from .starts import (
    STARTS as STARTS,
    cone as cone,
    equiangular as equiangular,
    gaussian as gaussian,
    uniform as uniform,
)

PUBLIC: dict[str, str]
PLACES: dict[str, str]
