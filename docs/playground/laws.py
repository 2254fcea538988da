"""The laws that the playground offers, as a script for its page: those of the schemes, with their colours."""

from __future__ import annotations

import json
import math
from typing import Any

import torch

import geonorm
from geonorm.dynamics.rates import unit_parts
from geonorm.report.style import looks
from geonorm.schemes import read_at

CLAMPED = {"geonorm": "s = r t max(1, |v| / (π/4 r)), r' = 0"}
"""Laws with the clamp on the angle, which a scheme's page states apart."""


def length_read(name: str) -> list[float]:
    """[k, p, q]: attention reads a token of length r in layer t at length k r^p t^q. With a norm before it p is 0."""

    def read(r: float, layer: int) -> float:
        scheme, site, x = geonorm.parse(name), geonorm.Site(layer, "attn", 12), torch.tensor([[r, 0.0]]).double()
        return float(read_at(scheme, x, unit_parts(scheme, site, 2, x)(), site)[0].norm())

    scale = read(1.0, 0)
    return [round(value, 12) for value in (scale, math.log2(read(2.0, 0) / scale), math.log(read(1.0, 3) / scale, 4))]


def laws() -> list[dict[str, Any]]:
    """name, law, length at which attention reads, and colours on light and dark, of each scheme that has a law."""
    schemes = [name for name in geonorm.names() if name not in {"mix", "first", "per_kind"}]
    laws = {name: CLAMPED.get(name, geonorm.parse(name).about.law) for name in schemes}
    style = {name: looks([name])[name] for name in schemes if laws[name]}
    return [
        {"name": name, "law": laws[name], "read": length_read(name), "light": look.light, "dark": look.dark}
        for name, look in style.items()
    ]


def script() -> str:
    """The content of laws.js."""
    return f"const LAWS = {json.dumps(laws(), ensure_ascii=False)};\n"
