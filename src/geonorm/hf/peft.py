"""LoRA on our models: PEFT finds where to put it without being told."""

from __future__ import annotations

from importlib.util import find_spec

TARGETS = r".*\.branch\.(attn\.)?(q|v)"
"""Queries and values, as PEFT's table has it for most models; "all-linear" for every matrix but the head."""


def introduce() -> None:
    """Enters our models into the table by which PEFT finds `target_modules` where a user names none."""
    if find_spec("peft") is None:
        return
    try:
        from peft.utils import constants
    except ImportError:  # a release that does not go with this transformers says so to whoever uses it
        return
    constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.setdefault("geonorm", TARGETS)
