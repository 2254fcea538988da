"""What is done with a finished run: evaluate it on any text, generate from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..devices import pick_device
from ..errors import CheckpointError, ConfigError, DataError
from ..nn.sampling import generate
from .clusters import within
from .config import MAX_SEED, EvalConfig
from .data import Tokenizer, load_tokenizer, open_source, prepare
from .data.batches import validation_batches
from .data.source import NO_TEXT
from .evaluate import held_out, with_perplexity
from .simulations import writable
from .subject import Subject, open_subject
from .tasks import Tasks, listener
from .train import EVALUATION_BATCH, load_run

MOST_TOKENS = 1_000_000


def evaluate(config: EvalConfig, live: bool = False) -> dict[str, Any]:
    """Loss on a text and results of tasks, for a run or a Hugging Face model. The definitions of local tasks are
    written to `out`, so that lm-evaluation-harness can repeat them by itself."""
    c = config
    if c.out is not None:
        check(Path(c.out))
    tasks = Tasks(c.tasks, c.limit) if c.tasks else None
    subject = open_subject(c.model, pick_device(c.device), c.context)
    result = dict(subject.about)
    if c.data is not None:
        result.update(on_text(subject, c.data, c.tokens))
    if tasks is not None:
        with subject.precision():
            answers = tasks.ask(listener(*subject.theirs(), c.batch_size, live))
        result.update(tasks=answers, limit=c.limit, harness=f"lm_eval {version('lm_eval')}")
        if c.out is not None:
            tasks.write(Path(c.out) / "tasks")
    return result


def check(out: Path) -> None:
    """CheckpointError if `out` cannot be written or holds something else than an evaluation, such as a run."""
    writable(out)
    if out.exists() and not {entry.name for entry in out.iterdir()} <= {"summary.json", "tasks"}:
        raise CheckpointError(f"{out} is not empty and holds no evaluation; choose another --out")


def on_text(subject: Subject, data: str, tokens: int | None) -> dict[str, Any]:
    """Loss, perplexity and bits per byte in windows of the model's context: on the held-out part where the text comes
    with one or is what the run was trained on, else on all of it."""
    source = open_source(data)
    text = prepare(source, subject.tokenizer(source))
    seen = "run" in subject.about and text.sha256 == trained_on(Path(subject.about["run"]))
    # the fingerprint holds the share to hold out exactly where the text has no held-out part of its own
    whole = not seen and source.fingerprint != open_source(data, validation_fraction=0.5).fingerprint
    ids = np.concatenate((text.train, text.validation)) if whole else text.validation
    batches = validation_batches(ids, max(1, EVALUATION_BATCH // subject.context), subject.context, tokens)
    with subject.precision():
        result = with_perplexity(held_out(subject.scorer, batches, text.token_bytes, subject.device))
    return {"data": data, "part": "all" if whole else "held-out", "data_sha256": text.sha256, **result}


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
    device = pick_device(device_name)
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
