"""transformers' own common tests of models on our classes, one class for each scheme: test_common.py runs them.

`tests` of transformers' source distribution stands on the path; what that leaves out has a stand-in here.
"""

from __future__ import annotations

import sys
import unittest
from inspect import signature
from types import ModuleType
from typing import Any

CPU = dict.fromkeys(("_get_distributed_backend", "_get_distributed_device_type"), lambda: "cpu")
RANKS = dict.fromkeys(("_get_rank_device", "_set_rank_device", "_start_rank_processes", "run_distributed"))
ABSENT: dict[str, dict[str, Any]] = {
    "distributed_testing_utils": {**CPU, **RANKS},
    "exporters": {},
    "exporters.test_export": {"ExportTesterMixin": type("ExportTesterMixin", (), {})},
    "generation": {},
    "generation.test_utils": {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})},
}
"""Modules of `tests`, and what the common tests import from them."""
for name, content in ABSENT.items():
    module = sys.modules[f"tests.{name}"] = ModuleType(f"tests.{name}")
    vars(module).update(content, **({"__path__": []} if not content else {}))

import torch  # noqa: E402
from tests.test_modeling_common import ModelTesterMixin, ids_tensor  # type: ignore[import-not-found]  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402

from geonorm import hf  # noqa: E402

# the tests look in transformers' tables of names whether a class takes labels
for table, kind in (
    ("", "Model"),
    ("_FOR_CAUSAL_LM", "ForCausalLM"),
    ("_FOR_MASKED_LM", "ForMaskedLM"),
):
    getattr(modeling_auto, f"MODEL{table}_MAPPING_NAMES")["geonorm"] = f"GeoNorm{kind}"


SIZES: dict[str, Any] = {
    "batch_size": 13, "seq_length": 7, "is_training": True, "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 32, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


class Tester:
    """A small model of each class, and what is fed to it."""

    is_causal, scheme = True, "geonorm"
    base_model_class, config_class = hf.GeoNormModel, hf.GeoNormConfig
    causal_lm_class: Any = hf.GeoNormForCausalLM

    def __init__(self, parent: Any) -> None:
        vars(self).update(SIZES, parent=parent)

    def get_config(self) -> Any:
        names = [*signature(self.config_class.__init__).parameters, "pad_token_id"]
        return hf.GeoNormConfig(
            **{name: getattr(self, name) for name in names if name != "self" and hasattr(self, name)}
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)  # type: ignore[attr-defined]
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.tril(torch.ones_like(ids))}


def prepare(case: Any) -> None:
    case.model_tester = case.sizes(case)
    kinds = ("base_model_class", "causal_lm_class")
    case.all_model_classes = [getattr(case.sizes, kind) for kind in kinds]


for scheme in ("geonorm", "ngpt", "hyper", "masked"):
    fields = (
        {"scheme": scheme} if scheme != "masked" else {"is_causal": False, "causal_lm_class": hf.GeoNormForMaskedLM}
    )
    # its tests of generation are not here, which one test would notice
    body = {"setUp": prepare, "sizes": type("Tester", (Tester,), fields)}
    body["test_generation_tester_mixin_inheritance"] = None
    globals()[f"Test{scheme.capitalize()}"] = type(scheme, (ModelTesterMixin, unittest.TestCase), body)

set_any = hf.GeoNormConfig.__setattr__


def set_what_it_can_have(config: Any, name: str, value: Any) -> None:
    """Theirs set a window wherever a configuration has the name; ours refuses one with an encoder."""
    set_any(config, name, value if name != "sliding_window" or config.is_causal else None)


hf.GeoNormConfig.__setattr__ = set_what_it_can_have  # type: ignore[method-assign, assignment]
