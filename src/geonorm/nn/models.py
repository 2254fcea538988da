"""The model of a configuration, whatever it reads."""

from __future__ import annotations

from .config import ModelConfig, VisionConfig
from .decoder import Decoder
from .encoder_decoder import EncoderDecoder
from .vision import VisionTransformer


def build(config: ModelConfig) -> Decoder | VisionTransformer:
    """A new model with drawn weights."""
    if isinstance(config, VisionConfig):
        return VisionTransformer(config)
    return Decoder(config) if config.encoder_layers is None else EncoderDecoder(config)
