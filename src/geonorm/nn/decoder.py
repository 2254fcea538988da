"""A language model whose residual scheme is a string.

    embedding -> enter -> L x (attention residual, MLP residual) -> exit -> head

or one residual per block around attention and MLP side by side. Rotary or learned positions, grouped queries, SwiGLU or
GELU, SDPA; no layer knows which scheme it runs under. With `causal` off every token sees all others: the same model as
an encoder, for masked language modelling.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..norms import NormSpec, upcast
from ..residual import Residual
from ..schemes import Parts, Scheme, Site, parse
from .attention import LayerCache, SelfAttention, rotary_of
from .config import DecoderConfig
from .mlp import MLP
from .roles import ROLES, draw_weight, linear
from .values import Handing, token_tables


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


class SoftCap(nn.Module):
    """Logits between -cap and cap, cap tanh(y / cap), in the precision of the maths; `before` is what a scheme does to
    them first."""

    def __init__(self, cap: float, before: nn.Module | None) -> None:
        super().__init__()
        self.cap, self.before = cap, before

    def forward(self, y: Tensor) -> Tensor:
        y = upcast(y if self.before is None else self.before(y))
        return self.cap * torch.tanh(y / self.cap)


def slot_on_logits(end: End, vocab_size: int, width: int, soft_cap: float | None) -> nn.Module | None:
    """What is done to logits behind the head, by the scheme at the exit and by the model."""
    slot = end.scheme.slot("logits", (vocab_size,), width, end.site)
    return slot if soft_cap is None else SoftCap(soft_cap, slot)


def under(branch: nn.Module, scheme: Scheme, site: Site, config: DecoderConfig) -> Residual:
    """The branch under the scheme, with the norms of this model."""
    c = config
    return Residual(branch, scheme, site, c.width, c.norm, c.gains, c.eps, c.norm_bias)


class Block(nn.Module):
    """One layer: an attention residual, then an MLP residual. Keyword arguments go to the attention."""

    attention = SelfAttention
    """The class of the attention; another way to attend is a subclass."""
    attn: Residual
    mlp: Residual

    def __init__(self, config: DecoderConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        for name, make in (("attn", self.attention), ("mlp", MLP)):
            site = Site(layer, name, config.layers)
            branch = make(config, scheme.resolve(site), site)
            setattr(self, name, under(branch, scheme, site, config))

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
        self, config: DecoderConfig, scheme: Scheme, site: Site, attention: type[SelfAttention] = SelfAttention
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

    def __init__(self, config: DecoderConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        site = Site(layer, "parallel", config.layers)
        branch = Parallel(config, scheme.resolve(site), site, self.attention)
        self.both = under(branch, scheme, site, config)

    def forward(self, x: Tensor, **attention: Any) -> Any:
        """As `Block`."""
        return self.both(x, **attention)


class Transform(nn.Module):
    """What stands before the head of BERT: (..., width) to N(gelu(W y + b))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c = config
        self.dense = linear("transform", c.width, c.width, bias=True)
        self.formula = "tanh" if c.mlp == "gelu_tanh" else "none"
        self.norm = NormSpec(c.norm, c.width, c.gains, c.eps, c.norm_bias)()

    def forward(self, y: Tensor) -> Tensor:
        out: Tensor = self.norm(F.gelu(self.dense(y), approximate=self.formula))
        return out


IGNORED = -100
"""The target of a token that there is nothing to predict for."""
BLOCKS = {"sequential": Block, "parallel": ParallelBlock}


class Decoder(nn.Module):
    """(batch, tokens) of ids to logits (batch, tokens, vocab_size).

    Weights are drawn at construction from torch's global generator, in one order for all schemes, so that one seed
    gives every scheme the same draws; biases start at 0.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = c = config
        self.scheme, self.rotary = parse(c.scheme), rotary_of(c)
        norm = NormSpec(c.norm, c.width, c.gains, c.eps, c.norm_bias)
        # torch's own initial values are skipped: on the meta device they import the compiler
        self.embed = nn.Embedding.from_pretrained(torch.empty(c.vocab_size, c.width), freeze=False)
        self.embed.role = "embed"
        self.position = None
        if c.positions == "learned":
            self.position = nn.Embedding.from_pretrained(torch.empty(c.context, c.width), freeze=False)
            self.position.role = "position"
        self.values = token_tables(c, lambda *shape: nn.Embedding.from_pretrained(torch.empty(shape), freeze=False))
        self.embed_norm = norm() if c.embed_norm else None
        self.entry = End(self.scheme, Site(0, "entry", c.layers), norm)
        self.blocks = nn.ModuleList(BLOCKS[c.block](c, self.scheme, layer) for layer in range(c.layers))
        self.exit = End(self.scheme, Site(c.layers - 1, "exit", c.layers), norm)
        self.transform = Transform(c) if c.transform else None
        self.head = linear("head", c.width, c.vocab_size, bias=c.transform)
        if c.tied:
            self.head.weight = self.embed.weight
        schemes = (self.entry.scheme, self.exit.scheme, *(residual.scheme for _, residual in self.residuals()))
        self.constrained = any(type(scheme).constrain is not Scheme.constrain for scheme in schemes)
        self.logits_slot = slot_on_logits(self.exit, c.vocab_size, c.width, c.soft_cap)
        self.reset_parameters()

    def forward(self, ids: Tensor, cache: list[LayerCache] | None = None) -> Tensor:
        past = cache[0].length if cache else 0
        positions = torch.arange(past, past + ids.shape[1], device=ids.device)
        turns = None if self.rotary is None else self.rotary(positions)
        x = self.embed(ids)
        if self.position is not None:
            self.within_context(past + ids.shape[1])
            x = x + self.position(positions)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        x = self.entry(x)
        values = Handing(self.values, ids)
        for layer, block in enumerate(self.blocks):
            out = block(x, positions=turns, cache=cache[layer] if cache else None, values=values.to(layer))
            x = values.stream(out)
        y = self.exit(x).to(self.head.weight.dtype)
        if self.transform is not None:
            y = self.transform(y).to(y.dtype)
        logits: Tensor = self.head(y)
        return logits if self.logits_slot is None else self.logits_slot(logits)

    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Cross entropy in nats of targets (batch, tokens), computed in fp32; a target of IGNORED is none."""
        return self.cross_entropy(self(ids).flatten(0, 1), targets.flatten(), reduction)

    @staticmethod
    def cross_entropy(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        """Apart, so that it can be compiled: fused, the fp32 copies of the logits never reach memory."""
        if logits.dtype in (torch.bfloat16, torch.float16):
            logits = logits.float()
        return F.cross_entropy(logits, targets, reduction=reduction, ignore_index=IGNORED)

    def within_context(self, length: int) -> None:
        """ConfigError where there is no vector for the last position."""
        if length > self.config.context:
            raise ConfigError(
                f"{length} tokens are more than the {self.config.context} positions that this model has learned; "
                "give fewer"
            )

    def new_cache(self, room: int) -> list[LayerCache]:
        """An empty key-value cache for up to `room` tokens."""
        return [LayerCache(room) for _ in self.blocks]

    def residuals(self) -> Iterator[tuple[Site, Residual]]:
        """Every residual site from input to output, with plain integers for layers."""
        for module in self.modules():
            if isinstance(module, Residual):
                yield Site(module.index, module.kind, module.depth), module

    def weights(self) -> Iterator[tuple[str, Tensor, Scheme, Site]]:
        """Every weight with a role: (role, weight, the scheme it stands under, its site)."""
        yield "embed", self.embed.weight, self.entry.scheme, self.entry.site
        for site, residual in self.residuals():
            for module in residual.branch.modules():
                if isinstance(module, nn.Linear) and hasattr(module, "role"):
                    yield str(module.role), module.weight, residual.scheme, site
        if not self.config.tied:
            yield "head", self.head.weight, self.exit.scheme, self.exit.site
        if self.position is not None:  # last, so that the draws of all others are those of a model without it
            yield "position", self.position.weight, self.entry.scheme, self.entry.site
        if self.transform is not None:
            yield "transform", self.transform.dense.weight, self.exit.scheme, self.exit.site
        for table in self.values.children():
            yield "values", table.get_parameter("weight"), self.entry.scheme, self.entry.site

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draws all weights anew and restores every norm, scalar and buffer."""
        self.reset_scalars()
        if self.embed.weight.is_meta:  # nothing to draw, and to find that out takes torch longer than the whole build
            return
        for role, weight, scheme, site in self.weights():
            draw_weight(weight, role, scheme, site, self.config)

    @torch.no_grad()
    def reset_scalars(self) -> None:
        """Restores all that is not drawn: every norm, scalar, bias and buffer."""
        for module in self.modules():
            reset = getattr(module, "reset_parameters", None)
            if reset is not None and module is not self and not hasattr(module, "role"):
                reset()
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()

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
        """Parameters of matrices, the embedding included: equal for all schemes at one size."""
        return sum(weight.numel() for _, weight, _, _ in self.weights())


assert set(ROLES) == {"embed", "position", "values", "q", "k", "v", "o", "up", "gate", "down", "head", "transform"}
