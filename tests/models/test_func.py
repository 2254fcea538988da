"""Decoders under torch.func: gradients of every text, many models at once, directional derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap

from geonorm import Decoder, DecoderConfig, names

from ..rows import each

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def decoder(scheme: str, seed: int = 0) -> Decoder:
    torch.manual_seed(seed)
    shape = DecoderConfig(scheme=scheme, layers=2, width=16, heads=2, hidden=24, vocab_size=11, context=8)
    return Decoder(shape).double()


def ids(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(0))


@each("scheme", names())
def test_gradients_of_every_text_at_once(scheme: str) -> None:
    model, texts = decoder(scheme), ids(3, 7)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], text: Tensor) -> Tensor:
        logits = functional_call(model, weights, (text[None, :-1],))
        return torch.nn.functional.cross_entropy(logits[0], text[1:])

    every = vmap(grad(loss), in_dims=(None, 0))(weights, texts)
    for index, text in enumerate(texts):
        expected = torch.autograd.grad(model.loss(text[None, :-1], text[None, 1:]), list(model.parameters()))
        for (name, _), right in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(every[name][index], right, rtol=1e-5, atol=1e-6)


@each("scheme", ["geonorm", "pre", "ngpt"])
@each("tokens", [1, 5])
@torch.no_grad()
def test_many_models_at_once(scheme: str, tokens: int) -> None:
    models, text = [decoder(scheme, seed) for seed in range(3)], ids(1, tokens)
    found = vmap(lambda *state: functional_call(models[0], state, (text,)))(*stack_module_state(models))
    torch.testing.assert_close(found, torch.stack([model(text) for model in models]))
