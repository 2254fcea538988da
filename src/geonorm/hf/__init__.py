"""geonorm models as transformers models. Importing this registers them with its Auto classes."""

from __future__ import annotations

from ..errors import ConfigError

try:
    import transformers
except ImportError as error:
    raise ConfigError("geonorm.hf needs transformers: pip install 'geonorm[hf]'") from error

from .apply import Report, apply, restore
from .card import card
from .config import GeoNormConfig
from .export import adapt, export
from .layouts import layout_of
from .modeling import GeoNormForCausalLM, GeoNormForSequenceClassification, GeoNormModel, GeoNormPreTrainedModel
from .stock import load_stock, to_stock

__all__ = [
    "GeoNormConfig",
    "GeoNormForCausalLM",
    "GeoNormForSequenceClassification",
    "GeoNormModel",
    "GeoNormPreTrainedModel",
    "Report",
    "adapt",
    "apply",
    "card",
    "export",
    "layout_of",
    "load_stock",
    "restore",
    "to_stock",
]

transformers.AutoConfig.register("geonorm", GeoNormConfig, exist_ok=True)
transformers.AutoModel.register(GeoNormConfig, GeoNormModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(GeoNormConfig, GeoNormForCausalLM, exist_ok=True)
transformers.AutoModelForSequenceClassification.register(GeoNormConfig, GeoNormForSequenceClassification, exist_ok=True)
