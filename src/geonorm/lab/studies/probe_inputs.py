"""What a probe reads: a model, and the text or images that its hidden states are measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...devices import pick_device
from ...errors import ConfigError, DataError
from ...nn.trunk import IGNORED
from ...probes.blockwise import load_one_block
from ...probes.config import ProbeConfig
from ...probes.subject import Inputs, Subject
from ..data import Tokenizer, open_source
from ..data.images import open_images
from ..data.objectives import HELD_OUT
from ..open import Opened, OpenedClassifier, OpenedImages, OpenedRun, open_model
from ..train.classifiers import ask

WINDOWS, IMAGE_TOKENS = 8, 4096
"""Of a forward pass, where nobody says. An image has few tokens: eight of them cost much the same as hundreds."""


def open_probed(name: str, config: ProbeConfig) -> Opened:
    """A run of ours or a Hugging Face model, as the settings say. ConfigError or CheckpointError, one line."""
    device = pick_device(config.device)
    build = partial(load_one_block, device=device, stacks=config.stacks(), dtype=config.dtype)
    return open_model(
        name, device, causal=False, dtype=config.dtype, tokenizer=config.tokenizer, revision=config.revision,
        trust_remote_code=config.trust_remote_code, build=build if config.one_block else None,
    )  # fmt: skip


def read_data(
    opened: Opened, subject: Subject, data: str, c: ProbeConfig
) -> tuple[Sequence[Tensor | Inputs], Sequence[Tensor | Inputs] | None]:
    """Text or images for an opened model, in batches: what hidden states are measured on, and what losses are, if any
    is asked for and that is something else."""
    if isinstance(opened, OpenedImages | OpenedClassifier):
        return images_of(opened, data, c.tokens, c.batch, c.bos)
    context = min(c.context, opened.context or c.context)
    begin = beginning(opened.tokenizer, opened.name) if c.bos else None
    windows = text(data, opened.encode, c.tokens, context, vocabulary(subject), begin).split(c.batch or WINDOWS)
    losses = c.gradients or c.ablate_blocks
    return windows, ask_masked(opened, windows, c.bos) if losses else None


def ask_masked(opened: Opened, batches: Sequence[Tensor], bos: bool = False) -> Sequence[Tensor | Inputs]:
    """What the loss of a model is measured on: ids, of a model of masked tokens masked, with labels. bos: windows begin
    with the token that begins a text, which is never masked."""
    if opened.causal:
        return batches
    objective, found, number = opened.objective(), list[Inputs](), 0
    front, name = int(bos), "" if isinstance(opened, OpenedRun) else "input_ids"
    for ids in batches:
        windows = torch.cat((ids[:, front:], ids[:, :1]), 1).numpy()  # objectives are handed the token behind a window
        inputs, labels = objective.pairs(windows, [number + row for row in range(len(ids))], HELD_OUT)
        inputs, labels = torch.cat((ids[:, :front], inputs), 1), F.pad(labels, (front, 0), value=IGNORED)
        found.append({name: inputs, "labels": labels})
        number += len(ids)
    return found


def images_of(
    opened: OpenedImages | OpenedClassifier, data: str, tokens: int, batch: int | None, bos: bool = False
) -> tuple[list[Tensor | Inputs], list[Inputs]]:
    """Held-out images in batches, spread over all of them, as many as make so many tokens; and the same with labels.
    DataError where their classes are not the model's."""
    if bos:
        raise ConfigError("--bos is of text: an image has no token that begins it")
    images = open_images(data)
    asked = ask(opened, images)
    batch = batch or max(1, IMAGE_TOKENS // asked.tokens)
    found = list(asked.batches(images.validation, batch, max(1, tokens // asked.tokens)))
    if isinstance(opened, OpenedImages):
        return [given for given, _ in found], [{"": given, "labels": labels} for given, labels in found]
    named = [{"pixel_values": given.to(opened.model.dtype)} for given, _ in found]
    return list(named), [{**given, "labels": labels} for given, (_, labels) in zip(named, found, strict=True)]


def text(
    data: str, encode: Callable[[str], list[int]], tokens: int, context: int, vocabulary: int | None = None,
    begin: int | None = None,
) -> Tensor:  # fmt: skip
    """(windows, context) of running text, at most `tokens`: the held-out part first; what is left over at the end is
    dropped, unless it is all there is. begin: the id that every window begins with, in the place of one of the text.
    DataError for no token at all, and for ids that the model does not know."""
    source = open_source(data)
    ids: list[int] = []
    for document in chain(source.documents("validation"), source.documents("train")):
        ids.extend(encode(document))
        if len(ids) >= tokens:
            break
    del ids[tokens:]
    if len(ids) < 2:
        raise DataError("the text is empty: nothing to probe")
    if vocabulary is not None and max(ids) >= vocabulary:
        raise DataError(f"the tokenizer gives ids up to {max(ids)}, the model knows {vocabulary}")
    context = min(context, tokens) - (begin is not None)
    rows = max(1, len(ids) // context)
    found = torch.tensor(ids[: rows * context]).view(rows, -1)
    return found if begin is None else torch.cat([torch.full((rows, 1), begin), found], 1)


def beginning(tokenizer: Any, name: str) -> int:
    """The id that begins a text: of ours the one that ends the text before. ConfigError where there is none."""
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.eos
    found = [getattr(tokenizer, f"{kind}_token_id", None) for kind in ("bos", "cls")]
    known = [each for each in found if each is not None]
    if not known:
        raise ConfigError(f"the tokenizer of {name} has no token that begins a text: leave out --bos")
    return int(known[0])


def vocabulary(subject: Subject) -> int | None:
    return getattr(subject.config or getattr(subject.model, "config", None), "vocab_size", None)
