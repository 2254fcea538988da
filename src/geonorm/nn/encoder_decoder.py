"""An encoder, and a decoder whose blocks attend to what it returns: the shape of T5, under any scheme.

    source -> embedding -> enter -> encoder: L_e x (attention, MLP) -> exit -> memory
    answer -> embedding -> enter -> decoder: L x (causal attention, cross-attention to memory, MLP) -> exit -> head

Embedding, attention, MLP and `Residual` are the decoder's own. Each stack has its own entry, exit and count of
blocks: a site's layer, t and depth are those of its stack.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import log
from typing import Any

import torch
from torch import Tensor, nn

from ..norms import NormSpec, Scalars
from ..residual import Residual
from ..schemes import Scheme, Site
from .attention import LayerCache, Rope, SelfAttention
from .config import DecoderConfig
from .decoder import Decoder
from .mlp import MLP
from .trunk import Block, End, make_sites

BUCKETS = 32
"""Kinds of distance that relative positions tell apart (T5's number)."""
FURTHEST = 128
"""The distance from which on all are one (T5's number)."""


class RelativePositions(Scalars):
    """What is added to attention scores by head and distance (Raffel et al. 2019, arXiv:1910.10683, section 2.1): half
    of the buckets are for one distance each, the others for ranges that grow logarithmically. All start at 0."""

    def __init__(self, heads: int, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.weight = nn.Parameter(torch.empty(BUCKETS, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(heads, queries, keys) for positions of both, integers; -inf where a causal token does not see the key."""
        ahead = keys - queries.unsqueeze(-1)
        bias = self.weight[buckets(ahead, self.causal)].permute(2, 0, 1)
        return bias.masked_fill(ahead > 0, -torch.inf) if self.causal else bias


def buckets(ahead: Tensor, causal: bool) -> Tensor:
    """The bucket of each distance, integers: of keys behind the token alone where it is causal, else half for each."""
    half = BUCKETS if causal else BUCKETS // 2
    behind = (-ahead).clamp(min=0) if causal else ahead.abs()
    near = half // 2
    # as transformers computes it, in fp32: a rounding otherwise would move a border
    share = torch.log(behind.clamp(min=1).float() / near) / log(FURTHEST / near)
    far = (near + (share * (half - near)).long()).clamp(max=half - 1)
    found = torch.where(behind < near, behind, far)
    return found if causal else found + half * (ahead > 0)


class BlockCache:
    """What one block of the decoder keeps between tokens."""

    def __init__(self, room: int) -> None:
        self.own = LayerCache(room)
        self.memory: tuple[Tensor, Tensor] | None = None
        """Keys and values of the encoder's output, made once, (batch, kv_heads, tokens, head_dim)."""

    @property
    def length(self) -> int:
        return self.own.length


class CrossAttention(SelfAttention):
    """(batch, tokens, width) to the same: queries of what is read, keys and values of `memory` (batch, others, width),
    without positions. Every query sees all of the memory."""

    both_sides = True

    def forward(self, y: Tensor, memory: Tensor | None = None, kept: Any = None, **context: Any) -> Any:  # type: ignore[override]
        """kept: where keys and values stand after the first token; then memory is not needed."""
        q = self.turn("q_rope", self.split("q", self.q(y)), None)
        k, v = self.keys_and_values(y.dtype, memory, kept)
        return self.update(y, q, k, v, **context)

    def keys_and_values(
        self, dtype: torch.dtype, memory: Tensor | None, kept: BlockCache | None
    ) -> tuple[Tensor, Tensor]:
        if kept is not None and kept.memory is not None:
            return kept.memory
        assert memory is not None, "cross-attention needs the encoder's output"
        memory = memory.to(dtype)
        k = self.turn("k_rope", self.split("k", self.k(memory)), None)
        v = self.split("v", self.v(memory)).transpose(1, 2)
        if kept is not None:
            kept.memory = k, v
        return k, v


class EncoderAttention(SelfAttention):
    """Every token sees all others."""

    both_sides = True


class EncoderBlock(Block):
    """A block whose depth is that of the encoder."""

    attention = EncoderAttention

    def __init__(self, config: DecoderConfig, scheme: Scheme, layer: int) -> None:
        nn.Module.__init__(self)
        make_sites(self, config, scheme, layer, {"attn": self.attention, "mlp": MLP}, config.encoder_layers or 1)


class CrossBlock(nn.Module):
    """One layer of the decoder: attention, cross-attention, MLP, a residual each."""

    attention = SelfAttention
    cross_attention = CrossAttention
    attn: Residual
    cross: Residual
    mlp: Residual

    def __init__(self, config: DecoderConfig, scheme: Scheme, layer: int) -> None:
        super().__init__()
        kinds = {"attn": self.attention, "cross": self.cross_attention, "mlp": MLP}
        make_sites(self, config, scheme, layer, kinds, config.layers)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, cache: BlockCache | None = None, **attention: Any
    ) -> Tensor:
        own = None if cache is None else cache.own
        x, reading = self.attn(x, then=self.cross, cache=own, **attention)
        x, reading = self.cross(x, reading=reading, then=self.mlp, memory=memory, kept=cache)
        out: Tensor = self.mlp(x, reading=reading)
        return out


class Encoder(nn.Module):
    """The stream of the source, from entry to exit: (batch, tokens, width) to the same."""

    def __init__(self, config: DecoderConfig, scheme: Scheme, norm: NormSpec) -> None:
        super().__init__()
        depth = config.encoder_layers or 1
        self.relative = RelativePositions(config.heads, causal=False) if config.positions == "relative" else None
        self.entry = End(scheme, Site(0, "entry", depth), norm)
        self.blocks = nn.ModuleList(EncoderBlock(config, scheme, layer) for layer in range(depth))
        self.exit = End(scheme, Site(depth - 1, "exit", depth), norm)

    def forward(self, x: Tensor, positions: Tensor, turns: Rope | None) -> Tensor:
        """x: what `Decoder.begin` returns, with positions and their turns."""
        bias = None if self.relative is None else self.relative(positions, positions)
        x = self.entry(x)
        for block in self.blocks:
            x = block(x, positions=turns, bias=bias)
        out: Tensor = self.exit(x)
        return out


class EncoderDecoder(Decoder):
    """Ids of a source (batch, tokens) and of an answer (batch, others) to logits of what follows each token of the
    answer, (batch, others, vocab_size). Everything but the stacks is the `Decoder`'s, with the same draws of weights:
    embedding, encoder, decoder, head."""

    def add_stream(self, norm: NormSpec) -> None:
        c = self.config
        self.encoder = Encoder(c, self.scheme, norm)
        self.relative = RelativePositions(c.heads, causal=True) if c.positions == "relative" else None
        self.entry = End(self.scheme, Site(0, "entry", c.layers, 3), norm)
        self.blocks = nn.ModuleList(CrossBlock(c, self.scheme, layer) for layer in range(c.layers))
        self.exit = End(self.scheme, Site(c.layers - 1, "exit", c.layers, 3), norm)

    def forward(  # type: ignore[override]
        self, source: Tensor | None, answer: Tensor, cache: list[BlockCache] | None = None
    ) -> Tensor:
        """source: None where a cache holds what the encoder made of it."""
        memory = None if source is None else self.encode(source)
        past = cache[0].length if cache else 0
        x, positions, turns = self.begin(answer, past)
        bias = None
        if self.relative is not None:
            bias = self.relative(positions, torch.arange(past + answer.shape[1], device=answer.device))
        x = self.entry(x)
        for layer, block in enumerate(self.blocks):
            x = block(x, memory=memory, cache=cache[layer] if cache else None, positions=turns, bias=bias)
        return self.predict(x)

    def encode(self, source: Tensor) -> Tensor:
        """The encoder's output (batch, tokens, width)."""
        out: Tensor = self.encoder(*self.begin(source))
        return out

    def reads(self, given: Tensor, targets: Tensor | None = None) -> tuple[Tensor, ...]:
        """Ids of the source, then as many tokens of the answer as there are targets."""
        assert targets is not None, "where the answer begins is not known without targets"
        return given[:, : -targets.shape[1]], given[:, -targets.shape[1] :]

    @property
    def all_blocks(self) -> list[nn.Module]:
        return [*self.encoder.blocks, *self.blocks]

    def new_cache(self, room: int) -> list[BlockCache]:  # type: ignore[override]
        """An empty cache for an answer of up to `room` tokens, and for what the encoder makes of its source."""
        return [BlockCache(room) for _ in self.blocks]

    def residuals(self) -> Iterator[tuple[Site, Residual]]:
        """Every residual site from input to output: the encoder's, then the decoder's."""
        for block in self.all_blocks:
            for module in block.children():
                if isinstance(module, Residual):
                    yield module.place(), module
