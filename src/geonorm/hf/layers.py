"""The layers of a geonorm model in transformers: blocks of `geonorm.models` with its masks, caches, attention functions
and records of hidden states."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward

from ..models.attention import SelfAttention
from ..models.config import TransformerConfig
from ..models.decoder import Block, ParallelBlock
from ..schemes import Scheme, Site
from .config import GeoNormConfig
from .versions import CACHE


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
        function = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention_forward)
        return function(self, q, k, v, mask, scaling=self.scaling, **more)


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


class HiddenState(nn.Module):
    """What transformers records of the stream after a block: (batch, tokens, width) for every scheme. Of a stream of
    another shape it is what sub-layers see, beside the way from the stream to the loss."""

    def __init__(self, scheme: Scheme) -> None:
        super().__init__()
        self.scheme = scheme

    def forward(self, entry: Tensor, x: Tensor) -> Tensor:
        """entry: the state in front of the blocks, which is recorded first."""
        return self.scheme.seen(x)


class Layer(GradientCheckpointingLayer):
    """In front of a block: what may have a gradient by position, for reentrant checkpointing."""

    def forward(self, x: Tensor, values: Tensor | None = None, mask: Any = None, **attention: Any) -> Any:
        return super().forward(x, values=values, mask=mask, **attention)


class GeoNormLayer(Layer, Block):
    attention = GeoNormAttention


class GeoNormParallelLayer(Layer, ParallelBlock):
    attention = GeoNormAttention


LAYERS = {"sequential": GeoNormLayer, "parallel": GeoNormParallelLayer}
