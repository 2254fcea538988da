"""The model of a configuration, whatever it reads."""

from __future__ import annotations

from .config import ModelConfig, VisionConfig
from .decoder import Decoder
from .vision import VisionTransformer


def build(config: ModelConfig) -> Decoder | VisionTransformer:
    """A new model with drawn weights."""
    return VisionTransformer(config) if isinstance(config, VisionConfig) else Decoder(config)
