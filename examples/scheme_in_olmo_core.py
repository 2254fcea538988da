"""A residual scheme in OLMo-core's model, for runs that need its trainer. docs/scale.md says how."""

from __future__ import annotations

from typing import Any

from olmo_core.nn.transformer import Transformer, TransformerBlock, TransformerConfig
from torch import Tensor

from geonorm import Decoder, Residual, Site
from geonorm.norms import NormSpec
from geonorm.residual import StreamEnd


class ResidualBlock(TransformerBlock):
    """A block of OLMo-core whose residual connections hold its sub-layers. Both keep their names for what initialises,
    counts and shards them."""

    attention = property(lambda self: self.attention_residual_stream.branch)
    feed_forward = property(lambda self: self.feed_forward_residual_stream.branch)

    def forward(self, x: Tensor, *, loss_div_factor: Any = None, **context: Any) -> Tensor:
        x, reading = self.attention_residual_stream(x, then=self.feed_forward_residual_stream, **context)
        return self.feed_forward_residual_stream(x, reading=reading)


def set_scheme(model: Transformer, scheme: str, eps: float = 1e-6) -> None:
    """Put every residual connection, entry and exit of a model under a scheme, in place, before it is sharded and its
    weights are drawn."""
    depth, dim = len(model.blocks), model.d_model
    norm = NormSpec("rms", dim, True, eps)
    with model.embeddings.weight.device:
        for layer, block in enumerate(model.blocks.values()):
            for name, kind in (("attention", "attn"), ("feed_forward", "mlp")):
                del block._modules[f"{name}_norm"]
                residual = Residual(block._modules.pop(name), scheme, Site(layer, kind, depth), dim, eps=eps)
                block.add_module(f"{name}_residual_stream", residual)
            block.__class__ = ResidualBlock
        model.embedding_norm = StreamEnd(scheme, Site(0, "entry", depth), norm)
        model.lm_head.norm = StreamEnd(scheme, Site(depth - 1, "exit", depth), norm)


NAMES = {
    "embed.": "embeddings.", "head.": "lm_head.w_out.", "entry.": "embedding_norm.", "exit.": "lm_head.norm.",
    ".attn.": ".attention_residual_stream.", ".mlp.": ".feed_forward_residual_stream.", ".branch.q.": ".branch.w_q.",
    ".branch.k.": ".branch.w_k.", ".branch.v.": ".branch.w_v.", ".branch.o.": ".branch.w_out.",
    ".branch.gate.": ".branch.w1.", ".branch.up.": ".branch.w3.", ".branch.down.": ".branch.w2.",
}  # fmt: skip
"""Of weights: in our models and in OLMo-core's."""


def same_model(ours: Decoder) -> Transformer:
    """One of our decoders, of preset nano's kind, as a model of OLMo-core with the same weights."""
    c = ours.config
    model = TransformerConfig.llama_like(
        d_model=c.width, vocab_size=c.vocab_size, n_layers=c.layers, n_heads=c.heads, rope_theta=c.rope_theta,
        hidden_size_multiple_of=c.hidden, layer_norm_eps=c.eps,
    ).build()  # fmt: skip
    set_scheme(model, c.scheme, c.eps)
    weights = {}
    for name, tensor in ours.state_dict().items():
        for here, there in NAMES.items():
            name = name.replace(here, there)
        weights[name] = tensor.clone()
    model.load_state_dict(weights)
    return model
