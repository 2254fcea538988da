"""Self-attention with grouped queries, rotary positions where asked for, and its key-value cache."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..norms import RMSNorm, is_transformed
from ..schemes import Scheme, Site, slots_at
from .config import DecoderConfig, TransformerConfig
from .init import SLOTS, linear, undrawn_table

Rope = tuple[Tensor, Tensor]
"""(cos, sin)."""


def rope(positions: Tensor, dim: int, theta: float) -> Rope:
    """(cos, sin) of shape (..., tokens, dim / 2) in fp32 for integer positions (..., tokens), dim of a head rotated."""
    exponents = torch.arange(0, dim, 2, device=positions.device, dtype=torch.float32) / dim
    # 1 / theta^e and not theta^-e, to the last bit what transformers computes
    angles = positions.float().unsqueeze(-1) * (1.0 / theta**exponents)
    return angles.cos(), angles.sin()


def rotary_of(config: DecoderConfig) -> Callable[[Tensor], Rope] | None:
    """The rotation of a decoder, from positions to their table; None where queries and keys are not rotated."""
    return partial(rope, dim=config.rotary_dim, theta=config.rope_theta) if config.positions == "rope" else None


def rotate(x: Tensor, positions: Rope) -> Tensor:
    """Rotary encoding of (batch, heads, tokens, head_dim): the two halves of a head are the two coordinates. Where the
    table is for fewer dimensions, those are the first, and the rest stays."""
    cos, sin = positions
    if (dim := 2 * cos.shape[-1]) < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], positions), x[..., dim:]), dim=-1)
    if cos.dtype != x.dtype:
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    if is_transformed():  # a compiler of vmap knows no writing in place
        a, b = x.chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    if not torch.is_grad_enabled():  # the detour over autograd costs as much as two operations
        return turn_halves(x, cos, sin, 1)
    return Rotation.apply(x, cos, sin)


class Rotation(torch.autograd.Function):
    """The rotation of RoPE in three passes over memory; its gradient is the rotation back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turn_halves(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return turn_halves(grad, cos, sin, -1), None, None


def turn_halves(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    """(a, b) to (a cos - b sin, a sin + b cos) for the halves a, b of the last axis; sign -1 turns back."""
    a, b = x.chunk(2, dim=-1)
    turned = (a * cos).addcmul_(b, sin, value=-sign), (b * cos).addcmul_(a, sin, value=sign)
    return torch.cat(turned, dim=-1)


def seen_keys(tokens: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """Which keys the last `tokens` of them see, (tokens, keys): themselves and those before, of these the nearest
    window - 1 where there is a window."""
    past = keys - tokens
    mask = torch.ones(tokens, keys, dtype=torch.bool, device=device).tril(past)
    return mask if window is None else mask.triu(past - window + 1)


def document_masks(ids: Tensor, end: int, windows: set[int | None], in_blocks: bool) -> dict[int | None, Any]:
    """What the tokens of ids (batch, tokens) see where they see their own document alone, by window; the token `end`
    begins the document after it. True for a key that is seen, (batch, 1, tokens, tokens); with `in_blocks` a mask of
    FlexAttention, which leaves out blocks of them."""
    document, tokens = (ids == end).cumsum(1), ids.shape[1]
    if not in_blocks:
        same = document[:, None, :, None] == document[:, None, None, :]
        return {window: same & seen_keys(tokens, tokens, window, ids.device) for window in windows}
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(window: int, row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < window) & (document[row, q] == document[row, k])

    return {
        window: create_block_mask(partial(sees, window or tokens), len(ids), None, tokens, tokens, ids.device)
        for window in windows
    }


def attend_in_blocks(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """FlexAttention, compiled: uncompiled it makes all scores."""
    from torch.nn.attention.flex_attention import flex_attention

    attend = flex_attention if torch.compiler.is_compiling() else torch.compile(flex_attention)
    return attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


class LayerCache:
    """Keys and values of the tokens so far for one layer: (batch, kv_heads, room, head_dim), filled from the left."""

    def __init__(self, room: int) -> None:
        self.room, self.length = room, 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Appends (batch, kv_heads, new, head_dim) and returns everything so far."""
        if self.keys is None or self.values is None:
            batch, heads, _, dim = k.shape
            self.keys = k.new_empty(batch, heads, self.room, dim)
            self.values = v.new_empty(batch, heads, self.room, dim)
        end = self.length + k.shape[2]
        self.keys[:, :, self.length : end] = k
        self.values[:, :, self.length : end] = v
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class SelfAttention(nn.Module):
    """(batch, tokens, width) to the same. Schemes may put modules on q, k, v (before RoPE), q_rope, k_rope (after)."""

    def __init__(self, config: TransformerConfig, scheme: Scheme, site: Site) -> None:
        super().__init__()
        c = config
        self.heads, self.groups, self.head_dim = c.heads, c.groups, c.head_dim
        self.causal = c.causal
        self.q = linear("q", c.width, c.heads * c.head_dim, c.bias)
        self.k = linear("k", c.width, c.groups * c.head_dim, c.bias)
        self.v = linear("v", c.width, c.groups * c.head_dim, c.bias)
        self.o = linear("o", c.heads * c.head_dim, c.width, c.bias)
        self.gate = linear("q", c.width, c.heads * c.head_dim, c.bias) if c.attn_gate else None
        self.mix = value_mix(c, site)
        self.returns_values = c.values == "first" and int(site.layer) == 0
        self.query_scale, self.dropout, self.window = c.qk_scale**2, c.attn_dropout, c.window_of(int(site.layer))
        self.norms = nn.ModuleDict()
        if c.qk_norm != "none":
            for name, heads in (("q", c.heads), ("k", c.groups)):
                self.norms[name] = RMSNorm(c.head_dim * (heads if c.qk_norm == "full" else 1), c.gains, c.eps)
        self.norm_over_heads = c.qk_norm == "full"
        shapes = {name: (c.heads if name.startswith("q") else c.groups, c.head_dim) for name in SLOTS["attn"]}
        self.slots = slots_at(scheme, shapes, c.width, site)
        # the same as sets: asking a ModuleDict a dozen times per token and layer is felt in decoding
        self.normed, self.slotted = frozenset(self.norms), frozenset(self.slots)

    def split(self, name: str, y: Tensor) -> Tensor:
        """(batch, tokens, heads * head_dim) to (batch, tokens, heads, head_dim), through norm and slot of that name."""
        if self.norm_over_heads and name in self.normed:
            y = self.norms[name](y)
        y = y.unflatten(-1, (-1, self.head_dim))
        if not self.norm_over_heads and name in self.normed:
            y = self.norms[name](y)
        return self.slots[name](y) if name in self.slotted else y

    def turn(self, name: str, y: Tensor, positions: Rope | None) -> Tensor:
        """RoPE, if there is one, and the slot after it; returns (batch, heads, tokens, head_dim)."""
        y = y.transpose(1, 2)
        if positions is not None:
            y = rotate(y, positions)
        return self.slots[name](y.transpose(1, 2)).transpose(1, 2) if name in self.slotted else y

    def forward(
        self, y: Tensor, *others: Tensor, positions: Rope | None, values: Tensor | None = None, **context: Any
    ) -> Any:
        """The update; after it, in the first block where later ones mix its values with theirs, those values. Keys and
        values are of `others` where the scheme reads apart for them."""
        for_k, for_v = others or (y, y)
        q = self.turn("q_rope", self.split("q", self.q(y)), positions)
        k = self.turn("k_rope", self.split("k", self.k(for_k)), positions)
        v = self.split("v", self.v(for_v))
        if self.mix is not None:
            v = self.mix(v, values, y)
        result = self.update(y, q, k, v.transpose(1, 2), **context)
        # a copy, not a view: FSDP hooks what a block returns
        return (result, v.flatten(-2).clone()) if self.returns_values else result

    def update(self, y: Tensor, q: Tensor, k: Tensor, v: Tensor, **context: Any) -> Tensor:
        """What attention finds, through the gate, which reads y, and the output matrix: (batch, tokens, width)."""
        heads = self.attend(q if self.query_scale == 1 else q * self.query_scale, k, v, **context).flatten(-2)
        return self.o(heads if self.gate is None else heads * torch.sigmoid(self.gate(y)))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache | None = None, mask: Any = None) -> Tensor:
        """Attention of (batch, heads, tokens, head_dim), fewer heads in k and v for grouped queries, to (batch, tokens,
        heads, head_dim). A cache is for causal models. mask: of documents."""
        if mask is not None and not isinstance(mask, Tensor):
            return attend_in_blocks(q, k, v, mask).transpose(1, 2)
        past = 0
        if cache is not None:
            past = cache.length
            k, v = cache.extend(k, v)
        tokens, keys = q.shape[2], k.shape[2]
        windowed = self.window is not None and keys > self.window
        if tokens == 1 and windowed:
            k, v = k[:, :, -self.window :], v[:, :, -self.window :]  # type: ignore[operator]
        elif mask is None and tokens > 1 and (past or windowed):
            mask = seen_keys(tokens, keys, self.window, q.device)
        # a length that varies in a compiled or exported graph makes `tokens > 1` symbolic, which no argument may be
        causal = True if self.causal and mask is None and tokens > 1 else False  # noqa: SIM210
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0,
            is_causal=causal, enable_gqa=self.groups != self.heads,
        )  # fmt: skip
        return out.transpose(1, 2)


CHANNELS = 12
"""First features of what attention reads that the gate of a token's vector sees (nanochat)."""


def value_mix(config: TransformerConfig, site: Site) -> nn.Module | None:
    """What puts the other values to a block's own, or None where the block has its own alone."""
    layer = int(site.layer)
    if config.values == "first" and layer > 0:
        return FirstValues()
    if has_token_values(config, layer):
        return TokenValues(min(CHANNELS, config.width), config.groups)
    return None


def has_token_values(config: TransformerConfig, layer: int) -> bool:
    """True for a block with a table of token vectors: every second one, the last included."""
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


def values_for_block(tables: nn.ModuleDict, ids: Tensor | None, layer: int, first: Tensor | None) -> Tensor | None:
    """What attention of a block gets beside its own values, (batch, tokens, groups * head_dim): the vectors of its
    tokens where the model has tables of them, else the first block's values; or None."""
    if not tables:
        return first
    return tables[str(layer)](ids) if str(layer) in tables else None


def token_tables(config: DecoderConfig) -> nn.ModuleDict:
    """The tables of token vectors, by block; none where values are made otherwise."""
    layers = [layer for layer in range(config.layers) if has_token_values(config, layer)]
    width = config.groups * config.head_dim
    return nn.ModuleDict({str(layer): undrawn_table("values", config.vocab_size, width) for layer in layers})
