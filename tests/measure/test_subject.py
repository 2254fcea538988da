"""A model that is probed is left as it was; its losses are its own."""

from __future__ import annotations

import copy

import pytest
import torch

import geonorm
from geonorm.errors import ConfigError
from geonorm.measure.subject import Subject

from ..rows import each
from .test_capture import Tiny


def test_a_probe_leaves_modes_and_gradients_alone(tiny_model: Tiny) -> None:
    """Modes module by module, also after an error; gradients that wait for a step."""
    model, inputs = tiny_model("gpt2")
    model = copy.deepcopy(model).train()
    model.transformer.h[1].mlp.eval()
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    modes = [module.training for module in model.modules()]
    grads = {name: p.grad.clone() for name, p in model.named_parameters()}
    found = geonorm.probe(model, inputs["input_ids"], gradients=True, ablate_blocks=True)
    assert all(row["grad_norm"] > 0 for row in found.sites)
    again = geonorm.probe(model, inputs["input_ids"], gradients=True)
    assert [row["grad_norm"] for row in again.sites] == [row["grad_norm"] for row in found.sites]  # without dropout
    with pytest.raises(ConfigError, match="cannot read the data"):
        geonorm.probe(model, torch.ones(1, 99).long())
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.named_parameters())


@each("case", ["gpt2", "llama", "bert-decoder", "t5", "bert"])
def test_the_loss_at_labels_is_the_models_own(case: str, tiny_model: Tiny) -> None:
    """Of a part of the tokens, next to padding; of an encoder-decoder also where labels alone say what it reads."""
    model, inputs = tiny_model(case)
    labels = torch.randint(3, 60, (2, 9), generator=torch.Generator().manual_seed(5))
    labels[0, :4], labels[1, 7:] = -100, -100
    mask = torch.ones(2, 9).long()
    mask[1, 6:] = 0  # labels, not the mask, say what counts
    given = {**inputs, "attention_mask": mask, "labels": labels}
    given.pop("decoder_input_ids", None)
    with torch.no_grad():
        wanted = model(**given).loss
    assert torch.allclose(Subject(model).loss(given), wanted, rtol=1e-5)
    loss = geonorm.probe(model, given, ablate_blocks=True).loss
    assert loss == pytest.approx(wanted.item(), rel=1e-5)
