"""What a probe reads: a model, and the text or images that its hidden states are measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices import pick_device
from ..errors import ConfigError, DataError, cause
from ..measure.config import ProbeConfig
from ..measure.subject import Inputs, Subject, tokens_of_image
from ..models.trunk import IGNORED
from .data import Tokenizer, open_source
from .data.batches import HELD_OUT
from .data.files import import_extra
from .open import Opened, OpenedClassifier, OpenedRun, open_model

WINDOWS, IMAGE_TOKENS = 8, 4096
"""Of a forward pass, where nobody says. An image has few tokens: eight of them cost much the same as hundreds."""
IMAGES = frozenset(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm".split())
"""How names of image files end."""


def open_probed(name: str, config: ProbeConfig) -> Opened:
    """A run of ours or a Hugging Face model, as the settings say. ConfigError or CheckpointError, one line."""
    return open_model(
        name, pick_device(config.device), causal=False, dtype=config.dtype, tokenizer=config.tokenizer,
        revision=config.revision, trust_remote_code=config.trust_remote_code,
    )  # fmt: skip


def read_data(
    opened: Opened, subject: Subject, data: str, c: ProbeConfig
) -> tuple[Sequence[Tensor | Inputs], Sequence[Tensor | Inputs] | None]:
    """Text or images for an opened model, in batches: what hidden states are measured on, and what losses are, if any
    is asked for and that is something else."""
    losses = c.gradients or c.ablate_blocks
    if isinstance(opened, OpenedClassifier):
        if c.bos:
            raise ConfigError("--bos is of text: an image has no token that begins it")
        return images_of(opened, data, c.tokens, c.batch, losses)
    context = min(c.context, opened.context or c.context)
    begin = beginning(opened.tokenizer, opened.name) if c.bos else None
    windows = text(data, opened.encode, c.tokens, context, vocabulary(subject), begin).split(c.batch or WINDOWS)
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


def find_images(data: str) -> list[Path]:
    """The image files of a folder of folders, one for each class, in the order of their names. DataError where there is
    none."""
    files = sorted(path for path in Path(data).expanduser().glob("*/**/*") if path.suffix.lower() in IMAGES)
    if not files:
        raise DataError(f"{data} holds no images: give a folder of folders with images, one for each class")
    return files


def images_of(
    opened: OpenedClassifier, data: str, tokens: int, batch: int | None, losses: bool
) -> tuple[list[Inputs], list[Inputs] | None]:
    """Images in batches, spread over all of them, as many as make so many tokens; for losses the same with labels."""
    each = tokens_of_image(opened.model.config)
    if each is None:
        raise ConfigError(f"{opened.name} does not say how many patches it makes of an image")
    files = find_images(data)
    count, size = min(len(files), max(1, tokens // each)), batch or max(1, IMAGE_TOKENS // each)
    chosen = [files[place * len(files) // count] for place in range(count)]
    groups = [chosen[first : first + size] for first in range(0, count, size)]
    pixels: list[Inputs] = [{"pixel_values": pixels_of(opened, group)} for group in groups]
    if not losses:
        return pixels, None
    labels = [labels_of(opened, group) for group in groups]
    return pixels, [{**inputs, "labels": classes} for inputs, classes in zip(pixels, labels, strict=True)]


def pixels_of(opened: OpenedClassifier, files: Sequence[Path]) -> Tensor:
    """What the model's own processor makes of images: (images, channels, height, width)."""
    try:
        pixels: Tensor = opened.processor([read_image(path) for path in files], return_tensors="pt")["pixel_values"]
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(f"the processor of {opened.name} makes no pixels of images ({cause(error)[:200]})") from None
    return pixels.to(opened.model.dtype)


def read_image(path: Path) -> Any:
    images = import_extra("PIL.Image", f"{path}: reading images", "train")
    try:
        with images.open(path) as image:
            return image.convert("RGB")
    except Exception as error:  # Pillow raises a dozen kinds for damage, by format
        raise DataError(f"{path}: cannot be decoded ({cause(error)[:120]}): replace or remove it") from None


def labels_of(opened: OpenedClassifier, files: Sequence[Path]) -> Tensor:
    """The classes of images, by the names of their folders. DataError for one that the model does not know."""
    known = {str(name): int(number) for number, name in opened.model.config.id2label.items()}
    if strange := next((path.parent.name for path in files if path.parent.name not in known), None):
        raise DataError(f"class {strange!r} is none of {opened.name} (id2label): give images of its classes")
    return torch.tensor([known[path.parent.name] for path in files])


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
