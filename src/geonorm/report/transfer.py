"""The coordinate check of `geonorm check-transfer`, as tables on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .tables import align

TITLES = ("turn", "sum of angles", "coherence", "to base after 1 step", "4 steps", "16 steps")


def text_lines(summary: Mapping[str, Any]) -> list[str]:
    """For each scheme a table over depth and one over width, exponents below, then the advice."""
    lines: list[str] = []
    for scheme in summary["schemes"]:
        for axis, exponents in scheme["exponents"].items():
            cells = [
                [str(row[axis]), f"{row['turn']:.2e}", f"{row['path']:.3g}", f"{row['coherence']:.3g}",
                 format_interval(row["ratio_1"]), f"{row['ratio_4'][0]:.2f}", f"{row['ratio_16'][0]:.2f}"]
                for row in scheme[axis]
            ]  # fmt: skip
            first, *later = exponents.values()
            last = ["exponent", "", "", "", format_interval(first), *(f"{exponent[0]:.2f}" for exponent in later)]
            lines += [*align([[f"{scheme['scheme']}, {axis}", *TITLES], *cells, last]), ""]
        lines += [*scheme["advice"], ""]
    return lines[:-1]


def format_interval(interval: Sequence[float]) -> str:
    """1.45 (1.40 to 1.50)"""
    mean, low, high = interval
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"
