"""`geonorm schemes`: what the registry says about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields
from math import exp
from pathlib import Path

import pytest

from geonorm import names, parse
from geonorm.cli.catalogue import catalogue, describe_scheme, json_text, look_up
from geonorm.cli.main import main

from ..rows import each

MARK = "<!-- from here on: geonorm schemes --markdown -->"


def test_one_line_per_scheme() -> None:
    lines = catalogue().splitlines()
    for name, line in zip(names(), lines, strict=False):
        assert line.split()[0] == name and len(line) < 110
        assert line.removeprefix(name).strip() == parse(name).about.equation
    assert "t = layer + 1" in catalogue() and "geonorm schemes NAME" in lines[-1]


@each("name", names())
def test_an_entry_is_complete_and_its_defaults_parse(name: str) -> None:
    about = look_up(name)
    described = ["name", "title", "equation", "source", "claim", "checked", "shipped", "streams", "planar", "fields"]
    assert list(about) == [*described, "initial_scalars", "initial_std", "motion", "theory", "own_recipe"]
    assert about["claim"] and about["checked"], "say what is reported and what the definition was compared with"
    assert about["title"].endswith(".") and len(about["title"]) < 200
    assert about["equation"] and ("arXiv:" in about["source"] or "github.com/" in about["source"])
    assert list(about["fields"]) == [f.name for f in fields(parse(name))]
    written = ", ".join(f"{key}={field['default']}" for key, field in about["fields"].items())
    assert parse(f"{name}({written})") == parse(name)
    assert all(field["values"] for field in about["fields"].values())


@each("name", names())
def test_every_word_a_field_lists_is_valid(name: str) -> None:
    for key, field in look_up(name)["fields"].items():
        for word in field["values"].split(" | "):
            if word not in ("a number", "a whole number", "a scheme"):
                assert str(getattr(parse(f"{name}({key}={word})"), key)) == word


def test_a_description_says_everything() -> None:
    text = describe_scheme("geonorm")
    assert text.startswith("geonorm\n") and "arXiv:2601.22095" in text and "cos(a) x" in text
    assert "max_angle = pi/4    a number" in text
    assert "decay = harmonic    harmonic | sqrt | linear | constant" in text
    assert "retraction = exp    exp | projection | cayley | a number" in text
    assert "own recipe" not in text and "own recipe: weight_decay = 0.0" in describe_scheme("ngpt")
    assert "shipped in" not in text and "shipped in: Beam-1.0-501B-A23B" in describe_scheme("beam")
    assert "a = post    a scheme" in describe_scheme("mix")
    assert "without fields" in describe_scheme("pre(decay=sqrt)") and "without fields" not in describe_scheme("pre")


def test_initial_values_are_read_off_the_definition() -> None:
    assert look_up("deepnorm")["initial_std"] == dict.fromkeys(("v", "o", "up", "gate", "down"), 0.3195)  # 96^-1/4
    assert look_up("geonorm(learn=affine)")["initial_scalars"]["mlp.angle.gain"] == "1 (scalar)"
    assert look_up("ngpt")["initial_scalars"]["attn.q_rope.scale.weight"] == "0.125 (4 x 16)"
    assert look_up("geonorm")["motion"] == {"s(t=1)": 1.0, "r'(t=1)": 0.0, "s(t=4)": 4.0, "r'(t=4)": 0.0}
    assert isinstance(look_up("residual_dual")["motion"], str) and "no law" in describe_scheme("residual_dual")


def test_theory_stands_beside_the_measured_motion() -> None:
    assert look_up("geonorm")["theory"] == {
        "law": "s = r t, r' = 0",
        "initial_velocity": 0.05932,  # Theorem 4.1 at s = 1: 2 / (e + n - 1), n = 32
        "terminal": "t^-2",
        "terminal_causal": "t^-1",
        "terminal_why": None,
    }
    assert look_up("geonorm")["theory"]["initial_velocity"] == pytest.approx(2 / (exp(1) + 31), rel=1e-4)
    assert look_up("peri")["theory"]["law"] == "s = r |A|, r' = <θ,A> / |A|"
    assert look_up("rezero")["theory"]["law"] is None and "theory: cos' =" in describe_scheme("rezero")
    assert look_up("olmo2")["theory"]["terminal"] == "none" and "no closed law" in describe_scheme("olmo2")
    assert look_up("residual_dual")["theory"] is None and "theory" not in describe_scheme("residual_dual")
    assert look_up("geonorm(decay=linear)")["theory"]["terminal"] == "none"  # a schedule that ends
    unit = describe_scheme("geonorm(update=unit)")
    assert "no closed law at last" in unit and "continuous time): the angle does not shrink with the update" in unit


def test_the_page_of_schemes_is_what_the_registry_says(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "schemes.md"
    assert main(["schemes", "--markdown"]) == 0
    generated = capsys.readouterr().out
    written = page.read_text(encoding="utf-8").partition(MARK)
    assert written[1] and written[2].strip() == generated.strip(), (
        "geonorm schemes --markdown says something else: put it below the mark in docs/schemes.md"
    )
    assert all(f"## {name}\n" in generated for name in names())
    assert "|  |" not in generated, "every field says what it means"


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schemes", "--json", "geonorm(decay=sqrt)"]) == 0
    assert capsys.readouterr().out == json_text("geonorm(decay=sqrt)") + "\n"
    assert look_up("rezero")["motion"]["s(t=1)"] == "infinite"  # strict JSON has no infinity
    everything = json.loads(json_text(None))
    assert [about["name"] for about in everything] == names()
    assert json.loads(json_text("peri")) == next(a for a in everything if a["name"] == "peri")


def test_a_scheme_that_says_little_of_itself_leaves_no_gaps(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("from geonorm import Scheme\nclass Own(Scheme):\n    def write(self, x, u, p, site, h=1.0):\n"
                    "        return x + h * u\n", encoding="utf-8")  # fmt: skip
    assert all(line.strip() for line in describe_scheme(f"{file}:Own").splitlines())


def test_an_encoding_without_greek() -> None:
    """What a terminal's encoding lacks is shown as an escape, not as a traceback after the work."""
    command = [sys.executable, "-m", "geonorm", "schemes", "pre"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"") and rb"\u03b8" in ended.stdout
