"""The geodesic update as written, rows to try it on, and how far apart two results are."""

from collections.abc import Callable
from math import inf, pi

import torch
from torch import Tensor

from geonorm.ops import AngleMap
from geonorm.ops.angle import bias_softness

BACKENDS = ("closed", "reference")


def textbook(x: Tensor, u: Tensor, m: AngleMap) -> Tensor:
    """cos(a) x + sin(a) |x| v/|v|, as written."""
    c = (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True)
    v = u - c * x
    length, radius = v.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
    ratio = length / radius
    turn = m.pre * ratio if m.power == inf else m.power * torch.atan(m.pre * ratio / m.power)
    turn = m.gain * torch.minimum(turn, torch.tensor(m.max_angle, dtype=x.dtype))
    turn = turn + m.bias * ratio / (ratio**2 + bias_softness() ** 2) ** 0.5
    angle = torch.minimum(m.post * turn, torch.tensor(m.max_angle, dtype=x.dtype))
    return torch.cos(angle) * x + torch.sin(angle) * radius * v / length


def pair(
    seed: int = 0, count: int = 6, dim: int = 16, ratio: float = 1.0, radius: float = 1.0
) -> tuple[Tensor, Tensor]:
    """x of the given radius, u of |u| = ratio |x|, fp64, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    x, u = torch.randn(2, count, dim, generator=generator, dtype=torch.float64)
    x = radius * x / x.norm(dim=-1, keepdim=True)
    u = ratio * radius * u / u.norm(dim=-1, keepdim=True)
    return x.requires_grad_(), u.requires_grad_()


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def angle_between(x: Tensor, y: Tensor) -> Tensor:
    a, b = x / x.norm(dim=-1, keepdim=True), y / y.norm(dim=-1, keepdim=True)
    return 2 * torch.atan2((a - b).norm(dim=-1), (a + b).norm(dim=-1))


RATES: dict[str, Callable[[], float | Tensor]] = {
    **{str(rate): lambda rate=rate: rate for rate in (1.0, 0.25, 0.01, 2.5, 0.0, -0.4)},  # type: ignore[misc]
    "tensor": lambda: scalar(1 / 3).detach(),
    "learned": lambda: scalar(1 / 3),
}
CLAMPS = {"pi/8": pi / 8, "pi/4": pi / 4, "1.5": 1.5, "pi": pi}
MAPS: dict[str, Callable[[], AngleMap]] = {
    **{
        f"decay {rate}, at most {name}": lambda rate=rate, limit=limit: AngleMap(  # type: ignore[misc]
            post=RATES[rate](), max_angle=limit
        )
        for rate in RATES
        for name, limit in CLAMPS.items()
    },
    "plain": lambda: AngleMap(),
    "pre": lambda: AngleMap(pre=0.4),
    "pre tensor": lambda: AngleMap(pre=scalar(0.4)),
    "post": lambda: AngleMap(post=0.4),
    "gain": lambda: AngleMap(gain=scalar(1.3), post=0.5),
    "gain over the clamp": lambda: AngleMap(gain=scalar(1.3)),
    "affine": lambda: AngleMap(gain=scalar(0.8), bias=scalar(0.05), post=0.7),
    "bias": lambda: AngleMap(bias=0.1),
    "projection": lambda: AngleMap(power=1.0, post=0.5),
    "projection, update": lambda: AngleMap(power=1.0, pre=0.5, max_angle=1.2),
    "cayley": lambda: AngleMap(power=2.0, max_angle=pi / 8),
    "power 3.7": lambda: AngleMap(power=3.7, max_angle=2.5),
    "level": lambda: AngleMap(post=0.4, power=2.0).level(),
    "level, learned": lambda: AngleMap(pre=scalar(0.5), gain=1.2, power=1.0, max_angle=pi).level(),
    "everything": lambda: AngleMap(scalar(0.9), scalar(0.6), scalar(1.1), scalar(0.03), 0.7, 1.5),
}
