"""What is done with a finished run: evaluate it on any text, generate from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...devices import pick_device
from ...errors import CheckpointError, ConfigError, DataError
from ...nn.sampling import generate, sample
from ..compare.clusters import within
from ..config import MAX_SEED, EvalConfig
from ..data import Tokenizer, open_source, prepare
from ..data.batches import validation_batches
from ..data.source import NO_TEXT
from ..open import Subject, open_subject
from ..runs.made import parts
from ..studies.simulate import writable
from ..train.evaluate import held_out, with_perplexity
from ..train.validation import EVALUATION_BATCH
from .tasks import Tasks, listener

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
            lm = listener(*subject.theirs(), c.batch_size, live)
            answers = tasks.ask(lm)
        result.update(tasks=answers, limit=c.limit, harness=f"lm_eval {version('lm_eval')}")
        if lm.too_long:
            result["too_long"] = {name: sorted(documents) for name, documents in lm.too_long.items()}
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
        known = parts(path)
    except CheckpointError:
        return None
    return known[-1].get("data_sha256") if known else None


def generate_text(
    name: str, prompt: str, tokens: int, temperature: float, top_k: int | None, seed: int, device_name: str
) -> Iterator[str]:
    """The prompt and then new text of a run or a Hugging Face model, piece by piece as it is decoded."""
    within("tokens", tokens, 1, MOST_TOKENS)
    within("seed", seed, 0, MAX_SEED)
    within("temperature", temperature, 0)
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise ConfigError("the prompt is not valid Unicode text") from None
    device = pick_device(device_name)
    subject = open_subject(name, device)
    speak = of_run if "run" in subject.about else of_transformers
    ids, ends, writer, read = speak(subject, prompt)
    told = ""
    for token in writer(torch.tensor([ids], device=device), tokens, temperature, top_k, generator_of(seed, device)):
        ids.append(int(token))
        if ids[-1] in ends:
            return
        text = read(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character: wait for the rest
            yield text[len(told) :]
            told = text


def generator_of(seed: int, device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(seed)


Speaker = tuple[list[int], set[int], Callable[..., Iterator[Tensor]], Callable[[list[int]], str]]
"""Ids of the prompt, ids that end a text, what writes new ids, what makes text of ids."""


def of_run(subject: Subject, prompt: str) -> Speaker:
    tokenizer = subject.tokenizer(NO_TEXT)
    ids = [int(i) for i in tokenizer.encode([prompt])[0]] if prompt else [tokenizer.eos]
    return ids, {tokenizer.eos}, partial(generate, subject.scorer), partial(decode, tokenizer)


def of_transformers(subject: Subject, prompt: str) -> Speaker:
    model, tokenizer = subject.theirs()
    start = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    ids = list(tokenizer(prompt).input_ids) if prompt else [] if start is None else [start]
    if not ids:
        raise ConfigError("this tokenizer has no token that begins a text: give a --prompt")
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends]) - {None}
    return ids, ends, partial(continued, model), partial(tokenizer.decode, skip_special_tokens=True)


@torch.no_grad()
def continued(
    model: Any, ids: Tensor, tokens: int, temperature: float, top_k: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """As `nn.generate`, for a model of transformers."""
    past, fresh = None, ids
    for _ in range(tokens):
        try:
            out = model(fresh, past_key_values=past, use_cache=True)
        except IndexError:  # learned positions have an end
            longest = getattr(model.config, "max_position_embeddings", "unknown")
            raise ConfigError(f"prompt and new tokens are more than the context of this model: {longest}") from None
        past, fresh = out.past_key_values, sample(out.logits[:, -1].float(), temperature, top_k, generator)
        yield fresh


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    try:
        return tokenizer.decode(i for i in ids if i != tokenizer.eos)
    except (ValueError, IndexError) as error:
        raise DataError(f"the tokenizer cannot decode: {error}") from None
