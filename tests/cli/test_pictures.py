"""`geonorm schemes --out`."""

from __future__ import annotations

from math import cos, hypot, pi, sin, sqrt
from pathlib import Path

import pytest

from geonorm import names
from geonorm.cli.main import main
from geonorm.cli.pictures import follow_write

from ..rows import each


def test_a_picture_per_scheme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "pictures"
    assert main(["schemes", "geonorm(max_angle=pi/8)", "--out", str(out)]) == 0
    (file,) = out.iterdir()
    assert capsys.readouterr().out.strip() == str(file) and file.name.startswith("geonorm-max_angle-pi-8")
    assert "block 4 of 12" in file.read_text(encoding="utf-8")


# the way of a token from x to x': what each scheme's equation says of its end, in lengths of x

HALF, HIGH = cos(pi / 3), sin(pi / 3)


def ends(scheme: str, t: int = 1) -> dict[float, tuple[float, float]]:
    return {path.length: path.points[-1] for path in follow_write(scheme, t)}


@pytest.mark.parametrize("t", [1, 2, 4])
def test_geonorm_turns_by_the_tangential_length_up_to_its_ceiling_over_t(t: int) -> None:
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
    assert ends("mix(post, pre, share=0.25)", 3) == ends("post", 3)
    assert ends("mix(post, pre, share=0.25)", 4) == ends("pre", 4)


@each("scheme", names())
def test_every_scheme_stays_where_it_is_without_a_step(scheme: str) -> None:
    for path in follow_write(scheme, 1):
        assert path.points[0] == pytest.approx((1, 0), abs=1e-5)
