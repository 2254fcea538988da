"""The way of a token from x to x': what each scheme's equation says of its end, in lengths of x."""

from __future__ import annotations

from math import cos, hypot, pi, sin, sqrt

import pytest

from geonorm import names
from geonorm.dynamics.paths import LENGTHS, follow_write
from geonorm.errors import ConfigError

from ..rows import each

HALF, HIGH = cos(pi / 3), sin(pi / 3)


def ends(scheme: str, t: int = 1) -> dict[float, tuple[float, float]]:
    return {path.length: path.points[-1] for path in follow_write(scheme, t)}


def test_pre_adds() -> None:
    assert ends("pre") == {s: pytest.approx((1 + HALF * s, HIGH * s)) for s in LENGTHS}


def test_post_adds_and_returns_to_the_sphere() -> None:
    for s, end in ends("post").items():
        assert end == pytest.approx(((1 + HALF * s) / (size := hypot(1 + HALF * s, HIGH * s)), HIGH * s / size))


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


def test_a_block_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="count from 0"):
        follow_write("pre", 13)
