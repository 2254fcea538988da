"""What hyper-connections of every kind have in common: several streams, between which a sub-layer is connected anew."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from torch import Tensor

from ..norms import upcast
from ..settings import Range
from .base import Copied, Number, Site


@dataclass(frozen=True)
class Connected(Copied):
    """n streams that start as copies and leave as their sum. What `read` carries says what becomes of them, (..., n,
    dim), and what each receives of the sub-layer's output, (..., n)."""

    carries = True

    n: Annotated[int, Range(2)] = field(default=4, kw_only=True)
    """Streams."""

    @property
    def streams(self) -> int:  # type: ignore[override]
        return self.n

    def first(self, site: Site) -> int:
        """The stream that a sub-layer reads most at the start: the k-th of the network stream k mod n."""
        return int(site.number) % self.n

    def exit(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return super().exit(x.sum(-2), p, site)

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, carry: Any = None) -> Tensor:
        rest, share = carry
        after: Tensor = rest + share.unsqueeze(-1) * u.unsqueeze(-2)
        return after if isinstance(h, float) and h == 1.0 else x + h * (after - x)

    def seen(self, x: Tensor) -> Tensor:
        """The mean of the streams: the direction that leaves, and at the start the stream of Pre-Norm."""
        return upcast(x).mean(-2)
