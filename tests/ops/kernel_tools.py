"""What the checks of the kernels share: inputs, the truth in fp64, and how far from it a result may be."""

from math import pi

import torch
from torch import Tensor

from geonorm.ops import AngleMap, geodesic_step

HALF = (torch.bfloat16, torch.float16)


def maps(device: str) -> dict[str, AngleMap]:
    """Every kind of map that the kernels have."""
    rate = torch.tensor(0.4, device=device)
    return {
        "plain": AngleMap(),
        "post tensor": AngleMap(post=rate),
        "post negative": AngleMap(post=-0.4),
        "post over one": AngleMap(post=2.5, max_angle=pi),
        "clamp": AngleMap(post=rate, max_angle=pi / 8),
        "one angle": AngleMap(power=2.0, post=0.4).level(),
        "one angle, post tensor": AngleMap(post=rate, max_angle=pi).level(),
        "one angle, post over one": AngleMap(power=1.0, post=2.5).level(),
    }


def sample(rows: int, dim: int, device: str, types: tuple[torch.dtype, ...] = (torch.float32,) * 2) -> list[Tensor]:
    """x, u and an incoming gradient; |u| / |x| runs from 0.01 to 50 over the rows."""
    generator = torch.Generator().manual_seed(rows * 1009 + dim)
    x, u, grad = torch.randn(3, rows, dim, generator=generator, dtype=torch.float64)
    u = u * torch.logspace(-2, 1.7, rows, dtype=torch.float64)[:, None]
    return [t.to(dtype).to(device) for t, dtype in ((x, types[0]), (u, types[1]), (grad, types[0]))]


def special_rows(x: Tensor, u: Tensor) -> None:
    """Of the first rows: x = 0, both 0, u = 0; u along x, and long against it."""
    x[0] = x[1] = u[1] = u[2] = 0
    u[3], u[4] = x[3], -1e4 * x[4]


def run(x: Tensor, u: Tensor, grad: Tensor, angles: AngleMap, backend: str = "auto") -> tuple[Tensor, ...]:
    """x', dx and du."""
    a, b = x.detach().requires_grad_(), u.detach().requires_grad_()
    out = geodesic_step(a, b, angles, backend=backend)
    return out.detach(), *torch.autograd.grad(out, (a, b), grad)


def truth(x: Tensor, u: Tensor, grad: Tensor, angles: AngleMap) -> tuple[Tensor, ...]:
    return run(x.double(), u.double(), grad.double(), angles, "reference")


def row_error(found: Tensor, true: Tensor) -> float:
    """Largest error of a row in units of that row."""
    difference = (found.double() - true.double()).norm(dim=-1)
    return (difference / true.double().norm(dim=-1).clamp(min=1e-300)).max().item()


def largest_error(found: Tensor, true: Tensor) -> float:
    """Largest error of a row in units of the largest row: for gradients, whose rows may cancel."""
    difference = (found.double() - true.double()).norm(dim=-1).max()
    return (difference / true.double().norm(dim=-1).max().clamp(min=1e-300)).item()


def within_an_ulp(found: Tensor, true: Tensor) -> bool:
    """At most one unit in the last place from the fp64 result, rounded; 1e-6 of the row where the number is tiny."""
    rounded = true.to(found.dtype).double()
    ulp = torch.finfo(found.dtype).eps * 2.0 ** torch.floor(torch.log2(rounded.abs().clamp(min=1e-30)))
    small = 1e-6 * true.norm(dim=-1, keepdim=True)
    return bool(((found.double() - rounded).abs() <= ulp + small).all())


def compare(found: tuple[Tensor, ...], true: tuple[Tensor, ...]) -> None:
    out, dx, du = found
    if out.dtype in HALF:
        assert within_an_ulp(out, true[0]), "out is more than an ulp off"
    else:
        assert row_error(out, true[0]) < 1e-6, f"out {row_error(out, true[0]):.1e}"
    for name, a, b in (("dx", dx, true[1]), ("du", du, true[2])):
        limit = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(a.dtype, 2e-6)
        assert largest_error(a, b) < limit, f"{name} {largest_error(a, b):.1e}"
