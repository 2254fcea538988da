"""The residual stream of a model, whatever enters it and whatever is asked of its end.

    front -> enter -> L x (attention residual, MLP residual) -> exit -> head

or one residual per block around attention and MLP side by side. No layer knows which scheme it runs under.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import NormSpec
from ..residual import Residual
from ..schemes import Parts, Scheme, Site, belongs_to_scheme, parse, restore
from .attention import LayerCache, Rope, SelfAttention
from .config import TrunkConfig
from .mlp import MLP
from .roles import draw_weight, matrices
from .values import Handing


class End(nn.Module):
    """Entry to or exit from the residual stream, as the scheme at that end defines it."""

    def __init__(self, scheme: Scheme, site: Site, norm: NormSpec) -> None:
        super().__init__()
        self.scheme = scheme.resolve(site)
        self.site = site
        self.own = Parts(self.scheme, site, norm)

    def forward(self, x: Tensor) -> Tensor:
        move = self.scheme.enter if self.site.kind == "entry" else self.scheme.exit
        return move(x, self.own(), self.site)


def norm_of(config: TrunkConfig) -> NormSpec:
    """What N means in this model."""
    c = config
    return NormSpec(c.norm, c.width, c.gains, c.eps, c.norm_bias)


def under(branch: nn.Module, scheme: Scheme, site: Site, config: TrunkConfig) -> Residual:
    """The branch under the scheme, with the norms of this model."""
    c = config
    return Residual(branch, scheme, site, c.width, c.norm, c.gains, c.eps, c.norm_bias)


class Block(nn.Module):
    """One layer: an attention residual, then an MLP residual. Keyword arguments go to the attention."""

    attention = SelfAttention
    """The class of the attention; another way to attend is a subclass."""
    attn: Residual
    mlp: Residual

    def __init__(self, config: TrunkConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        for kind, make in (("attn", self.attention), ("mlp", MLP)):
            site = Site(layer, kind, config.layers)
            setattr(self, kind, under(make(config, scheme.resolve(site), site), scheme, site, config))

    def forward(self, x: Tensor, **attention: Any) -> Any:
        """The stream; behind it what attention returned beside its update, if anything."""
        x, reading, *beside = self.attn(x, then=self.mlp, **attention)
        out: Tensor = self.mlp(x, reading=reading)
        return (out, *beside) if beside else out


class Parallel(nn.Module):
    """Attention and MLP on the same y, their outputs added: (batch, tokens, width) to the same, one update.

    This is GPT-J's layer under `pre`. GPT-NeoX normalises y once for each with gains and biases of their own: the same
    function, with those of one folded into the matrices behind it, W (g y + b) = (W g) y + W b.
    """

    def __init__(
        self, config: TrunkConfig, scheme: Scheme, site: Site, attention: type[SelfAttention] = SelfAttention
    ) -> None:
        super().__init__()
        self.attn = attention(config, scheme, site)
        self.mlp = MLP(config, scheme, site)

    def forward(self, y: Tensor, **attention: Any) -> Any:
        u = self.attn(y, **attention)
        u, *beside = u if isinstance(u, tuple) else (u,)
        out: Tensor = u + self.mlp(y)
        return (out, *beside) if beside else out


class ParallelBlock(nn.Module):
    """One layer: one residual around attention and MLP, its site kind `parallel`."""

    attention = SelfAttention

    def __init__(self, config: TrunkConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        site = Site(layer, "parallel", config.layers)
        branch = Parallel(config, scheme.resolve(site), site, self.attention)
        self.both = under(branch, scheme, site, config)

    def forward(self, x: Tensor, **attention: Any) -> Any:
        """As `Block`."""
        return self.both(x, **attention)


IGNORED = -100
"""The target where there is nothing to predict."""
BLOCKS = {"sequential": Block, "parallel": ParallelBlock}


class Trunk(nn.Module):
    """The body that all models share: entry, blocks, exit. A model says what stands in front of it (`add_front`) and
    behind it (`add_head`), and its forward pass leads through `run_blocks`.

    Weights are drawn at construction from torch's global generator, in one order for all schemes, so that one seed
    gives every scheme the same draws; biases start at 0.
    """

    config: TrunkConfig
    head: nn.Linear

    def __init__(self, config: TrunkConfig) -> None:
        super().__init__()
        self.config = c = config
        self.scheme = parse(c.scheme)
        norm = norm_of(c)
        self.add_front(norm)
        self.add_stream(norm)
        self.add_head()
        schemes = (self.entry.scheme, self.exit.scheme, *(residual.scheme for _, residual in self.residuals()))
        self.constrained = any(scheme.constrains for scheme in schemes)
        self.reset_parameters()

    def add_front(self, norm: NormSpec) -> None:
        """Makes what turns inputs into vectors."""
        raise NotImplementedError(f"{type(self).__name__} must say what stands in front of the stream")

    def add_stream(self, norm: NormSpec) -> None:
        """Makes the stream from its entry to its exit."""
        c = self.config
        self.entry = End(self.scheme, Site(0, "entry", c.layers, c.sublayers), norm)
        self.blocks = nn.ModuleList(BLOCKS[c.block](c, self.scheme, layer) for layer in range(c.layers))
        self.exit = End(self.scheme, Site(c.layers - 1, "exit", c.layers, c.sublayers), norm)

    def add_head(self) -> None:
        """Makes what turns the end of the stream into logits: `head`, and what stands around it."""
        raise NotImplementedError(f"{type(self).__name__} must say what stands behind the stream")

    def share_weights(self) -> None:
        """Makes one tensor of weights that the model has in two places."""

    def ends(self) -> list[nn.Module]:
        """What holds the matrices outside the blocks, in front of them and behind; none where it is one matrix."""
        raise NotImplementedError(f"{type(self).__name__} must say what holds its outer matrices")

    def run_blocks(
        self, x: Tensor, positions: Rope | None, values: Handing, cache: list[LayerCache] | None = None
    ) -> Tensor:
        """The stream behind all blocks."""
        for layer, block in enumerate(self.blocks):
            out = block(x, positions=positions, cache=cache[layer] if cache else None, values=values.to(layer))
            x = values.stream(out)
        return x

    def residuals(self) -> Iterator[tuple[Site, Residual]]:
        """Every residual site from input to output, with plain integers for layers."""
        for module in self.modules():
            if isinstance(module, Residual):
                yield module.place(), module

    def loss(self, given: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Cross entropy in nats of targets, one for each row of logits: of tokens (batch, tokens), of images (batch,);
        computed in fp32; a target of IGNORED is none."""
        return self.cross_entropy(self(given).flatten(0, -2), targets.flatten(), reduction)

    @staticmethod
    def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Apart, so that it can be compiled: fused, the fp32 copies of the logits never reach memory."""
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return F.cross_entropy(logits, targets, reduction=reduction, ignore_index=IGNORED)

    def weights(self) -> Iterator[tuple[str, Tensor, Scheme, Site]]:
        """Every weight with a role: (role, weight, the scheme it stands under, its site); here those of the blocks, to
        which a model adds its own."""
        for site, residual in self.residuals():
            for matrix in matrices(residual.branch):
                yield str(matrix.role), matrix.weight, residual.scheme, site

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all weights anew and restores every norm, scalar and buffer."""
        self.reset_scalars()
        if self.head.weight.is_meta:  # nothing to draw, and to find that out takes torch longer than the whole build
            return
        for role, weight, scheme, site in self.weights():
            draw_weight(weight, role, scheme, site, self.config)

    @torch.no_grad()
    def reset_scalars(self) -> None:
        """Restores all that is not drawn: every norm, scalar, bias and buffer."""
        for module in self.modules():
            if belongs_to_scheme(module):
                restore(module)
            elif isinstance(module, nn.Linear):
                if module.bias is not None:
                    module.bias.zero_()
            elif module is not self and not hasattr(module, "role") and hasattr(module, "reset_parameters"):
                module.reset_parameters()  # type: ignore[operator]

    @torch.no_grad()
    def constrain(self) -> None:
        """Applies each scheme's constraint to the weights that stand under it: at the start and after every step."""
        if not self.constrained:
            return
        groups: dict[Scheme, dict[str, list[Tensor]]] = {}
        for role, weight, scheme, _ in self.weights():
            groups.setdefault(scheme, {}).setdefault(role, []).append(weight)
        for scheme, weights in groups.items():
            scheme.constrain(weights)

    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())

    def matmul_parameter_count(self) -> int:
        """Parameters of matrices, those at the ends included: equal for all schemes at one size."""
        return sum(weight.numel() for _, weight, _, _ in self.weights())
