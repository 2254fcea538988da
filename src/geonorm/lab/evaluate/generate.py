"""`geonorm generate`: text from a run or a Hugging Face model."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...devices import pick_device
from ...errors import ConfigError, require
from ...models.sampling import NOT_CAUSAL, generate, sample
from ..open import OpenedRun, open_model
from .config import GenerateConfig


def generate_text(c: GenerateConfig) -> Iterator[str]:
    """The prompt and then new text of a run or a Hugging Face model, piece by piece as it is decoded."""
    device = pick_device(c.device)
    opened = open_model(c.run, device, scheme=c.scheme)
    require(opened.causal, NOT_CAUSAL)
    model, tokenizer = opened.model, opened.tokenizer
    if isinstance(opened, OpenedRun):
        ids = opened.encode(c.prompt) if c.prompt else [opened.begin_id]
        ends, new_ids, decode = [opened.begin_id], partial(generate, model), tokenizer.decode
    else:
        ids = list(tokenizer(c.prompt).input_ids) if c.prompt else [opened.begin_id]
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        new_ids, decode = partial(generate_cached, model), partial(tokenizer.decode, skip_special_tokens=True)
    opened.check_id(max(ids))
    yield (written := decode(ids))
    prompt, generator = torch.tensor([ids], device=device), torch.Generator(device).manual_seed(c.seed)
    for token in new_ids(prompt, c.tokens, c.temperature, c.top_k, generator):
        ids.append(int(token))
        if ids[-1] in ends:
            return
        text = decode(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character: wait for the rest
            yield text[len(written) :]
            written = text


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
