"""The images of a run or a comparison, and what is measured on those held out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError, ConfigError, DataError
from ...modes import evaluating
from ...nn.config import ModelConfig, VisionConfig
from ...nn.trunk import Trunk
from ..config import Recipe, TrainConfig
from ..data.image_batches import ImageBatches, validation_images
from ..data.images import LabelledImages, open_images
from ..data.objectives import Pair
from ..runs.run import read_json, write_json
from ..scale.world import ALONE, World
from .evaluate import share_batches
from .validation import HeldOut

CLASSES = "classes.json"
"""Names of the classes of a run, in the order of its logits."""
FEW = 5


@dataclass
class ImageSet:
    """Training and validation images of a run."""

    images: LabelledImages
    fingerprint = ""
    """Of a tokenizer: there is none."""

    @property
    def sha256(self) -> str:
        return self.images.sha256

    def batches(self, c: TrainConfig, shape: ModelConfig) -> ImageBatches:
        assert isinstance(shape, VisionConfig)
        pad = shape.image_size // 8 if c.images.pad is None else c.images.pad
        return ImageBatches(self.images.train, c.batch_size, shape.image_size, pad, c.images.flip, c.seed)

    def validation(self, c: TrainConfig, shape: ModelConfig, device: torch.device, world: World) -> ImageValidation:
        assert isinstance(shape, VisionConfig)
        return ImageValidation(self.images, c, shape, device, world)

    def examine(self, c: TrainConfig, model: Trunk) -> None:
        """There are no tasks for images: settings that ask for some are refused."""

    def save(self, folder: Path) -> None:
        """Notes the names of the classes in the folder of a run."""
        if not (folder / CLASSES).exists():
            write_json(folder / CLASSES, list(self.images.classes))


def load_images(config: Recipe) -> ImageSet:
    """Images for a run or comparison. DataError for anything unusable, too few for one batch included."""
    shape = config.shape("pre")
    assert isinstance(shape, VisionConfig)
    if shape.channels != 3:
        raise ConfigError(f"images are read in three colours, not with model.channels {shape.channels}")
    images = open_images(config.data)
    if (count := len(images.classes)) > shape.classes:
        raise DataError(f"{images.name} has {count} classes, model.classes is {shape.classes}: --model.classes {count}")
    ImageBatches(images.train, config.batch_size, shape.image_size, 0, False, seed=0)
    for part in (images.train, images.validation):
        part.pixels(0)  # that they can be decoded at all is known before anything is written
    return ImageSet(images)


def read_classes(folder: Path) -> list[str]:
    """Names of the classes of the run in a folder. CheckpointError where it does not hold them."""
    names = read_json(folder / CLASSES) if (folder / CLASSES).exists() else None
    if not isinstance(names, list):
        raise CheckpointError(f"{folder / CLASSES} is missing or unreadable: the run directory is damaged")
    return [str(name) for name in names]


def check_classes(folder: Path, images: LabelledImages) -> None:
    """DataError where the classes of the images are not those that the run in a folder was trained on."""
    names = read_classes(folder)
    if names != list(images.classes):
        raise DataError(
            f"{images.name} has classes {shown(images.classes)}, {folder} was trained on {shown(names)}: give images "
            "of the same classes"
        )


def shown(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return text if len(text) < 60 else f"{text[:57]}..."


class ImageValidation(HeldOut):
    """The held-out images of one run."""

    def __init__(
        self, images: LabelledImages, c: TrainConfig, shape: VisionConfig, device: torch.device, world: World
    ) -> None:
        super().__init__(c, shape.context, len(images.validation) * shape.context, device, world)
        self.images, self.size = images, shape.image_size
        most = max(1, c.evaluation.tokens // shape.context)
        self.part = list(validation_images(images.validation, self.rows, shape.image_size, most))

    def on_part(self, model: Trunk) -> dict[str, Any]:
        found = measure_images(model, self.part, self.images.classes, self.device, self.world)
        return {key: value for key, value in found.items() if key not in ("val_classes", "val_images")}

    def on_all(self, model: Trunk) -> dict[str, Any]:
        batches = validation_images(self.images.validation, self.rows, self.size)
        return measure_images(model, batches, self.images.classes, self.device, self.world)


@torch.no_grad()
def measure_images(
    model: Any, batches: Iterable[Pair], classes: tuple[str, ...], device: torch.device, world: World = ALONE
) -> dict[str, Any]:
    """val_loss in nats per image; val_accuracy, the share whose class is the likeliest; val_top5, the share whose class
    is among the five likeliest (where the model tells more apart); val_images, their number; val_classes, by class its
    name, number and accuracy.

    model: from images to logits, with `eval` and `train`. Ranks take turns at the batches; every rank gets the result.
    """
    sums = torch.zeros(4, len(classes), dtype=torch.float64)  # nats, images, hits, hits among five
    told = 0
    with evaluating(model):
        for images, labels, counts in share_batches(batches, world):
            logits = model(images.to(device))
            told = logits.shape[-1]
            losses, first, five = judge_images(logits, labels.to(device))
            if counts:
                found = torch.stack((losses.double(), torch.ones_like(losses).double(), first.double(), five.double()))
                sums.index_add_(1, labels, found.cpu())
    sums = torch.tensor(world.total(sums.flatten().tolist()), dtype=torch.float64).view(4, -1)
    nats, number, hits, among = (total.item() for total in sums.sum(1))
    rows = [
        {"class": name, "images": int(count), "accuracy": right / count}
        for name, (_, count, right, _) in zip(classes, sums.T.tolist(), strict=True)
        if count
    ]
    top5 = {"val_top5": among / number} if told > FEW else {}
    whole = {"val_images": int(number), "val_classes": rows}
    return {"val_loss": nats / number, "val_accuracy": hits / number, **top5, **whole}


def judge_images(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nats of every label, whether it is the likeliest class, and whether it is among the five likeliest: (batch,)."""
    likeliest = logits.topk(min(FEW, logits.shape[-1])).indices == labels.unsqueeze(-1)
    return Trunk.cross_entropy(logits, labels, "none"), likeliest[:, 0], likeliest.any(-1)
