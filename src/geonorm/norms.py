"""The normaliser N, in every kind that a scheme may ask for.

All kinds compute in fp32 (fp64 for fp64 inputs), multiply by their gains in that precision and cast once at the end to
the dtype of the input. `eps` is added to the mean square (rms, layer), never to a root.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, pi
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad

from .errors import ConfigError, unknown


def upcast(x: Tensor) -> Tensor:
    """x in the precision of the maths: fp64 stays, everything else becomes fp32."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def is_transformed() -> bool:
    """True under torch.func (vmap, grad, jvp, ...), compiled or not, and in forward mode. Custom backward passes and
    Python numbers do not work there; the textbook does."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def autocast_device(x: Tensor) -> str:
    """The type of x's device as autocast knows it: meta has none of its own and counts as the CPU."""
    return "cpu" if x.is_meta else x.device.type


@torch.no_grad()
def copy_whole(tensor: Any, whole: Tensor) -> None:
    """Copies a whole tensor into one of which this rank may hold a part alone, a DTensor."""
    if not hasattr(tensor, "__create_chunk_list__"):
        tensor.copy_(whole)
        return
    for chunk in tensor.__create_chunk_list__():
        part = tuple(slice(at, at + n) for at, n in zip(chunk.offsets, chunk.sizes, strict=True))
        tensor.to_local().copy_(whole[part])


class Norm(nn.Module):
    """What all kinds share: gains of one and biases of zero, where there are, and one cast at the end."""

    biased = False
    """True for a kind that has a bias beside its gains by default."""
    scalars: ClassVar[Mapping[str, float]] = {}
    """Learned numbers with their initial values; they stand before gains and bias in the order of parameters."""

    def __init__(self, dim: int, gains: bool = True, eps: float = 1e-6, bias: bool = True) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        for name, start in self.scalars.items():
            self.register_parameter(name, nn.Parameter(torch.tensor([start])))
        self.weight = nn.Parameter(torch.ones(dim)) if gains else None
        self.bias = nn.Parameter(torch.zeros(dim)) if gains and bias and self.biased else None

    def reset_parameters(self) -> None:
        starts = {**self.scalars, "weight": 1.0, "bias": 0.0}
        for name, parameter in self.named_parameters(recurse=False):
            if name in starts:
                nn.init.constant_(parameter, starts[name])

    def forward(self, x: Tensor) -> Tensor:
        wide = upcast(x)
        weight, bias = (None if p is None else p.to(wide.dtype) for p in (self.weight, self.bias))
        return self.normalise(wide, weight, bias).to(x.dtype)

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        raise NotImplementedError(f"{type(self).__name__} must say what N(x) is")


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps), times gains (arXiv:1910.07467): radius sqrt(dim).

    >>> RMSNorm(2)(torch.tensor([3.0, 4.0])).detach()  # divided by sqrt((9 + 16) / 2)
    tensor([0.8485, 1.1314])
    """

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.rms_norm(x, (self.dim,), weight, self.eps)


class LayerNorm(Norm):
    """(x - mean) / sqrt(var + eps), times gains plus bias, where there are (arXiv:1607.06450).

    >>> LayerNorm(2)(torch.tensor([3.0, 4.0])).detach().round()  # of two numbers it keeps which is larger
    tensor([-1.,  1.])
    """

    biased = True

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(x, (self.dim,), weight, bias, self.eps)


class DyT(Norm):
    """tanh(a x) times gains plus bias, with one learned scalar a = 0.5 at the start (arXiv:2503.10622).

    The general form of the paper. Its LLaMA variant, which is not built here, has no bias, starts a higher at attention
    than at MLP and head (width 4096: 0.8 and 0.2; 5120: 0.6 and 0.15; 8192: 0.2 and 0.05), and multiplies the embedding
    by a learned scalar that starts at sqrt(dim); here the entry of the stream is the scheme's.
    """

    biased = True

    scalars: ClassVar = {"slope": 0.5}
    slope: nn.Parameter

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y = self.bend(x)
        if weight is None:
            return y
        return y * weight if bias is None else torch.addcmul(bias, y, weight)

    def bend(self, x: Tensor) -> Tensor:
        return torch.tanh(self.slope.to(x.dtype) * x)


class Derf(DyT):
    """erf(a x + s) times gains plus bias, with learned scalars a = 0.5 and s = 0 at the start (arXiv:2512.10938). The
    official language model starts a at 1 and multiplies the embedding by a learned scalar that starts at sqrt(dim)."""

    scalars: ClassVar = {"slope": 0.5, "shift": 0.0}
    shift: nn.Parameter

    def bend(self, x: Tensor) -> Tensor:
        return torch.erf(self.slope.to(x.dtype) * x + self.shift.to(x.dtype))


class GatedNorm(Norm):
    """y = RMSNorm(x), times sigmoid(B silu(A y)) with a gate of rank 16 (arXiv:2601.22966, Section 3.4). B is 0 at the
    start, so that the gate is 1/2. Without gains there is no gate either.

    A is normal with standard deviation 1/sqrt(dim), drawn alike in every norm of that width, so that all other weights
    are drawn as with other norms. The paper's own initial values could not be read; those of BlaGPT have B = 0, too.
    """

    RANK = 16

    def __init__(self, dim: int, gains: bool = True, eps: float = 1e-6, bias: bool = True) -> None:
        super().__init__(dim, gains, eps, bias)
        self.down = nn.Parameter(torch.empty(self.RANK, dim)) if gains else None
        self.up = nn.Parameter(torch.empty(dim, self.RANK)) if gains else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        super().reset_parameters()
        if self.down is not None and self.up is not None:
            drawn = torch.randn(self.RANK, self.dim, generator=torch.Generator().manual_seed(self.dim), device="cpu")
            copy_whole(self.down, drawn * self.dim**-0.5)
            self.up.zero_()

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y = F.rms_norm(x, (self.dim,), weight, self.eps)
        if self.down is None or self.up is None:
            return y
        with torch.autocast(autocast_device(x), enabled=False):  # norms stay wide
            return y * torch.sigmoid(F.silu(y @ self.down.to(x.dtype).T) @ self.up.to(x.dtype).T)


class TaperNorm(Norm):
    """g RMSNorm(x) + (1 - g) c v x, which ends as the linear map c v x that the next matrix can absorb
    (arXiv:2602.10408, for RMSNorm). The gate g is 1 up to optimizer step `start`, and falls to 0 at step `end` by a
    cosine.

    Up to `start`, c = E[|w x|^2 / rms(x)] / E[|w x|^2] follows the tokens of all passes in training, by a moving
    average over optimizer steps with decay 0.99, and v follows the gains w. Then c is fixed, and v is learned apart.

    `advance` counts a step and takes in its tokens, those of all micro-batches and ranks; all ranks have to call it,
    and DDP needs `broadcast_buffers=False`. A pass only adds to `sums`: made again by recomputation, it changes no
    mean. All of it is saved with the model. Train in fp32 or under autocast: averages in bf16 are coarse. The paper's
    auxiliary loss, which it needs in place of the last norm too, is not built.
    """

    start, end = 1000, 10000
    """Optimizer steps: the last with g = 1, the first with g = 0."""
    done: Tensor
    sums: Tensor
    averages: Tensor

    def __init__(self, dim: int, gains: bool = True, eps: float = 1e-6, bias: bool = True) -> None:
        super().__init__(dim, gains, eps, bias)
        self.linear = nn.Parameter(torch.ones(dim)) if gains else None
        self.register_buffer("done", torch.tensor(0))
        self.register_buffer("sums", torch.zeros(3))  # of |w x|^2 / rms(x), |w x|^2 and 1 over tokens since `advance`
        self.register_buffer("averages", torch.zeros(2))  # of the first two, for a token

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for tensor in (self.done, self.sums, self.averages):
            tensor.zero_()
        if self.linear is not None:
            nn.init.ones_(self.linear)

    @property
    def gate(self) -> Tensor:
        """g of the next forward pass, a tensor of one number."""
        return (1 + torch.cos(pi * (self.done - self.start).div(max(self.end - self.start, 1)).clamp(0, 1))) / 2

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        if self.training and torch.is_grad_enabled() and not is_transformed():
            with torch.no_grad():
                rms = (x.square().mean(-1) + self.eps).sqrt()
                energy = (x if weight is None else x * weight).square().sum(-1)
                self.sums += torch.stack((energy / rms, energy, torch.ones_like(rms))).reshape(3, -1).sum(1)
        above, below = self.averages.to(x.dtype)
        scale, gate = torch.where(below > 0, above / below, 1.0), self.gate.to(x.dtype)
        v = 1.0 if self.linear is None else self.linear.to(x.dtype)
        return gate * F.rms_norm(x, (self.dim,), weight, self.eps) + (1 - gate) * scale * v * x

    @torch.no_grad()
    def advance(self, steps: int = 1) -> None:
        """That many optimizer steps more, over the tokens seen since the last call."""
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(self.sums)
        warming, tokens = self.done < self.start, self.sums[2]
        follow = torch.lerp(self.averages, self.sums[:2] / tokens, 1 - 0.99**steps)
        self.averages.copy_(torch.where(warming & (tokens > 0), follow, self.averages))
        if self.linear is not None and self.weight is not None:
            self.linear.copy_(torch.where(warming, self.weight, self.linear))
        self.sums.zero_()
        self.done += steps


class UnitNorm(Norm):
    """x / |x|: radius 1; eps is added to |x|^2. With eps = 0 a row that is 0, or so short that its square is no normal
    number (as in `sphere`), becomes 0, with gradient 0.

    >>> UnitNorm(2, gains=False, eps=0.0)(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    def __init__(self, dim: int, gains: bool = False, eps: float = 0.0, bias: bool = False) -> None:
        super().__init__(dim, gains, eps, bias)

    def normalise(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        squared = (x * x).sum(-1, keepdim=True) + self.eps
        # not times the inverse root, whose slope, |x|^-3, overflows for tokens that are not that short
        y = x / torch.where(squared < torch.finfo(x.dtype).tiny, inf, squared).sqrt()
        return y if weight is None else y * weight


NORMS = {
    "rms": RMSNorm,
    "layer": LayerNorm,
    "dyt": DyT,
    "derf": Derf,
    "gated": GatedNorm,
    "taper": TaperNorm,
    "unit": UnitNorm,
    "none": nn.Identity,  # what is left of a scheme when its normaliser is taken away
}


@dataclass(frozen=True)
class NormSpec:
    """What N means in a model. Called, it builds one: `norm()`, `norm(gains=False)`, `norm(kind="unit")`."""

    kind: str
    dim: int
    gains: bool = True
    eps: float = 1e-6
    bias: bool = True
    """Only for kinds that have one."""

    def __post_init__(self) -> None:
        if self.kind not in NORMS:
            raise ConfigError(unknown("norm", self.kind, NORMS))

    def __call__(self, **changes: object) -> nn.Module:
        spec = replace(self, **changes)  # type: ignore[arg-type]
        return NORMS[spec.kind](spec.dim, spec.gains, spec.eps, spec.bias)
