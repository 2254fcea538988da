"""`geonorm schemes --out`."""

from __future__ import annotations

from pathlib import Path

import pytest

from geonorm import names
from geonorm.cli.main import main

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


def test_nothing_is_written_for_a_scheme_that_there_is_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemes", "geonrm", "--out", str(tmp_path / "out")]) == 2
    assert "geonorm" in capsys.readouterr().err and not (tmp_path / "out").exists()
