"""The identity of committed figures: one hue for each base scheme, text that can be read."""

import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from geonorm.report.style import COLOURS, HUES

ROOT = Path(__file__).parents[2]
FIGURES = [
    file for place in ("experiments/*", "docs", "docs/results") for file in ROOT.glob(f"{place}/figures/**/*.svg")
]


def test_committed_figures_have_one_hue_a_base_scheme() -> None:
    """Every mark that names its scheme; a difference of two schemes has no hue of its own."""
    marks = 0
    for file in (file for file in FIGURES if "results" not in file.parts):
        text = file.read_text("utf-8")
        for name, mark in re.findall('<path aria-label="(\\w+)(?:[(,][^"]*)?\u2063[^"]*"([^>]*)>', text):
            if name in HUES:
                colours = set(re.findall(r'(?:fill|stroke)="(#\w{6})"', mark)) - {"#ffffff"}
                assert colours <= {COLOURS[HUES[name]][0], COLOURS["grey"][0]}, (file, name)
                marks += 1
    assert marks > 500


def texts(node: ElementTree.Element, x: float = 0.0) -> Iterator[tuple[str, float, float, float]]:
    """Of each level text its size and its ends, with few pixels a letter."""
    place, text = node.get("transform", ""), node.text or ""
    x += float(re.split("[(, ]", place)[1]) if place.startswith("translate") else 0.0
    if node.tag.endswith("}text") and text.strip() and "rotate" not in place:
        size = float(node.get("font-size", "24").removesuffix("px"))
        left = x - 0.42 * size * len(text) * {"end": 1.0, "middle": 0.5}.get(node.get("text-anchor", ""), 0.0)
        yield text, size, left, left + 0.42 * size * len(text)
    for child in node:
        yield from texts(child, x)


def test_text_of_committed_figures_is_legible_at_830_pixels_and_whole() -> None:
    assert len(FIGURES) > 50
    for file in FIGURES:
        root = ElementTree.parse(file).getroot()
        width = float(root.get("viewBox", "").split()[2])
        for text, size, left, right in texts(root):
            assert size * min(1.0, 830 / width) >= 11 and "…" not in text, (file, text, size)
            assert left > -2 and right < width + 2, (file, text, left, right)
