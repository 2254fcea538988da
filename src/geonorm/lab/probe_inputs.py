"""The inputs of a probe: a model, and the text or images that its hidden states are measured on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices import pick_device
from ..errors import ConfigError, DataError, cause
from ..measure.config import ProbeConfig
from ..measure.probe import Inputs
from ..models.decoder import IGNORED
from .data import Tokenizer, open_source
from .data.batches import HELD_OUT
from .open import Opened, OpenedClassifier, OpenedRun, open_model

WINDOWS, IMAGE_TOKENS = 8, 4096
"""Of a forward pass by default. An image has few tokens: eight of them cost much the same as hundreds."""
IMAGES = frozenset(".jpg .jpeg .png .webp .bmp .gif .tif .tiff .ppm".split())
"""How names of image files end."""


def open_probed(name: str, config: ProbeConfig) -> Opened:
    """A run of ours or a Hugging Face model by the settings of a probe. ConfigError or CheckpointError, one line."""
    return open_model(
        name, pick_device(config.device), causal=False, dtype=config.dtype, tokenizer=config.tokenizer,
        revision=config.revision, trust_remote_code=config.trust_remote_code,
    )  # fmt: skip


def read_data(
    opened: Opened, data: str, config: ProbeConfig
) -> tuple[Sequence[Tensor | Inputs], Sequence[Tensor | Inputs]]:
    """Text or images for an opened model, in batches; and the same with labels, where the probe needs a loss of
    labels."""
    losses = config.gradients or config.ablate_blocks
    if isinstance(opened, OpenedClassifier):
        return image_batches(opened, data, config.tokens, config.batch, losses)
    if opened.tokenizer is None:
        raise ConfigError("a model in memory needs its tokenizer to read text: tokenizer=..., or give ids")
    batches = text_windows(opened, data, config).split(config.batch or WINDOWS)
    return batches, masked_batches(opened, batches, config.bos) if losses and not opened.causal else batches


def text_windows(opened: Opened, data: str, config: ProbeConfig) -> Tensor:
    """(windows, context) of running text: the held-out part first; the rest at the end is dropped, unless it is all of
    the text. DataError for no token at all."""
    source = open_source(data)
    ids: list[int] = []
    for document in chain(source.documents("validation"), source.documents("train")):
        ids.extend(opened.encode(document))
        if len(ids) >= config.tokens:
            break
    del ids[config.tokens :]
    if len(ids) < 2:
        raise DataError("the text is empty: nothing to probe")
    context = min(config.context, opened.context or config.context, config.tokens) - config.bos
    rows = max(1, len(ids) // context)
    windows = torch.tensor(ids[: rows * context]).view(rows, -1)
    return F.pad(windows, (1, 0), value=beginning_of_text(opened)) if config.bos else windows


def beginning_of_text(opened: Opened) -> int:
    """The id that begins a text; of ours the one that ends the text before. ConfigError for a tokenizer without one."""
    tokenizer = opened.tokenizer
    if isinstance(tokenizer, Tokenizer):
        return tokenizer.eos
    ids = [getattr(tokenizer, f"{kind}_token_id", None) for kind in ("bos", "cls")]
    first = next((each for each in ids if each is not None), None)
    if first is None:
        raise ConfigError(f"the tokenizer of {opened.name} has no token that begins a text: leave out --bos")
    return int(first)


def masked_batches(opened: Opened, batches: Sequence[Tensor], bos: bool) -> list[Inputs]:
    """The batches with masked tokens and their labels. bos: windows begin with the token that begins a text, which is
    never masked."""
    objective, front, number = opened.objective(), int(bos), 0
    name = "" if isinstance(opened, OpenedRun) else "input_ids"
    masked: list[Inputs] = []
    for ids in batches:
        windows = torch.cat((ids[:, front:], ids[:, :1]), 1).numpy()  # objectives read one token behind a window
        inputs, labels = objective.pairs(windows, [number + row for row in range(len(ids))], HELD_OUT)
        inputs, labels = torch.cat((ids[:, :front], inputs), 1), F.pad(labels, (front, 0), value=IGNORED)
        masked.append({name: inputs, "labels": labels})
        number += len(ids)
    return masked


def image_batches(
    opened: OpenedClassifier, data: str, tokens: int, batch: int | None, losses: bool
) -> tuple[list[Inputs], list[Inputs]]:
    """Images of a folder of folders, one for each class, spread over all of them, as many as make so many tokens; for
    losses the same with labels. DataError for a folder without images."""
    files = sorted(path for path in Path(data).expanduser().glob("*/**/*") if path.suffix.lower() in IMAGES)
    if not files:
        raise DataError(f"{data} holds no images: give a folder of folders with images, one for each class")
    config = opened.model.config
    each = (config.image_size // config.patch_size) ** 2 + 1  # square patches and a class token
    count, size = min(len(files), max(1, tokens // each)), batch or max(1, IMAGE_TOKENS // each)
    chosen = [files[place * len(files) // count] for place in range(count)]
    groups = [chosen[first : first + size] for first in range(0, count, size)]
    pixels: list[Inputs] = [{"pixel_values": pixels_of(opened, group)} for group in groups]
    if not losses:
        return pixels, pixels
    labels = [labels_of(opened, group) for group in groups]
    return pixels, [{**inputs, "labels": classes} for inputs, classes in zip(pixels, labels, strict=True)]


def pixels_of(opened: OpenedClassifier, files: Sequence[Path]) -> Tensor:
    """Images through the model's own processor: (images, channels, height, width). DataError for a damaged one."""
    from transformers.image_utils import load_image

    try:
        images = [load_image(str(path)) for path in files]
        pixels: Tensor = opened.processor(images, return_tensors="pt")["pixel_values"]
    except Exception as error:  # Pillow raises a dozen kinds for damage, by format
        raise DataError(f"{opened.name} cannot read these images ({cause(error)[:200]})") from None
    return pixels.to(opened.model.dtype)


def labels_of(opened: OpenedClassifier, files: Sequence[Path]) -> Tensor:
    """The classes of images, by the names of their folders. DataError for one that the model does not know."""
    known: dict[str, Any] = {str(name): int(number) for number, name in opened.model.config.id2label.items()}
    if strange := next((path.parent.name for path in files if path.parent.name not in known), None):
        raise DataError(f"class {strange!r} is none of {opened.name} (id2label): give images of its classes")
    return torch.tensor([known[path.parent.name] for path in files])
