"""What the source distribution of transformers leaves out of its tests, as far as its common model tests import it.

Tests that live in what is left out (generation, exporters, training on several ranks) do not run on stand-ins.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import Any

CPU = ("_get_distributed_backend", "_get_distributed_device_type")
RANKS = ("_get_rank_device", "_set_rank_device", "_start_rank_processes", "run_distributed")


def stand_in() -> None:
    """For every module of `tests` that is not there; a copy of transformers' whole repository needs none."""
    put("distributed_testing_utils", lambda: {**dict.fromkeys(CPU, lambda: "cpu"), **dict.fromkeys(RANKS)})
    put("exporters.test_export", lambda: {"ExportTesterMixin": type("ExportTesterMixin", (), {})})
    put("generation.test_utils", lambda: {"GenerationTesterMixin": type("GenerationTesterMixin", (), {})})
    put("causal_lm_tester", lambda: {"CausalLMModelTester": Sizes, "CausalLMModelTest": common_tests()})


def put(name: str, content: Callable[[], dict[str, Any]]) -> None:
    name = f"tests.{name}"
    package = name.rpartition(".")[0]
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, package):
            raise
        if error.name == package:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = []
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content())


class Sizes:
    """A small model of the classes that a subclass names, and what is fed to it."""

    base_model_class: Any
    config_class: Any
    causal_lm_class: Any
    sequence_classification_class: Any = None

    def __init__(self, parent: Any) -> None:
        from transformers.testing_utils import _TEXT_MODEL_TESTER_DEFAULTS

        self.parent = parent
        vars(self).update(_TEXT_MODEL_TESTER_DEFAULTS)
        self.initializer_range, self.tie_word_embeddings = 0.02, False

    @property
    def all_model_classes(self) -> list[Any]:
        known = (self.base_model_class, self.causal_lm_class, self.sequence_classification_class)
        return [one for one in known if one is not None]

    def get_config(self) -> Any:
        names = [*signature(self.config_class.__init__).parameters, "pad_token_id"]
        return self.config_class(
            **{name: getattr(self, name) for name in names if name != "self" and hasattr(self, name)}
        )

    def prepare_config_and_inputs_for_common(self) -> tuple[Any, dict[str, Any]]:
        import torch
        from tests.test_modeling_common import ids_tensor  # type: ignore[import-not-found]

        ids = ids_tensor([self.batch_size, self.seq_length], self.vocab_size)  # type: ignore[attr-defined]
        return self.get_config(), {"input_ids": ids, "attention_mask": torch.tril(torch.ones_like(ids))}


def common_tests() -> type:
    from tests.test_modeling_common import ModelTesterMixin

    def prepare(case: Any) -> None:
        case.model_tester = case.model_tester_class(case)
        case.all_model_classes = case.model_tester.all_model_classes

    # its tests of generation are not here, which one test would notice
    left_out = dict.fromkeys(("test_generation_tester_mixin_inheritance",))
    return type("CausalLMModelTest", (ModelTesterMixin,), {"setUp": prepare, **left_out})
