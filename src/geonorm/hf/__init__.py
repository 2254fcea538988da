"""transformers: our models there, theirs under another scheme. Importing this registers ours with the Auto classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import ConfigError
from ..lazy import load_on_use

try:
    import transformers
except ImportError as error:
    raise ConfigError("geonorm.hf needs transformers: pip install 'geonorm[hf]'") from error
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

from .apply import Report, apply, restore, scheme_of
from .card import card
from .config import GeoNormConfig
from .export import adapt, export
from .layouts import layout_of
from .modeling import (
    GeoNormForCausalLM,
    GeoNormForMaskedLM,
    GeoNormModel,
    GeoNormPreTrainedModel,
)
from .rules import Rule, rule_of
from .stock import to_stock

if TYPE_CHECKING:
    from .trainer import ConstrainCallback, Trainer

__all__ = [
    "ConstrainCallback",
    "GeoNormConfig",
    "GeoNormForCausalLM",
    "GeoNormForMaskedLM",
    "GeoNormModel",
    "GeoNormPreTrainedModel",
    "Report",
    "Rule",
    "Trainer",
    "adapt",
    "apply",
    "card",
    "export",
    "layout_of",
    "restore",
    "rule_of",
    "scheme_of",
    "to_stock",
]

transformers.AutoConfig.register("geonorm", GeoNormConfig, exist_ok=True)
transformers.AutoModel.register(GeoNormConfig, GeoNormModel, exist_ok=True)
transformers.AutoModelForCausalLM.register(GeoNormConfig, GeoNormForCausalLM, exist_ok=True)
CAUSAL["geonorm"] = GeoNormForCausalLM.__name__  # by these names Trainer knows whose labels to shift
transformers.AutoModelForMaskedLM.register(GeoNormConfig, GeoNormForMaskedLM, exist_ok=True)
# what builds on transformers.Trainer takes a second to import
__getattr__ = load_on_use(__name__, {"ConstrainCallback": "trainer", "Trainer": "trainer"})
