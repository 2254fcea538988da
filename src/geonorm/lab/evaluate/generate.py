"""`geonorm generate`: text from a run or a Hugging Face model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...devices import pick_device
from ...errors import ConfigError
from ...models.sampling import NOT_CAUSAL, generate, sample
from ..open import Opened, OpenedRun, open_model
from .config import GenerateConfig


class Writer(NamedTuple):
    """A model that writes."""

    prompt: list[int]
    ends: set[int]
    """Ids that end a text."""
    new_ids: Callable[..., Iterator[Tensor]]
    decode: Callable[[list[int]], str]


def generate_text(config: GenerateConfig) -> Iterator[str]:
    """The prompt and then new text of a run or a Hugging Face model, piece by piece as it is decoded."""
    device = pick_device(config.device)
    opened = open_model(config.run, device, scheme=config.scheme)
    if not opened.causal:
        raise ConfigError(NOT_CAUSAL)
    ids, ends, new_ids, decode = (of_run if isinstance(opened, OpenedRun) else of_transformers)(opened, config.prompt)
    opened.check(max(ids))
    yield (written := decode(ids))
    generator = torch.Generator(device).manual_seed(config.seed)
    for token in new_ids(
        torch.tensor([ids], device=device), config.tokens, config.temperature, config.top_k, generator
    ):
        ids.append(int(token))
        if ids[-1] in ends:
            return
        text = decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character: wait for the rest
            yield text[len(written) :]
            written = text


def of_run(opened: Opened, prompt: str) -> Writer:
    tokenizer = opened.tokenizer
    ids = opened.encode(prompt) if prompt else [tokenizer.eos]
    return Writer(
        ids,
        {tokenizer.eos},
        partial(generate, opened.model),
        lambda ids: tokenizer.decode(i for i in ids if i != tokenizer.eos),
    )


def of_transformers(opened: Opened, prompt: str) -> Writer:
    model, tokenizer = opened.model, opened.tokenizer
    starts = [i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None]
    ids = list(tokenizer(prompt).input_ids) if prompt else starts[:1]
    if not ids:
        raise ConfigError("this tokenizer has no token that begins a text: give a --prompt")
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends]) - {None}
    return Writer(ids, ends, partial(generate_cached, model), partial(tokenizer.decode, skip_special_tokens=True))


@torch.no_grad()
def generate_cached(
    model: Any, ids: Tensor, tokens: int, temperature: float, top_k: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """As `sampling.generate`, for a model of transformers. Its own `generate` draws from the global generator, under
    the defaults of the model's folder."""
    from ...hf.versions import CACHE

    past, fresh = None, ids
    for _ in range(tokens):
        try:
            out = model(fresh, use_cache=True, **{CACHE: past})
        except IndexError:  # learned positions have an end
            longest = getattr(model.config, "max_position_embeddings", "unknown")
            raise ConfigError(f"prompt and new tokens are more than the context of this model: {longest}") from None
        past, fresh = getattr(out, CACHE), sample(out.logits[:, -1].float(), temperature, top_k, generator)
        yield fresh
