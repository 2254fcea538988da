"""The identity of figures: one hue for each base scheme."""

from __future__ import annotations

import re
from pathlib import Path

from geonorm.report.style import COLOURS, HUES

ROOT = Path(__file__).parents[2]


def test_committed_figures_have_one_hue_a_base_scheme() -> None:
    """Every mark that names its scheme; a difference of two schemes has no hue of its own."""
    marks = 0
    for file in [*ROOT.glob("experiments/*/figures/**/*.svg"), *ROOT.glob("docs/figures/*.svg")]:
        text = file.read_text("utf-8")
        for name, mark in re.findall('<path aria-label="(\\w+)(?:[(,][^"]*)?\u2063[^"]*"([^>]*)>', text):
            if name in HUES:
                colours = set(re.findall(r'(?:fill|stroke)="(#\w{6})"', mark)) - {"#ffffff"}
                assert colours <= {COLOURS[HUES[name]][0], COLOURS["grey"][0]}, (file, name)
                marks += 1
    assert marks > 500
