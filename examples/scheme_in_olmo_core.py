"""A residual scheme in OLMo-core's model, for runs that need its trainer. docs/scale.md says how."""

from typing import Any

from olmo_core.nn.transformer import Transformer, TransformerBlock
from torch import Tensor

from geonorm import Residual, Site
from geonorm.norms import NormSpec
from geonorm.residual import StreamEnd


class ResidualBlock(TransformerBlock):
    """A block of OLMo-core whose residual connections hold its sub-layers, which keep their names for its trainer."""

    attention = property(lambda self: self.attention_residual_stream.branch)
    feed_forward = property(lambda self: self.feed_forward_residual_stream.branch)

    def forward(self, x: Tensor, *, loss_div_factor: Any = None, **context: Any) -> Tensor:
        x, reading = self.attention_residual_stream(x, then=self.feed_forward_residual_stream, **context)
        return self.feed_forward_residual_stream(x, reading=reading)


def set_scheme(model: Transformer, scheme: str, eps: float = 1e-6) -> None:
    """Put every residual connection, entry and exit of a model under a scheme, in place, before it is sharded and its
    weights are drawn."""
    depth, dim, norm = len(model.blocks), model.d_model, NormSpec("rms", model.d_model, True, eps)
    with model.embeddings.weight.device:
        for layer, block in enumerate(model.blocks.values()):
            for name, kind in (("attention", "attn"), ("feed_forward", "mlp")):
                del block._modules[f"{name}_norm"]
                residual = Residual(block._modules.pop(name), scheme, Site(layer, kind, depth), dim, eps=eps)
                block.add_module(f"{name}_residual_stream", residual)
            block.__class__ = ResidualBlock
        model.embedding_norm = StreamEnd(scheme, Site(0, "entry", depth), norm)
        model.lm_head.norm = StreamEnd(scheme, Site(depth - 1, "exit", depth), norm)
