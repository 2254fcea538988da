"""What models for transformers share from the embedding to the exit, whatever stands behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..nn.config import DecoderConfig
from ..nn.roles import undrawn_table
from ..nn.trunk import End, norm_of
from ..nn.values import Handing, token_tables
from ..norms import upcast
from ..schemes import Site, state_of
from .layers import Attend, run_layers


class Stream:
    """Mixed into models of transformers that run a stream from its entry through layers to its exit."""

    def add_stream(self: Any, layer: Callable[..., nn.Module], depth: int, sublayers: int) -> None:
        """Makes the stream, the last that such a model is made of."""
        scheme, shape = self.config.rule(), self.config.shape()
        norm = norm_of(shape)
        self.entry = End(scheme, Site(0, "entry", depth, sublayers), norm)
        self.blocks = nn.ModuleList(layer(shape, scheme, number) for number in range(depth))
        self.exit = End(scheme, Site(depth - 1, "exit", depth, sublayers), norm)
        self.one_stream = state_of(self.entry.scheme) == "one stream"
        self.gradient_checkpointing = False
        for module in self.modules():
            if isinstance(module, Attend):
                module.config = self.config
        self.post_init()

    def run_stream(
        self: Any, x: Tensor, values: Handing, masks: Sequence[Any], dtype: torch.dtype, **kwargs: Any
    ) -> Tensor:
        """From what stands before the entry to what leaves the exit, in that dtype. masks: one for each layer; kwargs:
        for all of them."""
        whole = self.one_stream or not kwargs.get("output_hidden_states", self.config.output_hidden_states)
        x = run_layers(self.blocks, self.entry, self.entry(x), values, masks, whole, **kwargs)
        out: Tensor = self.exit(x)
        return out.to(dtype)


class TokenFront:
    """Mixed into models of transformers in front of whose stream tokens are embedded."""

    def add_front(self: Any, shape: DecoderConfig) -> None:
        """Makes what stands in front of the entry."""
        c = shape
        # without padding_idx: where the end of a text serves as padding too, it would never learn
        self.embed_tokens = undrawn_table("embed", c.vocab_size, c.width)
        self.position = undrawn_table("position", c.context, c.width) if c.positions == "learned" else None
        self.values = token_tables(c)
        self.embed_norm = norm_of(c)() if c.embed_norm else None

    def begin(
        self: Any, ids: Tensor | None, embeds: Tensor | None, position_ids: Tensor | None, cache: Any
    ) -> tuple[Tensor, Tensor, torch.dtype]:
        """What enters the stream behind the tokens of a cache, its positions, the dtype of the model."""
        if (ids is None) == (embeds is None):
            raise ValueError("give either input_ids or inputs_embeds")
        embedded: Tensor = self.embed_tokens(ids) if embeds is None else embeds
        if position_ids is None:
            past = 0 if cache is None else cache.get_seq_length()
            position_ids = torch.arange(embedded.shape[1], device=embedded.device).unsqueeze(0) + past
        x = upcast(embedded)
        if self.position is not None:
            x = x + self.position(position_ids)
        if self.embed_norm is not None:
            x = self.embed_norm(x)
        return x, position_ids, embedded.dtype


def like(x: Tensor, dtype: torch.dtype) -> Tensor:
    """As much of the stream as masks are made from: batch, length, device, dtype."""
    return x.new_empty((*x.shape[:2], 0), dtype=dtype)
