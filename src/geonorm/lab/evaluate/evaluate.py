"""`geonorm eval`: the loss of a run or a Hugging Face model on any text, and results of tasks."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib.metadata import version
from math import exp, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...devices import pick_device
from ...errors import ConfigError, require
from ...measure.load import predicts_masked
from ...parsing import finite_or_none
from ...progress import Pace, show_progress
from ..data import open_source, tokenize
from ..data.batches import Pair, validation_batches
from ..open import Opened, OpenedRun, open_model, run_folder
from ..runs.folder import check_out_folder
from ..runs.provenance import seen_data
from ..train.held_out import evaluate_held_out
from ..train.validation import EVALUATION_BATCH
from .config import EvalConfig
from .downstream import Tasks, adapt_decoder, harness_model

WINDOW = 2048
"""Most tokens of a window of text for Hugging Face models, unless --context says otherwise."""


def evaluate_model(c: EvalConfig, live: bool = False) -> dict[str, Any]:
    """Loss on a text and results of tasks, for a run or a Hugging Face model. The definitions of local tasks are
    written to `out`, so that lm-evaluation-harness can repeat them by itself. live: bars on stderr. CheckpointError if
    `out` cannot be written or holds something else than an evaluation, such as a run."""
    if c.out is not None:
        names = {entry.name for entry in Path(c.out).glob("*")}
        check_out_folder(Path(c.out), "evaluation", names <= {"summary.json", "tasks"})
    tasks = Tasks(c.tasks, c.limit) if c.tasks else None
    opened = open_model(c.model, pick_device(c.device), scheme=c.scheme)
    require(
        tasks is None or opened.causal, f"{opened.name} predicts masked tokens: --tasks need a model of the next token"
    )
    result = describe_model(opened)
    if c.data is not None:
        result.update(evaluate_text(opened, window(opened, c.context), c.data, c.tokens, live, c.field))
    if tasks is not None:
        model, tokenizer = opened.model, opened.tokenizer
        if isinstance(opened, OpenedRun):
            model, tokenizer = adapt_decoder(model, tokenizer)
        with opened.precision():
            scores = tasks.scores(harness_model(model, tokenizer, c.batch_size, live))
        result.update(tasks=scores, limit=c.limit, harness=f"lm_eval {version('lm_eval')}")
        if c.out is not None:
            tasks.write(Path(c.out) / "tasks")
    return result


def describe_model(opened: Opened) -> dict[str, Any]:
    if isinstance(opened, OpenedRun):
        return {"run": opened.name, "scheme": opened.config.scheme, "step": opened.step}
    config = opened.model.config
    return {"model": opened.name, "model_type": config.model_type, "scheme": getattr(config, "scheme", None)}


def trained_on(opened: Opened) -> set[str]:
    """sha256 of all data of a run, or of the run that a folder was exported from, as far as they are on record."""
    if not isinstance(opened, OpenedRun):
        return set((getattr(opened.model.config, "trained_on_sha256", None) or "").split())
    return seen_data(run_folder(Path(opened.name)))


def window(opened: Opened, context: int | None) -> int:
    """Tokens of a window of text. ConfigError for a --context that the model cannot read."""
    first = first_token(opened) is not None  # which stands before every window
    longest = (opened.context or WINDOW) - first
    require(
        context is None or context <= longest,
        f"--context {context} does not fit {opened.name}: its context is {longest}",
    )
    return context or (longest if isinstance(opened, OpenedRun) else min(longest, WINDOW - first))


def evaluate_text(
    opened: Opened, context: int, data: str, tokens: int | None, live: bool = False, field: str | None = None
) -> dict[str, Any]:
    """Loss, perplexity and bits per byte in windows of the model's context, of masked tokens accuracy too: on the
    held-out part where the text comes with one or is the run's training text, else on all of it."""
    source = open_source(data, field)
    text = tokenize(source, opened.run_tokenizer)
    limit = opened.config.tokens.limit if isinstance(opened, OpenedRun) else None
    as_read = text if limit is None else tokenize(source, opened.run_tokenizer, limit=limit)  # by the run
    whole = not source.own_split and trained_on(opened).isdisjoint(as_read.sha256.split())
    ids = np.concatenate([text.train, text.validation] if whole else [text.validation])
    opened.check_id(int(ids.max()))
    objective = opened.objective()
    if tokens is not None and tokens < (least := min(context, len(ids))):
        raise ConfigError(f"--tokens {tokens} is less than a window of this model: give {least} or more")
    batches = validation_batches(ids, max(1, EVALUATION_BATCH // context), context, tokens, objective)
    scorer = opened.model if isinstance(opened, OpenedRun) else Scorer(opened.model, first_token(opened))
    count = min(len(ids), tokens or len(ids))
    with opened.precision(), show_progress(live, tell=False) as bars:
        watched = show_share(batches, count / context, partial(bars.show, f"{count:,} tokens of {data}"))
        losses = evaluate_held_out(scorer, watched, text.token_bytes, opened.device, accuracy=objective.accuracy)
    part = "all" if whole else "held-out"
    return {"data": data, "part": part, "data_sha256": text.sha256, **with_perplexity(losses)}


def show_share(batches: Iterable[Pair], windows: float, show: Callable[..., None]) -> Iterator[Pair]:
    """The batches as they are; after each show(share of so many windows, seconds left)."""
    done, pace = 0, Pace()
    for batch in batches:
        yield batch
        done += len(batch[0])
        show(min(1.0, done / windows), left=pace.left(done, windows))


def first_token(opened: Opened) -> int | None:
    """The token that a tokenizer of transformers puts before every text (Llama, Gemma, BERT); None if it puts none
    (GPT-2, our runs)."""
    t = opened.tokenizer
    first = None if isinstance(opened, OpenedRun) else next(iter(t("a").input_ids), None)
    return int(first) if first is not None and first in (t.bos_token_id, t.cls_token_id) else None


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
        return self.model(ids, **settings).logits[:, -count:].float()

    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        return F.cross_entropy(self(ids).flatten(0, 1), targets.flatten(), reduction=reduction)


def with_perplexity(result: dict[str, float]) -> dict[str, Any]:
    """What `geonorm eval` reports."""
    loss = result["val_loss"]
    return {
        "loss": finite_or_none(loss),
        **({} if isfinite(loss) else {"problem": "the loss is not finite: geonorm probe says where the model breaks"}),
        **({"accuracy": result["val_accuracy"]} if "val_accuracy" in result else {}),
        "perplexity": exp(loss) if loss < 700 else None,
        "bits_per_byte": finite_or_none(result.get("val_bpb")),
        "tokens": result["tokens"],
        "bytes": result["bytes"],
    }
