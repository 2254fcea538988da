"""Our decoders as models of transformers' own architectures, with equal logits (see layouts.py).

Where one side has no gain or no bias, that is a gain of 1 or a bias of 0 on the other.
"""

from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import initialization

from ..errors import ConfigError, require
from ..models.config import DecoderConfig
from .layouts import Layout, layout_of
from .modeling import GeoNormForCausalLM

EMBEDDING = "model.embed_tokens.weight"


@torch.no_grad()
def to_stock(model: GeoNormForCausalLM, model_type: str = "stock") -> Any:
    """The same function as a model of transformers: of that architecture, or (stock) of the first
    that is equal. Memory is
    shared where a weight is the same there, and what is frozen stays so. Where the stream enters as N(embedding), the
    rows of the embedding are normalised once and for all. ConfigError if no architecture is equal.

        >>> from geonorm import hf
        >>> size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 16}
        >>> type(hf.to_stock(hf.GeoNormForCausalLM(hf.GeoNormConfig(scheme="pre", **size)))).__name__
        'LlamaForCausalLM'
    """
    require(
        isinstance(model, GeoNormForCausalLM),
        f"{type(model).__name__} is no GeoNormForCausalLM: of a changed model, undo() gives the stock one",
    )
    config = model.config.shape()
    layout = layout_of(config, model_type)
    with initialization.no_init_weights():
        out = transformers.AutoModelForCausalLM.from_config(layout.configuration(model.config))
    weights = model.state_dict()
    trained = {name for name, p in model.named_parameters(remove_duplicate=False) if p.requires_grad}
    embedding = model.model.entry(weights[EMBEDDING])
    weights[EMBEDDING] = embedding / config.width**0.5 if layout.scaled else embedding
    stock, wanted, offset = dict[str, Tensor](), out.state_dict(), layout.stack.gain_offset
    for ours, theirs in layout.pairs(config):
        for kind in ("weight", "bias"):
            sources = [name for place in ours if (name := f"{place}.{kind}") in weights]
            parts = [weights.pop(name) for name in sources]
            names = [name for place in theirs if (name := f"{place}.{kind}") in wanted]
            if parts and not names and any(part.any() for part in parts):
                raise ConfigError(
                    f"{layout.model_type} has no {kind} at {theirs[0]}, and that of {', '.join(ours)} is not 0: use "
                    "--layout geonorm"
                )
            for name in names:  # what is neutral trains unless nothing does
                out.get_parameter(name).requires_grad_(bool(trained.intersection(sources or trained)))
                value = torch.full_like(wanted[name], 1.0 if kind == "weight" else 0.0, dtype=embedding.dtype)
                if parts:
                    is_matrix = kind == "weight" and ".branch." in ours[0] and not is_gain(ours[0])
                    value = join_weights(parts, layout.transposed and is_matrix, layout, config)
                value = value - offset if offset and kind == "weight" and is_gain(ours[0]) else value
                stock[name] = value if name == names[0] else value.clone()  # files hold no shared memory
    left = set(weights) & {name for name, _ in model.named_parameters()}
    if left:
        raise ConfigError(f"{layout.model_type} has no equal for {min(left)}: use --layout geonorm")
    out.load_state_dict(stock, strict=True, assign=True)
    out.tie_weights()
    return out.train(model.training)


def is_gain(name: str) -> bool:
    return ".own." in name or ".norms." in name


def join_weights(parts: Sequence[Tensor], turn: bool, layout: Layout, config: DecoderConfig) -> Tensor:
    """Weights of ours as the one of theirs."""
    if len(parts) == 1:
        whole = parts[0]
    elif layout.by_head:
        whole = torch.cat([part.unflatten(0, (config.heads, -1)) for part in parts], dim=1).flatten(0, 1)
    else:
        whole = torch.cat(list(parts))
    return whole.t().contiguous() if turn else whole
