"""The layers of a geonorm model in transformers: blocks of `geonorm.models` with its masks, caches, attention functions
and records of hidden states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..models.attention import SelfAttention
from ..models.config import TransformerConfig
from ..models.decoder import Block, ParallelBlock
from ..norms import upcast
from ..residual import StreamEnd
from ..schemes import Scheme, Site, enter_as
from .config import GeoNormConfig
from .versions import CACHE


def eager(
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **unused: Any,
) -> tuple[Tensor, Tensor]:
    """Attention step by step: (batch, tokens, heads, head_dim) and the weights (batch, heads, tokens, keys)."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = q @ k.transpose(-1, -2) * scaling
    weights = torch.softmax(scores if mask is None else scores + mask, -1, dtype=upcast(scores[:0]).dtype).to(q.dtype)
    return (nn.functional.dropout(weights, dropout) @ v).transpose(1, 2).contiguous(), weights


class Attend(nn.Module):
    """The part of attention that transformers exchanges: sdpa, eager, flash, flex or a function of your own.

    A module without weights, because attention functions take one and because outputs are recorded by module.
    """

    config: GeoNormConfig

    def __init__(self, layer: int, groups: int, head_dim: int, causal: bool) -> None:
        super().__init__()
        self.is_causal = causal
        self.layer_idx, self.num_key_value_groups, self.head_dim = layer, groups, head_dim
        self.scaling = head_dim**-0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **more: Any) -> tuple[Tensor, Any]:
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager)
        out: tuple[Tensor, Any] = function(self, q, k, v, mask, scaling=self.scaling, **more)
        return out


class GeoNormAttention(SelfAttention):
    """The model's attention with the masks, caches and attention functions of transformers."""

    def __init__(self, config: TransformerConfig, scheme: Scheme, site: Site) -> None:
        super().__init__(config, scheme, site)
        self.inner = Attend(int(site.layer), self.heads // self.groups, self.head_dim, self.causal)

    def attend(  # type: ignore[override]
        self, q: Tensor, k: Tensor, v: Tensor, mask: Any = None, **more: Any
    ) -> Tensor:
        """more: transformers' cache too, by the name that it leaves out of checkpointing."""
        if (cache := more.pop(CACHE, None)) is not None:
            k, v = cache.update(k, v, self.inner.layer_idx, kwargs=more)  # a paged one changes the arguments
        if self.window is not None:  # the mask says it too; some functions have none
            more["sliding_window"] = self.window
        if self.training and self.dropout:
            more["dropout"] = self.dropout
        out: Tensor = self.inner(q, k, v, mask, **more)[0]
        # some functions join the heads; that of vLLM, whose batch is one text, leaves out the batch too
        return out if out.dim() == 4 else out.reshape(q.shape[0], q.shape[2], -1, self.head_dim)


class View:
    """Hidden states, (batch, tokens, width) for every scheme: of a stream of another shape, what sub-layers see.

    A hidden state is part of the way from the stream to the loss, so that it has a gradient: that of a change which
    reaches the stream as an embedding would, with several streams each of them.
    """

    def __init__(self, entry: StreamEnd) -> None:
        self.entry, self.scheme = entry, enter_as(entry.scheme, "embedding")

    def seen(self, x: Tensor) -> Tensor:
        return self.scheme.seen(x)

    def through(self, seen: Tensor, x: Tensor) -> Tensor:
        """The stream x, to the bit, for the gradient moved by its hidden state."""
        moved, still = (self.scheme.enter(state, self.entry.own(), self.entry.site) for state in (seen, self.seen(x)))
        return x + (moved - still).to(x.dtype)


class Layer(GradientCheckpointingLayer):
    """In front of a block: where hidden states are asked for and the stream is of another shape, it takes and returns
    both, the hidden state first, which is what transformers records. By position what may have a gradient, for
    reentrant checkpointing."""

    def forward(
        self,
        x: Tensor,
        stream: Tensor | None = None,
        view: View | None = None,
        values: Tensor | None = None,
        mask: Any = None,
        **attention: Any,
    ) -> Any:
        attention.update(values=values, mask=mask)
        if stream is None or view is None:
            return super().forward(x, **attention)
        out = super().forward(view.through(x, stream), **attention)
        stream, *beside = out if isinstance(out, tuple) else (out,)
        return (view.seen(stream), stream, *beside)


class GeoNormLayer(Layer, Block):
    attention = GeoNormAttention


class GeoNormParallelLayer(Layer, ParallelBlock):
    attention = GeoNormAttention


LAYERS = {"sequential": GeoNormLayer, "parallel": GeoNormParallelLayer}


def run_layers(
    blocks: nn.ModuleList,
    entry: StreamEnd,
    x: Tensor,
    values: Callable[[int, Tensor | None], Tensor | None],
    masks: Sequence[Any],
    whole: bool,
    **kwargs: Any,
) -> Tensor:
    """The stream after all layers. values: what attention of a layer gets beside its own values, by its number and the
    first layer's values; masks: one for each; whole: the stream is itself the hidden states, or nobody asks for
    these."""
    first: Tensor | None = None
    if whole:
        for layer, block in enumerate(blocks):
            x = block(x, None, None, values(layer, first), masks[layer], **kwargs)
            if isinstance(x, tuple):
                x, first = x
        return x
    view = View(entry)
    seen = view.seen(x)
    for layer, block in enumerate(blocks):
        seen, x, *rest = block(seen, x, view, values(layer, first), masks[layer], **kwargs)
        first = rest[0] if rest else first
    return x
