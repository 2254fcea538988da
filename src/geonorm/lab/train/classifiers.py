"""Images for a model that tells their classes apart, whether a run trained it or transformers holds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import ConfigError, DataError, cause
from ...probes.subject import tokens_of_image
from ..data.image_batches import validation_images
from ..data.images import Images, LabelledImages, Pixels
from ..data.objectives import Pair
from ..data.pixels import pillow
from ..open import OpenedClassifier, OpenedImages
from .images import check_classes, shown


@dataclass(frozen=True)
class Asked:
    """What a model is asked about images: its function from pixels to logits, the names of its classes by logit, its
    tokens of an image, and batches (part of the images, rows of a batch, most images) of pixels and classes."""

    model: nn.Module
    classes: tuple[str, ...]
    tokens: int
    batches: Callable[[Images, int, int | None], Iterator[Pair]]


def ask(opened: OpenedImages | OpenedClassifier, images: LabelledImages) -> Asked:
    """DataError where the images have classes that the model does not know, ConfigError where it does not say how it
    reads them."""
    if isinstance(opened, OpenedImages):
        check_classes(Path(opened.name), images)
        shape = opened.model.config

        def fitted(part: Images, rows: int, most: int | None) -> Iterator[Pair]:
            return validation_images(part, rows, shape.image_size, most)

        return Asked(opened.model, images.classes, shape.context, fitted)
    config = opened.model.config
    names = tuple(str(config.id2label[number]) for number in range(config.num_labels))
    if strange := [name for name in images.classes if name not in names]:
        raise DataError(
            f"{images.name} has class {strange[0]!r}, which {opened.name} does not tell apart (id2label: "
            f"{shown(names)}): give images of its classes, under their names"
        )
    if twice := next((name for name in images.classes if names.count(name) > 1), None):
        raise DataError(
            f"{opened.name} calls more than one of its classes {twice!r} (id2label): which is meant is not known"
        )
    place = torch.tensor([names.index(name) for name in images.classes])
    tokens = tokens_of_image(config)
    if tokens is None:
        raise ConfigError(f"{opened.name} ({config.model_type}) does not say how many patches it makes of an image")
    prepare = partial(process, opened.processor)

    def prepared(part: Images, rows: int, most: int | None) -> Iterator[Pair]:
        for pixels, labels in validation_images(part, rows, prepare, most):
            yield pixels, place[labels]

    return Asked(Logits(opened.model), names, tokens, prepared)


class Logits(nn.Module):
    """A model of transformers as a function from pixels to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        logits: Tensor = self.model(pixel_values=pixels.to(self.model.dtype)).logits.float()
        return logits


def process(processor: Any, images: list[Pixels]) -> Tensor:
    """What a model's own processor makes of decoded images: (images, channels, height, width)."""
    make = pillow("images").fromarray  # of an array three pixels high nobody could tell height from colours
    try:
        found: Tensor = processor([make(image) for image in images], return_tensors="pt")["pixel_values"]
    except (ValueError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"the processor of this model makes no pixels of these images ({cause(error)[:200]})"
        ) from None
    return found
