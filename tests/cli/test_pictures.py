"""`geonorm schemes --out`."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest

from geonorm import names
from geonorm.cli.main import main
from geonorm.cli.pictures import draw
from geonorm.dynamics.paths import follow_write

from ..rows import each

FIGURES = Path(__file__).parents[2] / "docs" / "figures" / "schemes"


def test_a_picture_per_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "pictures"
    assert main(["schemes", "geonorm(max_angle=pi/8)", "--out", str(out)]) == 0
    (file,) = out.iterdir()
    assert capsys.readouterr().out.strip() == str(file) and file.name.startswith("geonorm-max_angle-pi-8")
    assert "block 4 of 12" in file.read_text(encoding="utf-8")


def test_the_page_of_schemes_has_a_picture_of_each() -> None:
    assert {file.stem for file in FIGURES.iterdir()} == set(names())
    page = FIGURES.parents[1].joinpath("schemes.md").read_text(encoding="utf-8")
    assert all(f"(figures/schemes/{name}.svg)" in page for name in names())


@each("name", names())
def test_pictures_of_the_page_are_those_of_the_definitions(name: str) -> None:
    """Titles, equations, and where each token ends, to a thousandth."""
    spec = draw(name)
    saved = (FIGURES / f"{name}.svg").read_text(encoding="utf-8")
    words = html.unescape(" ".join(re.findall(r">([^<>]+)<", saved)))
    ends = re.findall(r"x' = \(([-.\d]+), ([-.\d]+)\)", html.unescape(saved))
    wanted = []
    for part in spec.get("concat", [spec]):
        assert part["title"]["text"] in words and " ".join(part["title"]["subtitle"]) in words
        labels = (row["d"] for layer in part["layer"] for row in layer["data"]["values"])
        wanted += [found.groups() for label in labels if (found := re.search(r"x' = \((.+), (.+)\)", label))]
    assert sorted(tuple(map(float, end)) for end in ends) == [
        pytest.approx(tuple(map(float, end)), abs=1.1e-3) for end in sorted(wanted, key=lambda e: tuple(map(float, e)))
    ]


def test_what_stands_still_at_first_is_drawn_when_it_moves() -> None:
    """ReZero's scalar is 0 at first; ProRes has made all of the first block's step and half of the fourth's."""
    assert draw("rezero")["title"]["text"] == "rezero(alpha=0.5): every block"
    assert draw("rezero(alpha=0.25)")["title"]["text"].startswith("rezero(alpha=0.25): ")
    titles = [part["title"]["text"] for part in draw("prores(steps=100)")["concat"]]
    assert titles == ["prores(steps=100), step 200: block 1 of 12", "prores(steps=100), step 200: block 4 of 12"]
    whole, half = (follow_write("prores(pre)", t, made=2000) for t in (1, 4))
    for path, other in zip(whole, half, strict=True):
        assert [b / 2 for _, b in path.points] == pytest.approx([b for _, b in other.points])
