"""The drop-in module: a sub-layer under a residual scheme."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .errors import ConfigError, require
from .norms import NormSpec, autocast_device, is_transformed
from .ops import fused_write, geodesic_step
from .schemes import Parts, Scheme, Site, parse, read_at, write_at
from .schemes.base import normalise_update

__all__ = ["Residual"]

HALF = (torch.bfloat16, torch.float16)
Reading = tuple[Tensor, Any]
"""What `read_at` returns: the branch's input, and what the scheme carries from the same look at x to its write."""


class Residual(nn.Module):
    """Runs `branch` under `scheme` at `site`: read, branch, write.

        self.attention = Residual(Attention(...), "geonorm", Site(layer, "attn", depth), dim)
        x = self.attention(x, mask=mask)

    branch: any module from (..., dim) to (..., dim), of three such inputs under `attnres(queries=qkv)`; keyword
    arguments of the forward pass go to it. If it returns a
    tuple, its first entry is the update and the rest is handed back beside the new stream. x is the residual stream,
    (..., dim), or (..., streams, dim) for schemes with several; it keeps its dtype. The branch reads the dtype of its
    own parameters. norm, gains, eps, norm_bias say what N is (see norms.py). Raises ConfigError for an unknown scheme
    or norm, and for a stream of another shape than the scheme's.

    Two residuals that follow one another within a block may be joined, so that a fused kernel writes the stream and
    what is read of it next in one pass; the numbers are those of one after the other:

        x, reading = self.attention(x, then=self.mlp, mask=mask)
        x = self.mlp(x, reading=reading)

    >>> attention = geonorm.Residual(torch.nn.Linear(64, 64), "geonorm", geonorm.Site(0, "attn", 12), dim=64)
    >>> x = torch.randn(2, 10, 64)
    >>> attention(x).shape
    torch.Size([2, 10, 64])
    """

    layer: Tensor

    def __init__(
        self,
        branch: nn.Module,
        scheme: str | Scheme,
        site: Site,
        dim: int,
        norm: str = "rms",
        gains: bool = True,
        eps: float = 1e-6,
        norm_bias: bool = True,
    ) -> None:
        super().__init__()
        require(isinstance(branch, nn.Module), f"the branch must be a torch.nn.Module, got {type(branch).__name__}")
        require(
            isinstance(site, Site) and site.kind not in ("entry", "exit"),
            f"the site must be a geonorm.Site, such as Site(0, 'attn', 12), got {site!r}",
        )
        self.branch = branch
        self.scheme = parse(scheme).resolve(site)
        self.dim = dim
        self.index, self.kind, self.depth = int(site.layer), site.kind, site.depth
        self.sublayers = site.sublayers
        self.own = Parts(self.scheme, site, NormSpec(norm, dim, gains, eps, norm_bias))
        # a tensor, so that all layers share one compiled graph; persistent, so that it survives loading and to_empty
        self.register_buffer("layer", torch.tensor(self.index))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A state dict brings weights, and never moves them to another block: copied from block to block, or into a
        deeper model, they act where they now are."""
        stored = state_dict.get(key := f"{prefix}layer")
        if isinstance(stored, Tensor):
            state_dict[key] = torch.full_like(stored, self.index)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def reset_parameters(self) -> None:
        """Restores the scheme's norms, scalars and the layer index; the branch is not touched."""
        self.layer.fill_(self.index)
        self.own.reset_parameters()

    def site(self, x: Tensor) -> Site:
        """Where this stands, with the layer as a 0-d tensor in the precision of the maths on x where a compiler or a
        transform looks on, else as a number: converting the tensor costs as much as adding two tokens."""
        if not (torch.compiler.is_compiling() or is_transformed()):
            return self.place()
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        return Site(self.layer.to(dtype), self.kind, self.depth, self.sublayers)

    def place(self) -> Site:
        """Where this stands, with plain integers."""
        return Site(self.index, self.kind, self.depth, self.sublayers)

    def forward(self, x: Tensor, *, reading: Reading | None = None, then: Residual | None = None, **kwargs: Any) -> Any:
        """The stream after the site, x like x. `reading` is what the residual before this one handed over; with `then`,
        the residual that comes next, the result is (x, its reading): under FSDP2 both stand in one unit."""
        if not x.is_floating_point() or x.shape[-1:] != (self.dim,):
            raise ConfigError(f"the stream must be floats (..., {self.dim}), got {tuple(x.shape)} of {x.dtype}")
        streams = self.scheme.streams
        if streams > 1 and (x.dim() < 2 or x.shape[-2] != streams):
            raise ConfigError(
                f"{self.scheme} carries {streams} streams: x must be (..., {streams}, dim), as its `enter` makes it, "
                f"got {tuple(x.shape)}"
            )
        p, site = self.own(), self.site(x)
        y, carry = read_at(self.scheme, x, p, site) if reading is None else reading
        inputs = y if isinstance(y, tuple) else (y,)
        y = inputs[0]
        out = self.branch(*(each.to(self.compute_dtype(y)) for each in inputs), **kwargs)
        u, rest = (out[0], out[1:]) if isinstance(out, tuple) else (out, ())
        if not isinstance(u, Tensor) or u.shape != y.shape:
            got = tuple(u.shape) if isinstance(u, Tensor) else type(u).__name__
            raise ConfigError(f"the branch must return a tensor like its input, {tuple(y.shape)}, got {got}")
        x, reading = self.write(x, u, p, site, carry, then)
        if then is not None:
            return x, reading, *rest
        return (x, *rest) if isinstance(out, tuple) else x

    def write(
        self, x: Tensor, u: Tensor, p: Any, site: Site, carry: Any, then: Residual | None
    ) -> tuple[Tensor, Reading | None]:
        """The stream after the update u, and what the residual that comes next reads of it. A geodesic step takes u as
        it is; that or a weighted sum, with a plain read after it, is one fused operation."""
        next_parts = None if then is None else then.own()
        plain = then is not None and type(then.scheme).read is Scheme.read
        dtype = then.compute_dtype(x) if then is not None and plain else None  # None: nothing is read in this pass
        angles = self.scheme.angles(p, site)
        if angles is not None and hasattr(p, "output"):
            u = normalise_update(u.to(x.dtype), p)
        written = fused_write(
            x,
            u,
            partial(self.scheme.offer, p, site) if angles is None else angles,
            dtype,
            getattr(next_parts, "input", None),
        )
        if written is not None:
            x, y = written
            if plain:
                return x, (y, None)
        elif angles is not None:
            x = geodesic_step(x, u, angles)
        else:
            x = write_at(self.scheme, x, u, p, site, carry=carry)
        return x, None if then is None else read_at(then.scheme, x, next_parts, then.site(x))

    def compute_dtype(self, y: Tensor) -> torch.dtype:
        """What the branch's matrix products want to read: autocast's dtype, else that of its parameters."""
        if torch.is_autocast_enabled(device := autocast_device(y)):
            return torch.get_autocast_dtype(device)
        return matrix_dtype(self.branch) or y.dtype

    def extra_repr(self) -> str:
        return f"{self.scheme}, layer={self.index}, kind={self.kind}, depth={self.depth}"


class StreamEnd(nn.Module):
    """Entry to the residual stream or exit from it, as the scheme at that end defines it.

    The site's kind is entry or exit; norm says what N is. The entry takes embeddings (..., dim) to the start of the
    stream, the exit takes its end to what the head reads, (..., dim).
    """

    def __init__(self, scheme: str | Scheme, site: Site, norm: NormSpec) -> None:
        super().__init__()
        self.scheme = parse(scheme).resolve(site)
        self.site = site
        self.own = Parts(self.scheme, site, norm)

    def forward(self, x: Tensor) -> Tensor:
        move = self.scheme.enter if self.site.kind == "entry" else self.scheme.exit
        return move(x, self.own(), self.site)


def matrix_dtype(module: nn.Module) -> torch.dtype | None:
    """The dtype of a module's floating parameters, half precision where any has it: routers, sinks and norms may stay
    in fp32 beside it. It is looked up in every pass, because loading, sharding and people put other tensors and modules
    in its place; `parameters()` would take several times as long."""
    first = None
    for parameter in module._parameters.values():
        if parameter is not None and parameter.is_floating_point():
            first = first or parameter.dtype
            if parameter.dtype in HALF:
                return parameter.dtype
    for child in module._modules.values():
        dtype = None if child is None else matrix_dtype(child)
        if dtype in HALF:
            return dtype
        first = first or dtype
    return first
