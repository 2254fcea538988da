"""NAG: a sub-layer turns the token by an angle of its own, whatever the length of its output; a gate may lessen it."""

from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import sphere
from ..decay import Schedule, schedule
from ..norms import NormSpec, autocast_device, upcast
from ..ops.angle import bias_softness
from ..settings import Positive, Range
from .base import About, Number, Placement, Site
from .registry import register


@register("nag")
@dataclass(frozen=True)
class NAG(Placement):
    """Norm-agnostic residual: the tangential part of the update, put at the length of the token, times a learned step
    and a gate.

    The paper keeps direction and log-radius apart ("norm lane"). Here the token's own length is that lane, which is the
    same function: each step makes it longer by sqrt(1 + a^2 m^2). The paper's gains on embedding and logits (its Eq.
    18) are not built: they could not be read.

    v/|v| is softened where the root mean square of v is near 0.001, as in `geonorm(update=unit)`. An output of 0 moves
    nothing, with a large but finite gradient.

    >>> layer = geonorm.Residual(torch.nn.Linear(8, 8), "nag(directions=4)", geonorm.Site(0, "mlp", 4), dim=8)
    >>> layer(torch.randn(2, 8)).shape
    torch.Size([2, 8])
    """

    about = About(
        equation="x + a m |x| v/|v|, v of u(N(x)) less its mean; m = (sum_c p_c sigmoid(w_c N(x) + b_c))^beta",
        source="Figliolia and Millidge 2026 (NAG), arXiv:2606.16112",
        claim="Gains over Transformers that grow with depth, and the loss of the full depth with 20 to 25 % of it "
        "skipped; a re-run of 10 layers, output matrices at 0 at first (erogol/BlaGPT), is worse by 0.036 to 0.061.",
        checked="its Eq. 3 to 15 and 23 as a third party's audit gives them (erogol/BlaGPT 4db7a0f), in fp64; 32 "
        "directions, std 0.02 of w and a fixed beta are that party's (the paper learns beta); no official code seen",
        lawless="gate and mean know directions of their own; for a gate held at m and v without mean, s = |v| / (a m), "
        "r' = 0",
    )

    decay: Schedule = field(default="sqrt", kw_only=True)
    """How the initial step falls with the number of the sub-layer, which counts attention and MLP apart."""
    alpha: Positive = field(default=1.0, kw_only=True)
    """Initial step of the first sub-layer: the tangent of its angle."""
    directions: Annotated[int, Range(1, 4096)] = field(default=32, kw_only=True)
    """Directions w_c that the gate looks for."""
    beta: Positive = field(default=1.0, kw_only=True)
    """Sharpness of the gate."""

    carries = True

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        number = int(site.number) + 1
        return {
            "input": norm(gains=False),
            "step": float(schedule(self.decay, self.alpha, number, site.total)),
            "modulator": Modulator(self.directions, norm.dim, number),
        }

    def read(self, x: Tensor, p: Any, site: Site) -> tuple[Tensor, Tensor]:
        y = p.input(x)
        return y, p.modulator(upcast(y)) ** self.beta

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Number = 1.0, carry: Any = None) -> Tensor:
        """carry is the gate m, (..., 1)."""
        wide, update = upcast(x), upcast(u)
        _, v = sphere.frame(wide, update - update.mean(-1, keepdim=True))
        rho, size = (y.square().mean(-1, keepdim=True) for y in (wide, v))
        return wide + h * p.step * carry * sphere.safe_sqrt(rho) * torch.rsqrt(size + bias_softness() ** 2) * v


def small_matrices(number: int, *shapes: tuple[int, int]) -> list[nn.Parameter]:
    """Normal matrices with standard deviation 0.02, drawn from the number of the sub-layer alone."""
    generator = torch.Generator().manual_seed(number)
    drawn = [torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32) for shape in shapes]
    place = torch.get_default_device(), torch.get_default_dtype()
    return [nn.Parameter((0.02 * matrix).to(*place)) for matrix in drawn]


class Modulator(nn.Module):
    """(..., dim) to (..., 1) in [0, 1]: sum_c softmax(share)_c sigmoid(w_c y + b_c), 1/2 at the start. The directions
    are normal with standard deviation 0.02, drawn from the number of the sub-layer alone, so that all other weights
    are drawn as in every scheme."""

    def __init__(self, directions: int, dim: int, number: int) -> None:
        super().__init__()
        (self.weight,) = small_matrices(number, (directions, dim))
        self.bias = nn.Parameter(torch.zeros(directions))
        self.share = nn.Parameter(torch.zeros(directions))

    def forward(self, y: Tensor) -> Tensor:
        with torch.autocast(autocast_device(y), enabled=False):  # a number per token stays wide
            seen = torch.sigmoid(F.linear(y, self.weight.to(y.dtype), self.bias.to(y.dtype)))
            return seen @ torch.softmax(self.share.to(y.dtype), -1).unsqueeze(-1)
