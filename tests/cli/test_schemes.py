"""`geonorm schemes`: what the registry says about itself, and pictures of how a scheme moves a token."""

import os
import subprocess
import sys
from dataclasses import fields
from math import cos, exp, hypot, pi, sin, sqrt
from pathlib import Path

import pytest

from geonorm import names, parse
from geonorm.cli.catalogue import describe_scheme, look_up
from geonorm.cli.main import main
from geonorm.cli.pictures import follow_write

from ..rows import each


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
    assert all(field["values"] and field["meaning"] for field in about["fields"].values())


@each("name", names())
def test_every_word_a_field_lists_is_valid(name: str) -> None:
    for key, field in look_up(name)["fields"].items():
        for word in field["values"].split(" | "):
            if word not in ("a number", "a whole number", "a scheme"):
                assert str(getattr(parse(f"{name}({key}={word})"), key)) == word


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


def test_an_encoding_without_greek() -> None:
    """What a terminal's encoding lacks is shown as an escape, not as a traceback after the work."""
    command = [sys.executable, "-m", "geonorm", "schemes", "pre"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True)
    assert (ended.returncode, ended.stderr) == (0, b"") and rb"\u03b8" in ended.stdout


def test_a_picture_per_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "pictures"
    assert main(["schemes", "geonorm(max_angle=pi/8)", "--out", str(out)]) == 0
    (file,) = out.iterdir()
    assert capsys.readouterr().out.strip() == str(file) and file.name.startswith("geonorm-max_angle-pi-8")
    assert "block 4 of 12" in file.read_text(encoding="utf-8")


# the way of a token from x to x': what each scheme's equation says of its end, in lengths of x

HALF, HIGH = cos(pi / 3), sin(pi / 3)


@pytest.mark.parametrize("t", [1, 2, 4])
def test_geonorm_turns_by_the_tangential_length_up_to_its_clamp_over_t(t: int) -> None:
    for path in follow_write("geonorm", t):
        angle = min(HIGH * path.length, pi / 4) / t
        assert path.points[-1] == pytest.approx((cos(angle), sin(angle)))
        assert path.clamped == (HIGH * path.length >= pi / 4)
        assert all(hypot(*point) == pytest.approx(1) for point in path.points)


def test_a_scheme_over_two_streams_is_followed_where_it_is_read() -> None:
    """a + N(b) is twice as long as each at first, and so is u; both then point to where 1 + 2 u does."""
    (path,) = follow_write("siamese", 1, [1.0])
    assert path.points[-1] == pytest.approx((2 / sqrt(7), 2 * HIGH / sqrt(7)), abs=1e-5)


def test_combinations_are_what_stands_in_the_block() -> None:
    for t, scheme in ((3, "post"), (4, "pre")):
        assert follow_write("mix(post, pre, share=0.25)", t) == follow_write(scheme, t)


@each("scheme", names())
def test_every_scheme_stays_where_it_is_without_a_step(scheme: str) -> None:
    for path in follow_write(scheme, 1):
        assert path.points[0] == pytest.approx((1, 0), abs=1e-5)
