"""LoRA on our models: PEFT finds where to put it without being told."""

from __future__ import annotations

import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from typing import Any

TARGETS = r".*\.branch\.(attn\.)?(q|v)"
"""Queries and values, as PEFT's table has it for most models; "all-linear" for every matrix but the head."""
TABLES = "peft.utils.constants"


def introduce() -> None:
    """Enters our models into the table by which PEFT finds `target_modules` where a user names none: now, or when PEFT
    is imported. It takes seconds, and most programs do without."""
    if TABLES in sys.modules:
        enter(sys.modules[TABLES])
    elif not any(isinstance(finder, Introduction) for finder in sys.meta_path):
        sys.meta_path.insert(0, Introduction())


def enter(tables: Any) -> None:
    tables.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault("geonorm", TARGETS)


class Introduction(MetaPathFinder):
    """Sees PEFT's tables when they are imported, once; finds nothing itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != TABLES:
            return None
        sys.meta_path.remove(self)
        spec: Any = find_spec(name)
        run = spec.loader.exec_module

        def run_and_enter(module: Any) -> None:
            run(module)
            enter(module)

        spec.loader.exec_module = run_and_enter
        return spec
