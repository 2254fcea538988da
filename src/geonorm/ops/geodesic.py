"""The geodesic update of GeoNorm (arXiv:2601.22095): one public function, its slow twin and the choice between paths.

    c = <x,u>/<x,x>;  v = u - c x;  ratio = |v|/|x|
    x' = cos(h angle) x + sin(h angle) |x| v/|v|,    angle = AngleMap(ratio)

Row maths is fp32 (fp64 for fp64 inputs) whatever the inputs; x' has the dtype of x. |x'| = |x|. u = 0 and u parallel
to x leave x as it is; x = 0 gives 0; NaN and Inf give NaN on their own row only.
"""

from __future__ import annotations

import os
from math import pi

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError, unknown
from ..norms import upcast
from .angle import AngleMap
from .closed_form import closed_form

BACKENDS = ("auto", "closed", "reference")
"""auto: the fastest path here; closed: closed-form forward and backward in PyTorch; reference: the textbook, autograd.
A fused GPU kernel takes its place in this list."""


def geodesic_update(
    x: Tensor, u: Tensor, *, decay: float | Tensor = 1.0, max_angle: float = pi / 4, backend: str = "auto"
) -> Tensor:
    """Moves x along the geodesic of the tangential part of u, by min(decay * min(ratio, max_angle), max_angle).

    x: (..., dim), the stream; u: the same shape, the raw output of the sub-layer, of any floating dtype. decay: 1/(l+1)
    in the paper for block l counted from 0; a float or a 0-d tensor. max_angle in radians. Returns x' like x.
    Raises ConfigError for shapes that differ, max_angle outside (0, pi] or an unknown backend.
    """
    if x.shape != u.shape or x.dim() == 0:
        raise ConfigError(f"x and u must have one shape (..., dim), got {tuple(x.shape)} and {tuple(u.shape)}")
    if not 0 < max_angle <= pi:
        raise ConfigError(f"max_angle must lie in (0, pi], got {max_angle}")
    return geodesic_step(x, u, AngleMap(post=decay, max_angle=max_angle), backend=backend)


def geodesic_step(x: Tensor, u: Tensor, angles: AngleMap, h: float | Tensor = 1.0, backend: str = "auto") -> Tensor:
    """The update under any angle map. h scales the angle of the step: a tensor h takes the reference twin, which is
    differentiable forward and backward (d/dh at 0 is the velocity of the particle system)."""
    backend = choose(backend)
    if backend == "reference" or not isinstance(h, float) or h != 1.0:
        return reference(x, u, angles, h)
    return closed_form(x, u, angles)


def reference(x: Tensor, u: Tensor, angles: AngleMap, h: float | Tensor = 1.0) -> Tensor:
    """The textbook, in plain differentiable PyTorch: the truth that every fast path is compared with."""
    wide, update = upcast(x), upcast(u)
    wide = wide.to(torch.promote_types(wide.dtype, update.dtype))
    _, v = sphere.frame(wide, update)
    squared = sphere.dot(wide, wide)
    ratio = sphere.safe_sqrt(sphere.safe_divide(sphere.dot(v, v), squared))
    angle = angles(ratio)
    turn = h * angle
    # sin(turn) |x| v / |v| = turn sinc(turn) v / ratio, and angle / ratio stays finite where v vanishes
    quotient = torch.where(ratio == 0, angles.quotient_at_zero(), sphere.safe_divide(angle, ratio))
    quotient = torch.where(squared == 0, 0.0, quotient)
    return (torch.cos(turn) * wide + h * quotient * sphere.sinc(turn) * v).to(x.dtype)


def choose(backend: str) -> str:
    """Resolves `auto` (environment variable GEONORM_BACKEND, then the measured best) to a path."""
    if backend == "auto":
        backend = os.environ.get("GEONORM_BACKEND", "auto")
    if backend not in BACKENDS:
        raise ConfigError(unknown("backend", backend, BACKENDS))
    return "closed" if backend == "auto" else backend


def backends() -> dict[str, str]:
    """What `auto` takes here and why."""
    return {"auto": choose("auto"), "reason": "closed form: half the memory passes of autograd through the textbook"}
