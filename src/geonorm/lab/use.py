"""What is done with a finished run: evaluate it on any text, generate from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import ConfigError, DataError
from ..nn.sampling import generate
from . import parallel
from .config import MAX_SEED, within
from .data import Source, Tokenizer, load_tokenizer, open_source, prepare
from .data.batches import validation_batches
from .evaluate import held_out, with_perplexity
from .train import EVALUATION_BATCH, load_run

NO_TEXT = Source("no text", "", (), {})
"""In the place of a source for a tokenizer that is read from a file: a run needs nothing but its directory."""
MOST_TOKENS = 1_000_000


def evaluate_text(path: Path, data: str, tokens: int | None, device_name: str) -> dict[str, Any]:
    """Loss of a run on a text, in windows of the run's context: on its held-out part where the text comes with one or
    is what the run was trained on, else on all of it."""
    if tokens is not None:
        within("tokens", tokens, 1)
    device = parallel.pick_device(device_name)
    model, config, tokenizer_file = load_run(path, device)
    source = open_source(data)
    tokenizer = load_tokenizer(str(tokenizer_file), source, model.config.vocab_size)
    text = prepare(source, tokenizer)
    seen = text.sha256 == trained_on(path)
    # the fingerprint holds the share to hold out exactly where the text has no held-out part of its own
    whole = not seen and source.fingerprint != open_source(data, validation_fraction=0.5).fingerprint
    ids = np.concatenate((text.train, text.validation)) if whole else text.validation
    context = model.config.context
    batches = validation_batches(ids, max(1, EVALUATION_BATCH // context), context, tokens)
    with parallel.precision(config.runtime, device):
        result = with_perplexity(held_out(model, batches, text.token_bytes, device))
    about = {"run": str(path), "scheme": config.scheme, "data": data, "part": "all" if whole else "held-out"}
    return {**about, "data_sha256": text.sha256, **result}


def trained_on(path: Path) -> str | None:
    """Hash of the tokens that a run was trained on."""
    try:
        environment = json.loads((path / "environment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return environment.get("data_sha256") if isinstance(environment, dict) else None


def generate_text(
    path: Path, prompt: str, tokens: int, temperature: float, top_k: int | None, seed: int, device_name: str
) -> Iterator[str]:
    """The prompt and then new text, piece by piece as it is decoded."""
    within("tokens", tokens, 1, MOST_TOKENS)
    within("seed", seed, 0, MAX_SEED)
    within("temperature", temperature, 0)
    device = parallel.pick_device(device_name)
    model, _, tokenizer_file = load_run(path, device)
    tokenizer = load_tokenizer(str(tokenizer_file), NO_TEXT, model.config.vocab_size)
    try:
        ids = [int(i) for i in tokenizer.encode([prompt])[0]] if prompt else [tokenizer.eos]
    except UnicodeEncodeError:
        raise ConfigError("the prompt is not valid Unicode text") from None
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
