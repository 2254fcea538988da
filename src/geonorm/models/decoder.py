"""A language model whose residual scheme is a string: embedding, trunk, head.

Rotary or learned positions, grouped queries, SwiGLU or GELU, SDPA. With `causal` off every token sees all others: the
same model as an encoder, for masked language modelling.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ConfigError
from ..norms import NormSpec, upcast
from ..schemes import Scheme, Site, slot_at
from .attention import LayerCache, Rope, rotary_of
from .config import DecoderConfig
from .roles import linear, undrawn_table
from .trunk import End, Trunk, norm_of
from .values import Handing, token_tables


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
    slot = slot_at(end.scheme, "logits", (vocab_size,), width, end.site)
    return slot if soft_cap is None else SoftCap(soft_cap, slot)


class Transform(nn.Module):
    """What stands before the head of BERT: (..., width) to N(gelu(W y + b))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        c = config
        self.dense = linear("transform", c.width, c.width, bias=True)
        self.formula = "tanh" if c.mlp == "gelu_tanh" else "none"
        self.norm = norm_of(c)()

    def forward(self, y: Tensor) -> Tensor:
        out: Tensor = self.norm(F.gelu(self.dense(y), approximate=self.formula))
        return out


class Decoder(Trunk):
    """(batch, tokens) of ids to logits (batch, tokens, vocab_size)."""

    config: DecoderConfig

    def add_front(self, norm: NormSpec) -> None:
        c = self.config
        self.rotary = rotary_of(c)
        self.embed = undrawn_table("embed", c.vocab_size, c.width)
        self.position = undrawn_table("position", c.context, c.width) if c.positions == "learned" else None
        self.values = token_tables(c)
        self.embed_norm = norm() if c.embed_norm else None

    def add_head(self) -> None:
        c = self.config
        self.transform = Transform(c) if c.transform else None
        self.head = linear("head", c.width, c.vocab_size, bias=c.transform)
        self.share_weights()
        self.logits_slot = slot_on_logits(self.exit, c.vocab_size, c.width, c.soft_cap)

    def share_weights(self) -> None:
        if self.config.tied:
            self.head.weight = self.embed.weight

    def ends(self) -> list[nn.Module]:
        return [] if self.config.tied else [self.embed, self.head]

    def forward(self, ids: Tensor, cache: list[LayerCache] | None = None) -> Tensor:
        x, turns = self.begin(ids, cache[0].length if cache else 0)
        return self.predict(self.run_blocks(self.entry(x), turns, Handing(self.values, ids), cache))

    def begin(self, ids: Tensor, past: int = 0) -> tuple[Tensor, Rope | None]:
        """What enters the stream for ids (batch, tokens) behind `past` others, and the turns of their positions."""
        positions = torch.arange(past, past + ids.shape[1], device=ids.device)
        turns = None if self.rotary is None else self.rotary(positions)
        x = self.embed(ids)
        if self.position is not None:
            self.within_context(past + ids.shape[1])
            x = x + self.position(positions)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        return x, turns

    def predict(self, x: Tensor) -> Tensor:
        """Logits (batch, tokens, vocab_size) of the end of the stream."""
        y = self.exit(x).to(self.head.weight.dtype)
        if self.transform is not None:
            y = self.transform(y).to(y.dtype)
        logits: Tensor = self.head(y)
        return logits if self.logits_slot is None else self.logits_slot(logits)

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

    def weights(self) -> Iterator[tuple[str, Tensor, Scheme, Site]]:
        yield "embed", self.embed.weight, self.entry.scheme, self.entry.site
        yield from super().weights()
        if not self.config.tied:
            yield "head", self.head.weight, self.exit.scheme, self.exit.site
        if self.position is not None:  # last, so that the draws of all others are those of a model without it
            yield "position", self.position.weight, self.entry.scheme, self.entry.site
        if self.transform is not None:
            yield "transform", self.transform.dense.weight, self.exit.scheme, self.exit.site
        for table in self.values.children():
            yield "values", table.get_parameter("weight"), self.entry.scheme, self.entry.site
