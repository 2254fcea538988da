"""What attention's values get beside those of its own block: the first block's values, or a vector of the token.

Either is handed to a block beside the stream, (batch, tokens, groups * head_dim), for the tokens of this pass alone: a
cache keeps the values as they are after it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..schemes import Site
from .config import DecoderConfig, TrunkConfig
from .roles import undrawn_table

CHANNELS = 12
"""First features of what attention reads that the gate of a token's vector sees (nanochat)."""


def mix_of(config: TrunkConfig, site: Site) -> nn.Module | None:
    """What puts the other values to a block's own, or None where the block has its own alone."""
    layer = int(site.layer)
    if config.values == "first" and layer > 0:
        return FirstValues()
    if has_token_values(config, layer):
        return TokenValues(min(CHANNELS, config.width), config.groups)
    return None


def has_token_values(config: TrunkConfig, layer: int) -> bool:
    """Whether a block has a table of token vectors: every second, the last among them."""
    return config.values == "token" and layer % 2 == (config.layers - 1) % 2


class FirstValues(nn.Module):
    """Value residual, a v + b v_1 with v_1 the first block's values, a and b learned from 1/2 (arXiv:2410.17897, its
    learnable form)."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Parameter(torch.empty(1))
        self.first = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.own, 0.5)
        nn.init.constant_(self.first, 0.5)

    def forward(self, v: Tensor, others: Tensor, y: Tensor) -> Tensor:
        """v: (batch, tokens, groups, head_dim); others: the same with the last two joined; y: what attention reads."""
        return self.own.to(v.dtype) * v + self.first.to(v.dtype) * others.to(v.dtype).view_as(v)


class TokenValues(nn.Module):
    """Value embeddings, v + 3 sigmoid(G y) e: e the token's vector, G y one number a group from the first features of
    y. nanochat draws G evenly from 0 to 0.02; it starts at 0.01 here."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.empty(groups, channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gate, 0.01)

    def forward(self, v: Tensor, others: Tensor, y: Tensor) -> Tensor:
        """As in `FirstValues`."""
        scores = y[..., : self.gate.shape[1]] @ self.gate.to(y.dtype).T
        return v + 3 * torch.sigmoid(scores).to(v.dtype).unsqueeze(-1) * others.to(v.dtype).view_as(v)


class Handing:
    """What blocks are handed beside the stream for their values: vectors of the tokens, or the first block's values."""

    def __init__(self, tables: nn.ModuleDict, ids: Tensor | None) -> None:
        self.tables, self.ids = tables, ids
        self.first: Tensor | None = None

    def to(self, layer: int) -> Tensor | None:
        """What the block is handed: (batch, tokens, groups * head_dim), or None."""
        if not self.tables:
            return self.first
        return self.tables[str(layer)](self.ids) if str(layer) in self.tables else None

    def stream(self, out: Any) -> Tensor:
        """The stream of what a block returned; values beside it are kept for the blocks that come."""
        if isinstance(out, tuple):
            out, self.first = out
        x: Tensor = out
        return x


def token_tables(config: DecoderConfig) -> nn.ModuleDict:
    """The tables of token vectors, by block; none where values are made otherwise."""
    layers = [layer for layer in range(config.layers) if has_token_values(config, layer)]
    width = config.groups * config.head_dim
    return nn.ModuleDict({str(layer): undrawn_table("values", config.vocab_size, width) for layer in layers})
