"""Sampling from a decoder, one token at a time, with a key-value cache."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import GeonormError, require
from ..modes import evaluating
from .attention import LayerCache
from .decoder import Decoder

NOT_CAUSAL = "this model attends to both sides of a token (--objective mlm), so it cannot write text"


@torch.no_grad()
def generate(
    model: Decoder,
    ids: Tensor,
    tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Tensor]:
    """Yields `tokens` new ids of shape (batch, 1) after the prompt ids (batch, length).

    temperature, at least 0: 0 is greedy. top_k, at least 1: of the likeliest so many. Raises ConfigError for others, an
    empty prompt, or a model that attends to both sides.

    >>> model = geonorm.Decoder(geonorm.models.preset("nano", layers=1, vocab_size=256))
    >>> len(list(geonorm.models.generate(model, torch.tensor([[1, 2, 3]]), tokens=4)))
    4
    """
    require(model.config.causal, NOT_CAUSAL)
    require(ids.shape[1] > 0, "the prompt has no tokens; give at least one")
    require(temperature >= 0 and (top_k is None or top_k >= 1), "temperature must be at least 0 and top_k at least 1")
    with evaluating(model):
        cache = [LayerCache(ids.shape[1] + tokens) for _ in model.blocks]
        for _ in range(tokens):
            ids = sample(model(ids, cache)[:, -1].float(), temperature, top_k, generator)
            yield ids


def sample(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """One id per row of logits (batch, vocab_size), shape (batch, 1). GeonormError where they hold NaN or infinity."""
    largest = logits.amax(-1, keepdim=True)
    if not bool(largest.isfinite().all()):
        raise GeonormError("the logits are not finite: this model has diverged (geonorm probe says where it breaks)")
    if temperature < torch.finfo(torch.float32).tiny:  # 0, or what fp32 takes for it
        return logits.argmax(-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
    logits = logits - largest  # stays finite at any temperature
    temperature = min(temperature, torch.finfo(torch.float32).max)  # what is left out is -inf, and over inf NaN
    return torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=generator)
