"""Pixels of an image: decoded, brought to the size of a model, changed by chance, normalised."""

from __future__ import annotations

import io
import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataError, cause
from .files import import_extra

MEAN = STD = 0.5
"""What is taken off every channel, and what it is divided by: 0 to 255 becomes -1 to 1, whatever the images (ViT)."""
CHANGES = 2**64 - 2
"""Second half of the key of the random bits of changes; that of the order of the data is an epoch."""


def pillow(name: str) -> Any:
    """Pillow's module of images. DataError where it is not installed, for the image of that name."""
    return import_extra("PIL.Image", f"{name}: reading images", "train")


def decode_file(content: bytes, name: str) -> NDArray[np.uint8]:
    """(height, width, 3) of an image file of any format that Pillow knows. DataError with its name if it is damaged."""
    images = pillow(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", images.DecompressionBombWarning)
            with images.open(io.BytesIO(content)) as image:
                if image.mode in ("I", "F"):
                    raise DataError(f"{name}: pixels of mode {image.mode} have no largest value: convert it to 8 bits")
                if image.mode.startswith("I;16"):  # grey of 16 bits, which Pillow would cut off at 255
                    grey = np.rint(np.asarray(image) / 257).astype(np.uint8)
                    return np.repeat(grey[:, :, None], 3, axis=2)
                return np.asarray(image.convert("RGB"))
    except DataError:
        raise
    except Exception as error:  # Pillow raises a dozen kinds for damage, by format
        kind = "not an image" if isinstance(error, images.UnidentifiedImageError) else cause(error)
        raise DataError(f"{name}: cannot be decoded ({' '.join(kind.split())[:120]}): replace or remove it") from error


NARROW = 100
"""How many times longer than wide an image may be."""


def crop(pixels: NDArray[np.uint8], size: int, name: str) -> NDArray[np.uint8]:
    """The middle (size, size, 3) of an image whose shorter side is scaled to that, bilinear; as it is where it fits.
    DataError for one whose sides differ too much."""
    height, width, _ = pixels.shape
    if (height, width) == (size, size):
        return pixels
    if max(height, width) > NARROW * min(height, width):
        raise DataError(f"{name}: {width} by {height} pixels are too narrow to be cut to a square: remove it")
    images, short = pillow(name), min(height, width)
    scaled = size * width // short, size * height // short
    image = images.fromarray(pixels).resize(scaled, images.Resampling.BILINEAR)
    left, top = (scaled[0] - size) // 2, (scaled[1] - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


def change(pixels: NDArray[np.uint8], pad: int, flip: bool, bits: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """An image of the same size (size, size, 3): cut out of itself with `pad` pixels of black around it, and mirrored
    or not. bits: three random numbers, for the row, the column and the mirror."""
    size = len(pixels)
    if pad:
        around = np.pad(pixels, ((pad, pad), (pad, pad), (0, 0)))
        top, left = (int(each % np.uint64(2 * pad + 1)) for each in bits[:2])
        pixels = around[top : top + size, left : left + size]
    return pixels[:, ::-1] if flip and int(bits[2]) & 1 else pixels


def change_bits(seed: int, sample: int) -> NDArray[np.uint64]:
    """Three random numbers of a training sample: a function of the seed and its number alone."""
    # raw bits, whose stream numpy keeps for ever; the counter gives each sample blocks of its own
    key, counter = np.array([seed, CHANGES], np.uint64), np.array([0, sample, 0, 0], np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(3)


def normalise(images: list[NDArray[np.uint8]]) -> Tensor:
    """(images, 3, size, size) in fp32, from -1 to 1."""
    stacked = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)
    return (stacked.float() / 255 - MEAN) / STD
