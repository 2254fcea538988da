"""The picture of a scheme."""

from __future__ import annotations

from typing import Any

from geonorm.report.path_chart import CIRCLE, START, UPDATE, draw_paths

OUT = [(1.0, 0.0), (1.5, 0.5)]


def series(spec: dict[str, Any]) -> set[str]:
    return {row["s"] for layer in spec["layer"] for row in layer["data"]["values"]}


def test_blocks_that_are_alike_are_one_chart_and_others_stand_side_by_side() -> None:
    same = draw_paths("own", "x + u", {1: [(1.0, OUT, False)], 4: [(1.0, OUT, False)]}, 1.0)
    assert same["title"]["text"] == "own: every block" and series(same) == {"|u| = 1 |x|", START, CIRCLE, UPDATE}
    near = draw_paths("own", "", {1: [(1.0, OUT, False)], 4: [(1.0, [(1.0, 0.0), (1.5, 0.50001)], False)]}, 1.0)
    assert near["title"]["text"] == "own: every block"
    other = draw_paths("own", "x + u", {1: [(1.0, OUT, False)], 4: [(1.0, OUT[::-1], False)]}, 1.0)
    assert [part["title"]["text"] for part in other["concat"]] == ["own: block 1 of 12", "own: block 4 of 12"]


def test_both_axes_have_one_scale_and_hold_every_end() -> None:
    spec = draw_paths("own", "", {1: [(1.0, OUT, False), (2.0, [(1.0, 0.0), (-1.0, 3.0)], True)]}, 1.0)
    for layer in spec["layer"]:
        low, high = layer["encoding"]["x"]["scale"]["domain"]
        assert layer["encoding"]["y"]["scale"]["domain"] == [low, high] and low < -1 and high > 3
    assert spec["width"] == spec["height"]


def test_a_token_at_its_ceiling_is_hollow() -> None:
    spec = draw_paths("own", "", {1: [(1.0, OUT, False), (2.0, OUT, True)]}, 1.0)
    filled = {layer["mark"]["filled"]: layer["data"]["values"] for layer in spec["layer"] if "filled" in layer["mark"]}
    assert [row["s"] for row in filled[False]] == ["|u| = 2 |x|"]
