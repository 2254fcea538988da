"""The data of a run or a comparison, by its objective."""

from __future__ import annotations

from ..config import Recipe
from .images import ImageSet, load_images
from .text import Text, load_text

Data = Text | ImageSet


def load_data(config: Recipe) -> Data:
    """DataError for anything unusable, before anything is written."""
    return load_images(config) if config.objective == "classify" else load_text(config)
