"""One Transformer for all residual schemes. Names load on first use; `config` needs no torch."""

from __future__ import annotations

from importlib import import_module
from typing import Any

PUBLIC = {
    "DecoderConfig": "config",
    "PRESETS": "config",
    "preset": "config",
    "Decoder": "decoder",
    "generate": "sampling",
}

__all__ = list(PUBLIC)


def __getattr__(name: str) -> Any:
    if name in PUBLIC:
        return getattr(import_module(f".{PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module 'geonorm.nn' has no attribute {name!r}")
