"""Models for engines that know a base model and a head and nothing else."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import torch

from ..nn.decoder import SoftCap
from ..schemes import Scheme, parse
from .modeling import GeoNormForCausalLM, language_model


@torch.no_grad()
def fold(model: GeoNormForCausalLM) -> GeoNormForCausalLM:
    """The model with the learned scale on its logits multiplied into the head, a row for each token, and into its bias;
    itself where its scheme has none.

    A new model with equal logits to rounding, whose scheme says `head=plain`; all other weights are shared with the
    old one, but a tied head becomes a weight of its own, and each model keeps the numbers of its blocks (`layer`). It
    may be trained on: as what it then is, with a free head. What is frozen stays so.
    """
    model = language_model(model)
    slot = model.logits_slot.before if isinstance(model.logits_slot, SoftCap) else model.logits_slot
    if slot is None:
        return model
    weights = model.state_dict()
    head = model.lm_head.weight
    scale = slot(torch.ones(len(head), dtype=torch.float32, device=head.device))
    weights = {name: value for name, value in weights.items() if not name.startswith("logits_slot.")}
    weights["lm_head.weight"] = (head.float() * scale.unsqueeze(1)).to(head.dtype)
    if (bias := model.lm_head.bias) is not None:
        weights["lm_head.bias"] = (bias.float() * scale).to(bias.dtype)
    config = copy.deepcopy(model.config)
    config.scheme, config.tie_word_embeddings = str(plain_head(parse(config.scheme))), False
    with torch.device("meta"):
        folded = GeoNormForCausalLM(config)
    folded.load_state_dict(weights, strict=True, assign=True)
    for name, parameter in folded.named_parameters():
        parameter.requires_grad_(model.get_parameter(name).requires_grad)
    folded.generation_config = model.generation_config
    return folded.train(model.training)


def plain_head(scheme: Scheme) -> Scheme:
    """The scheme with `head=plain` wherever it, or a scheme in one of its fields, says anything of the head: without a
    slot on the logits and without a constraint on the head's weight."""
    found = {f.name: getattr(scheme, f.name) for f in fields(scheme)}
    changes: dict[str, Any] = {name: plain_head(part) for name, part in found.items() if isinstance(part, Scheme)}
    return replace(scheme, **changes, **({"head": "plain"} if "head" in found else {}))
