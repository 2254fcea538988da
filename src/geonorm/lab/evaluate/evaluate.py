"""What is done with a finished run: evaluate it on any text, generate from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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
from ...models.sampling import NOT_CAUSAL, generate, sample
from ...progress import Pace, show_progress
from ..data import Tokenizer, open_source, tokenize
from ..data.batches import Pair, validation_batches
from ..data.files import sha256_of
from ..data.source import find_local
from ..open import Opened, OpenedRun, open_model
from ..runs.folder import check_writable
from ..runs.provenance import seen_data
from ..train.evaluate import evaluate_held_out, with_perplexity
from ..train.validation import EVALUATION_BATCH
from .config import EvalConfig, GenerateConfig
from .downstream import Tasks, adapt_decoder, listener

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
            lm = listener(model, tokenizer, c.batch_size, live)
            answers = tasks.ask(lm)
        result.update(tasks=answers, limit=c.limit, harness=f"lm_eval {version('lm_eval')}")
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
    """sha256 of all data of a run, or of the run that a folder was exported from. Empty where nothing says
    it."""
    if not isinstance(opened, OpenedRun):
        return set((getattr(opened.model.config, "trained_on_sha256", None) or "").split())
    with suppress(CheckpointError):  # a run that does not say
        return seen_data(Path(opened.name))
    return set()


def check_window(asked: int | None, least: int, what: str) -> None:
    """ConfigError where fewer tokens are asked for than are read at a time."""
    if asked is not None and asked < least:
        raise ConfigError(f"--tokens {asked} is less than {what} of this model: give {least} or more")


def window(opened: Opened, asked: int | None) -> int:
    """Tokens of a window of text. ConfigError where the model does not read as many as are asked for."""
    if isinstance(opened, OpenedRun):
        if asked is not None:
            raise ConfigError("--context is for Hugging Face models; a run is read in windows of its own context")
        return opened.model.config.context
    first = first_token(opened.tokenizer) is not None  # which stands before every window
    longest = (opened.context or WINDOW) - first
    if asked is not None and not 1 <= asked <= longest:
        raise ConfigError(f"--context {asked} does not fit {opened.name}: its context is {longest}")
    return asked or min(longest, WINDOW - first)


def evaluate_text(opened: Opened, context: int, data: str, tokens: int | None, live: bool = False) -> dict[str, Any]:
    """Loss, perplexity and bits per byte in windows of the model's context, of masked tokens accuracy too: on the
    held-out part where the text comes with one or is what the run was trained on, else on all of it. `trained_on` names
    the files among these that the run was trained on, if there are any."""
    source = open_source(data)
    ours = isinstance(opened, OpenedRun)
    text = tokenize(source, opened.reader)
    whole = not source.own_split and text.sha256 not in trained_on(opened)
    ids = np.concatenate((text.train, text.validation)) if whole else text.validation
    opened.check(int(ids.max()))
    objective = opened.objective()
    check_window(tokens, min(context, len(ids)), "a window")
    batches = validation_batches(ids, max(1, EVALUATION_BATCH // context), context, tokens, objective)
    scorer = opened.model if ours else Scorer(opened.model, first_token(opened.tokenizer))
    count = min(len(ids), tokens or len(ids))
    with opened.precision(), show_progress(live, tell=False) as shown:
        read = tell_share(batches, count / context, partial(shown.show, f"{count:,} tokens of {data}"))
        result = with_perplexity(
            evaluate_held_out(scorer, read, text.token_bytes, opened.device, accuracy=objective.accuracy)
        )
    told: dict[str, Any] = {"data": data, "part": "all" if whole else "held-out", "data_sha256": text.sha256}
    if text.sha256 not in trained_on(opened) and (learned := find_training_files(opened, data)):
        told["trained_on"] = learned
    return {**told, **result}


def find_training_files(opened: Opened, data: str) -> list[str]:
    """Of the files that are evaluated those whose content a run was trained on, as far as its data are still where it
    found them."""
    if not isinstance(opened, OpenedRun):
        return []
    try:
        own, asked = find_local(opened.config.data), find_local(data)
    except DataError:
        return []
    if own is None or asked is None:
        return []
    sums = {sha256_of(path) for path in own.train}
    return [str(path) for path in asked.validation or asked.train if sha256_of(path) in sums]


def tell_share(batches: Iterable[Pair], windows: float, told: Callable[..., None]) -> Iterator[Pair]:
    """The batches as they are; tells after each what share of so many windows is done, and seconds that are left."""
    done, pace = 0, Pace()
    for batch in batches:
        yield batch
        done += len(batch[0])
        told(min(1.0, done / windows), left=pace.left(done, windows))


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


def generate_text(config: GenerateConfig) -> Iterator[str]:
    """The prompt and then new text of a run or a Hugging Face model, piece by piece as it is decoded."""
    c, device = config, pick_device(config.device)
    opened = open_model(c.run, device, scheme=c.scheme)
    if not opened.causal:
        raise ConfigError(NOT_CAUSAL)
    ids, ends, writer, read = (of_run if isinstance(opened, OpenedRun) else of_transformers)(opened, c.prompt)
    opened.check(max(ids))
    yield (told := read(ids))
    generator = torch.Generator(device).manual_seed(c.seed)
    for token in writer(torch.tensor([ids], device=device), c.tokens, c.temperature, c.top_k, generator):
        ids.append(int(token))
        if ids[-1] in ends:
            return
        text = read(ids)
        if not text.endswith("\N{REPLACEMENT CHARACTER}"):  # half a character: wait for the rest
            yield text[len(told) :]
            told = text


Speaker = tuple[list[int], set[int], Callable[..., Iterator[Tensor]], Callable[[list[int]], str]]
"""Ids of the prompt, ids that end a text, what writes new ids, what makes text of ids."""


def of_run(opened: Opened, prompt: str) -> Speaker:
    tokenizer = opened.tokenizer
    ids = opened.encode(prompt) if prompt else [tokenizer.eos]
    return ids, {tokenizer.eos}, partial(generate, opened.model), partial(decode, tokenizer)


def of_transformers(opened: Opened, prompt: str) -> Speaker:
    model, tokenizer = opened.model, opened.tokenizer
    start = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    ids = list(tokenizer(prompt).input_ids) if prompt else [] if start is None else [start]
    if not ids:
        raise ConfigError("this tokenizer has no token that begins a text: give a --prompt")
    ends = model.generation_config.eos_token_id
    ends = set(ends if isinstance(ends, list) else [ends]) - {None}
    return ids, ends, partial(generate_cached, model), partial(tokenizer.decode, skip_special_tokens=True)


@torch.no_grad()
def generate_cached(
    model: Any, ids: Tensor, tokens: int, temperature: float, top_k: int | None, generator: torch.Generator
) -> Iterator[Tensor]:
    """As `nn.generate`, for a model of transformers."""
    from ...hf.versions import CACHE

    past, fresh = None, ids
    for _ in range(tokens):
        if past is not None and renews(model, past.get_seq_length(), ids.shape[1]):
            past, fresh = None, ids
        try:
            out = model(fresh, use_cache=True, **{CACHE: past})
        except IndexError:  # learned positions have an end
            longest = getattr(model.config, "max_position_embeddings", "unknown")
            raise ConfigError(f"prompt and new tokens are more than the context of this model: {longest}") from None
        past, fresh = getattr(out, CACHE), sample(out.logits[:, -1].float(), temperature, top_k, generator)
        ids = torch.cat((ids, fresh), dim=1)
        yield fresh


def renews(model: Any, past: int, tokens: int) -> bool:
    """Whether a text that grows so turns all its tokens anew (longrope), so that what is kept of them is of no use."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", 0)
    return rope.get("rope_type") == "longrope" and past <= (original or 0) < tokens


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    try:
        return tokenizer.decode(i for i in ids if i != tokenizer.eos)
    except (ValueError, IndexError) as error:
        raise DataError(f"the tokenizer cannot decode: {error}") from None
