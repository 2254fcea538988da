"""Schemes that several of these tests run through."""

from torch import Tensor

from geonorm import dynamics, names, parse

VARIANTS = [
    "pre(decay=sqrt, alpha=0.5)",
    "post(decay=harmonic)",
    "peri(decay=linear)",
    "ngpt(alpha=0.3)",
    "geonorm(decay=sqrt, alpha=0.7)",
    "geonorm(decay_on=update)",
    "geonorm(index=sublayer)",
    "geonorm(decay=linear, index=sublayer)",
    "geonorm(update=norm)",
    "geonorm(update=unit)",
    "geonorm(input=norm, retraction=cayley)",
    "geonorm(retraction=projection, max_angle=pi/8)",
    "geonorm(learn=affine)",
    "geonorm(learn=step)",
    "geonorm(after=norm)",
    "geonorm(retraction=projection, learn=step, decay=constant, decay_on=update, max_angle=pi)",
    "hybrid(input=norm)",
    "keel(alpha=3)",
    "ngpt(decay=harmonic)",
    "orthogonal(decay=sqrt)",
    "rezero(alpha=0.1)",
    "layerscale(start=0.3)",
    "norm_preserving(b=3)",
    "pre(decay=0.75, max_step=0.2)",
    "post(input=norm, max_step=0.2)",
    "orthogonal(decay=0.3, max_step=pi/4, input=raw)",
    "peri(max_step=0.1)",
]
"""Fields that change the motion, of schemes that stay in the plane of x and u."""
PLANAR = [*(name for name in names() if parse(name).planar), *VARIANTS]
"""Schemes with a (rho, sigma) law."""


def speed_of(flow: dynamics.Flow, x: Tensor, tau: float = 0.0, sublayer: int = 0) -> Tensor:
    """Speed factor s (..., n) under the field of a flow."""
    return dynamics.speed(flow.scheme, x, flow.update(x, tau, sublayer), flow.rule(tau, flow.sublayers[sublayer][0])[1])


def growth_of(flow: dynamics.Flow, x: Tensor, tau: float = 0.0) -> Tensor:
    """r' (..., n) under the field of a flow."""
    return dynamics.radial_rate(flow.scheme, x, flow.update(x, tau), flow.rule(tau)[1])
