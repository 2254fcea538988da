"""Where particles start: (seeds, n, dim), a pure function of the seeds, the same numbers on every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import asin, sqrt

import torch
from torch import Tensor

from .. import sphere
from ..errors import ConfigError


def draw_normal(seed: int, *shape: int) -> Tensor:
    """Standard normal numbers in fp64, from the seed alone."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stack_seeds(seeds: Sequence[int], dtype: torch.dtype, one: Callable[[int], Tensor]) -> Tensor:
    if not seeds:
        raise ConfigError("no seeds: give at least one")
    return torch.stack([one(seed) for seed in seeds]).to(dtype)


def check_sizes(n: int, dim: int) -> None:
    if n < 1:
        raise ConfigError(f"there must be at least one particle, got n = {n}")
    if dim < 2:
        raise ConfigError(f"particles need dim >= 2 to turn at all, got {dim}")


def equiangular(
    n: int, dim: int, gamma: float = 0.0, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64
) -> Tensor:
    """n unit vectors with pairwise cosine gamma, in a random position per seed. Needs n <= dim, gamma >= -1/(n-1)."""
    check_sizes(n, dim)
    lowest = -1 / max(1, n - 1)
    if n > dim:
        raise ConfigError(f"{n} equiangular particles need dim >= {n}, got {dim}: fewer particles, or start uniform")
    if not lowest - 1e-12 <= gamma <= 1:
        raise ConfigError(f"gamma must lie in [-1/(n-1), 1] = [{lowest:g}, 1], got {gamma}")
    apart = sqrt(max(0.0, 1 - gamma))
    shared = (sqrt(max(0.0, apart**2 + n * gamma)) - apart) / n
    corner = apart * torch.eye(n, dtype=torch.float64) + shared

    def one(seed: int) -> Tensor:
        frame, _ = torch.linalg.qr(draw_normal(seed, dim, n))
        return corner @ frame.mT

    return stack_seeds(seeds, dtype, one)


def uniform(n: int, dim: int, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64) -> Tensor:
    """Independent, uniform on the unit sphere."""
    check_sizes(n, dim)

    def one(seed: int) -> Tensor:
        x = draw_normal(seed, n, dim)
        return x / sphere.radius(x)

    return stack_seeds(seeds, dtype, one)


def gaussian(n: int, dim: int, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64) -> Tensor:
    """Independent N(0, 1/dim) per coordinate: uniform directions, radii that vary about 1 by 1/sqrt(2 dim).

    Only a scheme that keeps its embedding as it is (`pre(entry=embedding)`) sees the radii."""
    check_sizes(n, dim)
    return stack_seeds(seeds, dtype, lambda seed: draw_normal(seed, n, dim) / sqrt(dim))


def cone(
    n: int, dim: int, delta: float = 0.1, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64
) -> Tensor:
    """Uniform in a cap so narrow that every pairwise cosine is at least 1 - delta; 0 < delta <= 2.

    Angles from the axis are drawn as in a flat ball of dimension dim - 1, which for narrow caps is the uniform measure.
    """
    check_sizes(n, dim)
    if not 0 < delta <= 2:
        raise ConfigError(f"delta must lie in (0, 2], got {delta}")
    widest = asin(sqrt(delta / 2))  # half the angle whose cosine is 1 - delta

    def one(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        axis = torch.randn(dim, generator=generator, dtype=torch.float64)
        axis = axis / axis.norm()
        away = sphere.tangent(axis, torch.randn(n, dim, generator=generator, dtype=torch.float64))
        share = torch.rand(n, 1, generator=generator, dtype=torch.float64) ** (1 / (dim - 1))
        return sphere.exp(axis.expand(n, dim), widest * share * away / sphere.radius(away))

    return stack_seeds(seeds, dtype, one)


STARTS: dict[str, Callable[..., Tensor]] = {
    "equiangular": equiangular,
    "uniform": uniform,
    "gaussian": gaussian,
    "cone": cone,
}
