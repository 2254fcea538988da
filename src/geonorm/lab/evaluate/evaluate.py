"""`geonorm eval`: the loss of a run or a Hugging Face model on any text, and results of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...devices import pick_device
from ...errors import CheckpointError, ConfigError, DataError
from ...measure.load import predicts_masked
from ...progress import Pace, show_progress
from ..data import open_source, tokenize
from ..data.batches import Pair, validation_batches
from ..data.files import sha256_of
from ..data.source import find_local
from ..open import Opened, OpenedRun, open_model
from ..runs.folder import check_writable
from ..runs.provenance import seen_data
from ..train.evaluate import evaluate_held_out, with_perplexity
from ..train.validation import EVALUATION_BATCH
from .config import EvalConfig
from .downstream import Tasks, adapt_decoder, language_model

WINDOW = 2048
"""Most tokens of a window of text for Hugging Face models, unless --context says otherwise."""


def evaluate(c: EvalConfig, live: bool = False) -> dict[str, Any]:
    """Loss on a text and results of tasks, for a run or a Hugging Face model. The definitions of local tasks are
    written to `out`, so that lm-evaluation-harness can repeat them by itself. live: bars on stderr. CheckpointError if
    `out` cannot be written or holds something else than an evaluation, such as a run."""
    if c.out is not None:
        check_writable(out := Path(c.out))
        if out.exists() and not {entry.name for entry in out.iterdir()} <= {"summary.json", "tasks"}:
            raise CheckpointError(f"{out} is not empty and holds no evaluation; choose another --out")
    tasks = Tasks(c.tasks, c.limit) if c.tasks else None
    opened = open_model(c.model, pick_device(c.device), scheme=c.scheme)
    if tasks is not None and not opened.causal:
        raise ConfigError(f"{opened.name} predicts masked tokens: --tasks need a model of the next token")
    context = window(opened, c.context)
    result = describe_model(opened)
    if c.data is not None:
        result.update(evaluate_text(opened, context, c.data, c.tokens, live))
    if tasks is not None:
        model, tokenizer = opened.model, opened.tokenizer
        if isinstance(opened, OpenedRun):
            model, tokenizer = adapt_decoder(model, tokenizer)
        with opened.precision():
            lm = language_model(model, tokenizer, c.batch_size, live)
            scores = tasks.scores(lm)
        result.update(tasks=scores, limit=c.limit, harness=f"lm_eval {version('lm_eval')}")
        if lm.too_long:
            result["too_long"] = {name: sorted(documents) for name, documents in lm.too_long.items()}
        if c.out is not None:
            tasks.write(Path(c.out) / "tasks")
    return result


def describe_model(opened: Opened) -> dict[str, Any]:
    if isinstance(opened, OpenedRun):
        return {"run": opened.name, "scheme": opened.config.scheme}
    config = opened.model.config
    return {"model": opened.name, "model_type": config.model_type, "scheme": getattr(config, "scheme", None)}


def trained_on(opened: Opened) -> set[str]:
    """sha256 of all data of a run, or of the run that a folder was exported from, as far as they are on record."""
    if not isinstance(opened, OpenedRun):
        return set((getattr(opened.model.config, "trained_on_sha256", None) or "").split())
    try:
        return seen_data(Path(opened.name))
    except CheckpointError:  # environment.json is missing
        return set()


def window(opened: Opened, context: int | None) -> int:
    """Tokens of a window of text. ConfigError for a --context that the model cannot read."""
    if isinstance(opened, OpenedRun):
        if context is not None:
            raise ConfigError("--context is for Hugging Face models; a run is read in windows of its own context")
        return opened.model.config.context
    first = first_token(opened.tokenizer) is not None  # which stands before every window
    longest = (opened.context or WINDOW) - first
    if context is not None and context > longest:
        raise ConfigError(f"--context {context} does not fit {opened.name}: its context is {longest}")
    return context or min(longest, WINDOW - first)


def evaluate_text(opened: Opened, context: int, data: str, tokens: int | None, live: bool = False) -> dict[str, Any]:
    """Loss, perplexity and bits per byte in windows of the model's context, of masked tokens accuracy too: on the
    held-out part where the text comes with one or is the run's training text, else on all of it. `trained_on` names
    the files among these that the run was trained on, if there are any."""
    source = open_source(data)
    text = tokenize(source, opened.reader)
    known = text.sha256 in trained_on(opened)
    whole = not source.own_split and not known
    ids = np.concatenate((text.train, text.validation)) if whole else text.validation
    opened.check(int(ids.max()))
    objective = opened.objective()
    if tokens is not None and tokens < (least := min(context, len(ids))):
        raise ConfigError(f"--tokens {tokens} is less than a window of this model: give {least} or more")
    batches = validation_batches(ids, max(1, EVALUATION_BATCH // context), context, tokens, objective)
    model = opened.model
    scorer = model if isinstance(opened, OpenedRun) else Scorer(model, first_token(opened.tokenizer))
    count = min(len(ids), tokens or len(ids))
    with opened.precision(), show_progress(live, tell=False) as bars:
        watched = show_share(batches, count / context, partial(bars.show, f"{count:,} tokens of {data}"))
        losses = evaluate_held_out(scorer, watched, text.token_bytes, opened.device, accuracy=objective.accuracy)
    result: dict[str, Any] = {"data": data, "part": "all" if whole else "held-out", "data_sha256": text.sha256}
    if not known and (files := find_training_files(opened, data)):
        result["trained_on"] = files
    return result | with_perplexity(losses)


def find_training_files(opened: Opened, data: str) -> list[str]:
    """Of the files that are evaluated those whose content a run was trained on, as far as its data are still there."""
    if not isinstance(opened, OpenedRun):
        return []
    try:
        training, files = find_local(opened.config.data), find_local(data)
    except DataError:
        return []
    if training is None or files is None:
        return []
    sums = {sha256_of(path) for path in training.train}
    return [str(path) for path in files.validation or files.train if sha256_of(path) in sums]


def show_share(batches: Iterable[Pair], windows: float, show: Callable[..., None]) -> Iterator[Pair]:
    """The batches as they are; after each show(share of so many windows, seconds left)."""
    done, pace = 0, Pace()
    for batch in batches:
        yield batch
        done += len(batch[0])
        show(min(1.0, done / windows), left=pace.left(done, windows))


def first_token(tokenizer: Any) -> int | None:
    """The token that the tokenizer puts before every text (Llama, Gemma, BERT); None if it puts none (GPT-2)."""
    ids = tokenizer("a").input_ids
    first = ids[0] if ids else None
    begins = (tokenizer.bos_token_id, tokenizer.cls_token_id)
    return int(first) if first is not None and first in begins else None


class Scorer(nn.Module):
    """A Hugging Face model under `evaluate_held_out`: sum or mean of nats of targets. A window begins with the
    tokenizer's first token where the model knows texts only with it."""

    def __init__(self, model: Any, begin: int | None) -> None:
        super().__init__()
        self.model, self.begin = model, begin

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the tokens of windows (rows, tokens)."""
        count = ids.shape[1]
        if self.begin is not None:
            ids = torch.cat((ids.new_full((ids.shape[0], 1), self.begin), ids), dim=1)
        settings = {} if predicts_masked(self.model.config) else {"use_cache": False}
        logits: Tensor = self.model(ids, **settings).logits[:, -count:].float()
        return logits

    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten(), reduction=reduction)
