"""What is done with a finished run: evaluate it on any text, generate from it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError, DataError
from ..nn.sampling import generate
from . import parallel
from .data import Tokenizer, load_tokenizer, open_source, prepare
from .data.batches import validation_batches
from .evaluate import held_out, with_perplexity
from .train import EVALUATION_BATCH, load_run


def evaluate_text(path: Path, data: str, tokens: int | None, device_name: str) -> dict[str, Any]:
    """Loss of a run on a text: its held-out part where the source has one, in windows of the run's context."""
    device = parallel.pick_device(device_name)
    model, config, tokenizer_file = load_run(path, device)
    source = open_source(data)
    tokenizer = load_tokenizer(str(tokenizer_file), source, model.config.vocab_size)
    text = prepare(source, tokenizer)
    context = model.config.context
    batches = validation_batches(text.validation, max(1, EVALUATION_BATCH // context), context, tokens)
    result = with_perplexity(held_out(model, batches, text.token_bytes, device))
    return {"run": str(path), "scheme": config.scheme, "data": data, "data_sha256": text.sha256, **result}


def generate_text(
    path: Path, prompt: str, tokens: int, temperature: float, top_k: int | None, seed: int, device_name: str
) -> Iterator[str]:
    """The prompt and then new text, piece by piece as it is decoded."""
    device = parallel.pick_device(device_name)
    model, config, tokenizer_file = load_run(path, device)
    tokenizer = load_tokenizer(str(tokenizer_file), open_source(config.data), model.config.vocab_size)
    ids = [int(i) for i in tokenizer.encode([prompt])[0]] if prompt else [tokenizer.eos]
    if tokens < 1:
        raise ConfigError(f"tokens must be at least 1, got {tokens}")
    generator = torch.Generator(device).manual_seed(seed)
    told = ""
    for token in generate(model, torch.tensor([ids], device=device), tokens, temperature, top_k, generator):
        ids.append(int(token))
        if ids[-1] == tokenizer.eos:
            return
        text = decode(tokenizer, ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character: wait for the rest
            yield text[len(told) :]
            told = text


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    try:
        return tokenizer.decode(i for i in ids if i != tokenizer.eos)
    except (ValueError, IndexError) as error:
        raise DataError(f"the tokenizer cannot decode: {error}") from None
