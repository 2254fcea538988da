"""Where particles start: (seeds, n, dim), a pure function of the seeds, the same numbers on every device."""

from collections.abc import Callable, Sequence
from math import asin, sqrt

import torch
from torch import Tensor

from .. import sphere
from ..errors import require


def draw_starts(seeds: Sequence[int], dtype: torch.dtype, one: Callable[[torch.Generator], Tensor]) -> Tensor:
    """(seeds, n, dim): `one` for each seed, by a generator of that seed."""
    return torch.stack([one(torch.Generator().manual_seed(seed)) for seed in seeds]).to(dtype)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def equiangular(
    n: int, dim: int, gamma: float = 0.0, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64
) -> Tensor:
    """n unit vectors with pairwise cosine gamma, in a random position per seed. Needs n <= dim, gamma >= -1/(n-1).

    >>> x = geonorm.dynamics.equiangular(3, 8, gamma=0.5)[0]
    >>> (x @ x.mT)[0].round(decimals=6)
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    lowest = -1 / max(1, n - 1)
    require(n <= dim, f"{n} equiangular particles need dim >= {n}, got {dim}: fewer particles, or start uniform")
    require(lowest - 1e-12 <= gamma <= 1, f"gamma must lie in [-1/(n-1), 1] = [{lowest:g}, 1], got {gamma}")
    apart = sqrt(max(0.0, 1 - gamma))
    shared = (sqrt(max(0.0, apart**2 + n * gamma)) - apart) / max(1, n)
    corner = apart * torch.eye(n, dtype=torch.float64) + shared
    return draw_starts(seeds, dtype, lambda generator: corner @ torch.linalg.qr(normal(generator, dim, n))[0].mT)


def uniform(n: int, dim: int, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64) -> Tensor:
    """Independent, uniform on the unit sphere.

    >>> geonorm.dynamics.uniform(4, 3, seeds=range(2)).norm(dim=-1).round(decimals=6).unique()
    tensor([1.], dtype=torch.float64)
    """

    x = draw_starts(seeds, torch.float64, lambda generator: normal(generator, n, dim))
    return (x / sphere.radius(x)).to(dtype)


def gaussian(n: int, dim: int, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64) -> Tensor:
    """Independent N(0, 1/dim) per coordinate: uniform directions, radii that vary about 1 by 1/sqrt(2 dim).

    Only a scheme that keeps its embedding as it is (`pre(entry=embedding)`) sees the radii.

    >>> geonorm.dynamics.gaussian(4, 3, seeds=range(2)).shape
    torch.Size([2, 4, 3])
    """
    return draw_starts(seeds, dtype, lambda generator: normal(generator, n, dim) / sqrt(dim))


def cone(
    n: int, dim: int, delta: float = 0.1, *, seeds: Sequence[int] = (0,), dtype: torch.dtype = torch.float64
) -> Tensor:
    """Uniform in a cap so narrow that every pairwise cosine is at least 1 - delta; 0 < delta <= 2.

    Angles from the axis are drawn as in a flat ball of dimension dim - 1, which for narrow caps is the uniform measure.

    >>> x = geonorm.dynamics.cone(5, 3, delta=0.01)[0]
    >>> bool(((x @ x.mT) >= 0.99).all())
    True
    """
    widest = asin(sqrt(delta / 2))  # half the angle whose cosine is 1 - delta

    def one(generator: torch.Generator) -> Tensor:
        axis = normal(generator, dim)
        axis = axis / axis.norm()
        away = sphere.tangent(axis, normal(generator, n, dim))
        share = torch.rand(n, 1, generator=generator, dtype=torch.float64) ** (1 / (dim - 1))
        return sphere.exp(axis.expand(n, dim), widest * share * away / sphere.radius(away))

    return draw_starts(seeds, dtype, one)


STARTS: dict[str, Callable[..., Tensor]] = {
    "equiangular": equiangular,
    "uniform": uniform,
    "gaussian": gaussian,
    "cone": cone,
}
