"""What is evaluated: a run of ours, a model folder, a name on the Hugging Face hub. One face for text and for tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import Tensor, nn

from ..errors import CheckpointError, ConfigError, DataError, UntrustedCode
from ..probes.load import check_name, with_weights
from .data import Source, Tokenizer, load_tokenizer
from .data.optional import require
from .data.source import NO_TEXT
from .data.tokenizer import FileTokenizer
from .scale import parallel
from .tasks.tasks import adapted
from .train.loop import load_run

WINDOW = 2048
"""Most tokens of a window of text for Hugging Face models, unless --context says otherwise."""


@dataclass
class Subject:
    """A causal language model that can be asked.

    about: what a summary says of it. scorer: has `loss(ids, targets, reduction)` and eval/train, as `held_out` wants.
    context: tokens of a window of text. tokenizer: ours, for a source of text. theirs: model and tokenizer for
    lm-evaluation-harness. precision: the context to run it in.
    """

    about: dict[str, Any]
    scorer: Any
    context: int
    device: torch.device
    tokenizer: Callable[[Source], Tokenizer]
    theirs: Callable[[], tuple[Any, Any]]
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext


def open_subject(name: str, device: torch.device, context: int | None = None) -> Subject:
    """The run, folder or hub model of that name, in evaluation mode. GeonormError, one line, for anything unusable."""
    path = Path(os.path.expanduser(name))
    if not path.exists():
        check_name(name)
    if (path / "config.json").is_file() or not path.exists():
        return hugging_face(str(path) if path.exists() else name, device, context)
    if context is not None:
        raise ConfigError("--context is for Hugging Face models; a run is read in windows of its own context")
    try:
        model, config, file = load_run(path, device)
    except CheckpointError as error:
        if path.is_dir() and "holds no run" in str(error):
            raise CheckpointError(f"{error}, nor a config.json of a Hugging Face model") from None
        raise
    precision = partial(parallel.precision, config.runtime, device)

    def tokenizer(source: Source) -> Tokenizer:
        return load_tokenizer(str(file), source, model.config.vocab_size)

    about = {"run": name, "scheme": config.scheme}
    theirs = partial(adapted, model, tokenizer(NO_TEXT))
    return Subject(about, model, model.config.context, device, tokenizer, theirs, precision)


def hugging_face(name: str, device: torch.device, context: int | None) -> Subject:
    """A causal language model by transformers: a folder (ours, exported ones included) or a name on the hub."""
    transformers = require("transformers", f"{name}: a Hugging Face model", "hf")
    from .. import hf  # noqa: F401  our own model types become known

    try:
        model = with_weights(transformers.AutoModelForCausalLM, name, dtype="auto").eval().to(device)
    except (UntrustedCode, CheckpointError):
        raise
    except ImportError as error:  # a quantiser, for one, that is not installed
        raise ConfigError(f"{name} cannot be loaded here: {first_line(error)}") from None
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ConfigError(f"{name} holds no run and no causal language model ({first_line(error)})") from None
    try:
        theirs = transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{name} has no tokenizer that can be read ({first_line(error)})") from None
    longest = int(getattr(model.config, "max_position_embeddings", None) or WINDOW)
    if context is not None and not 1 <= context <= longest:
        raise ConfigError(f"--context {context} does not fit {name}: its context is {longest}")
    about = {"model": name, "model_type": model.config.model_type, "scheme": getattr(model.config, "scheme", None)}
    scorer = Scorer(model, begin(theirs))
    window = context or min(longest, WINDOW) - (scorer.begin is not None)

    def tokenizer(source: Source) -> Tokenizer:
        if not getattr(theirs, "is_fast", False):
            raise DataError(f"{name} has no fast tokenizer: its bytes per token are not known, so use --tasks only")
        return FileTokenizer(name, theirs.backend_tokenizer.to_str(), theirs.eos_token)

    return Subject(about, scorer, window, device, tokenizer, lambda: (model, theirs))


def begin(tokenizer: Any) -> int | None:
    """The token that the tokenizer puts before every text (Llama and Gemma have one); None if it puts none (GPT-2)."""
    ids = tokenizer("a").input_ids
    first = ids[0] if ids else None
    return int(first) if first is not None and first == tokenizer.bos_token_id else None


class Scorer(nn.Module):
    """A Hugging Face model under `held_out`: sum or mean of nats of targets. A window begins with the tokenizer's first
    token where the model knows texts only with it."""

    def __init__(self, model: Any, begin: int | None) -> None:
        super().__init__()
        self.model, self.begin = model, begin

    def loss(self, ids: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
        if self.begin is not None:
            ids = torch.cat((ids.new_full((ids.shape[0], 1), self.begin), ids), dim=1)
        logits = self.model(ids, use_cache=False).logits[:, -targets.shape[1] :]
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction=reduction)


def first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
