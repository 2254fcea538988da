"""Batches of images as a pure function of (seed, step), and fixed validation images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ...errors import DataError
from .batches import Shuffled, pick_evenly
from .images import Images, Pixels
from .objectives import Pair
from .pixels import change, change_bits, crop, normalise


class ImageBatches(Shuffled):
    """Training batches: which images stand in row j of step s, and how each is changed, depends on the seed and nothing
    else; see `Shuffled`."""

    def __init__(self, images: Images, batch_size: int, size: int, pad: int, flip: bool, seed: int) -> None:
        """size: height and width in pixels; pad, flip: as for `pixels.change`. DataError for too few images."""
        super().__init__(len(images), batch_size, seed)
        self.images, self.size, self.pad, self.flip = images, size, pad, flip
        if len(images) < batch_size:
            raise DataError(f"{len(images)} images do not fill a batch of {batch_size}: use more, or a smaller batch")

    def at(self, step: int, rows: slice | range | None = None) -> Pair:
        """(images, labels) of a step: fp32 (batch_size, 3, size, size) and int64 (batch_size,), or some rows of it.
        DataError that names an image which cannot be decoded."""
        samples, numbers = self.pick(step, rows)
        found = [
            change(read_fitted(self.images, number, self.size), self.pad, self.flip, change_bits(self.seed, sample))
            for sample, number in zip(samples, numbers, strict=True)
        ]
        return normalise(found), torch.from_numpy(self.images.labels[numbers])


def validation_images(
    images: Images, batch_size: int, size: int | Callable[[list[Pixels]], Tensor], most: int | None = None
) -> Iterator[Pair]:
    """(images, labels) in order, unchanged, at most `batch_size` in a batch. size: height and width in pixels, or what
    makes a batch of decoded images of any size. At most `most` images, but at least one, spread evenly over all."""
    for numbers in pick_evenly(len(images), most, batch_size):
        if isinstance(size, int):
            found = normalise([read_fitted(images, number, size) for number in numbers])
        else:
            found = size([images.pixels(number) for number in numbers])
        yield found, torch.from_numpy(images.labels[numbers])


def read_fitted(images: Images, number: int, size: int) -> Pixels:
    return crop(images.pixels(number), size, images.called(number))
