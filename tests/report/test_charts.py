"""Charts, numbers and names: what one sees of them."""

import math
from itertools import pairwise

from hypothesis import given, strategies as st

from geonorm.report.charts import LINE, Axis, Chart, Point, spread_apart
from geonorm.report.curves import spans_decades
from geonorm.report.paths import draw_paths
from geonorm.report.style import COLOURED, COLOURS, HUES, looks
from geonorm.report.tables import cut_apart

OUT = [(1.0, 0.0), (1.5, 0.5)]


def test_colour_is_the_base_scheme_and_a_variant_a_dash() -> None:
    """In whatever order: other schemes are grey, and so is what follows six series with a hue."""
    names = ["own", "geonorm(decay=sqrt)", "pre", "geonorm", "pre(entry=embedding)"]
    styles = looks(names)
    hues = [COLOURS[hue][0] for hue in ("grey", "vermilion", "ink", "vermilion", "ink")]
    assert [look.light for look in styles.values()] == hues
    assert [bool(look.dash) for look in styles.values()] == [look.hollow for look in styles.values()]
    assert [look.hollow for look in styles.values()] == [False, False, False, True, True]
    assert [look.light for look in looks([*HUES, "own"]).values()].count(COLOURS["grey"][0]) == len(HUES) - COLOURED + 1
    assert looks(["gpt2"], {"gpt2": "pre"})["gpt2"].light == COLOURS["ink"][0]


def test_axes_hold_their_values() -> None:
    """Also one that a scheme keeps: the numbers along it would all read alike."""
    for log in (False, True):
        axis = Axis.around([11.31370, 11.31371], log=log)
        assert axis.high - axis.low >= 1 and axis.holds(11.3137)
        axis = Axis.around([0.5, math.nan, 8.0], log=log)
        assert axis.low < 0.5 < 8 < axis.high
    assert spans_decades([1.0, 31.0]) and not any(map(spans_decades, ([1.0, 29.0], [0.0, 1e3], [])))


def test_lines_break_where_a_value_is_missing_and_marks_outside_are_left_out() -> None:
    chart = Chart("test", Axis(0, 4), Axis(0, 1), looks(["pre"]))
    chart.line("pre", enumerate([0.1, 0.2, math.nan, 0.4, 0.5]))
    chart.mark("pre", 1, 50.0, "far above")
    chart.mark("pre", 1, math.nan, "nowhere")
    assert len({row["part"] for row in chart.rows["line"]}) == 2 and list(chart.rows) == ["line"]
    logarithmic = Chart("log", Axis(0, 4), Axis(1, 10, log=True), looks(["pre"]))
    logarithmic.line("pre", [(1, 0.0), (2, 5.0)])
    assert [row["y"] for row in logarithmic.rows["line"]] == [5.0]
    chart.curve("pre", [Point(1, 0.5), Point(2, 0.6, 0.5, 0.7)])
    assert len(chart.rows["band"]) == 1 and len(chart.rows["mark"]) == 2


def test_labels_beside_lines_stand_apart_in_the_order_of_the_lines() -> None:
    at = spread_apart({"a": (50.0, 1), "b": (51.0, 2), "c": (49.0, 1), "d": (99.0, 1), "e": (100.0, 1)}, 100.0)
    assert list(at) == ["c", "a", "b", "d", "e"] and max(at.values()) <= 100
    assert [b - a >= (1 + (a == at["b"])) * LINE for a, b in pairwise(at.values())] == [True] * 4
    chart = Chart("", Axis(0, 1), Axis(1, 100, log=True), looks(["pre", "post", "geonorm(decay=sqrt)"]))
    for name, y in zip(chart.looks, (100.0, 10.0, 1.0), strict=True):
        chart.line(name, [(0.0, y), (1.0, y)])
    marks = [layer["mark"] for layer in chart.spec()["layer"] if layer["mark"]["type"] == "text"]
    assert [mark["text"] for mark in marks] == [["pre"], ["post"], ["geonorm", "(decay=sqrt)"]]
    assert [round(mark["y"]) for mark in marks] == [0, chart.height // 2, chart.height - LINE]


@given(st.lists(st.text("ab(", max_size=60), unique=True, max_size=9), st.integers(6, 40))
def test_names_stay_apart_within_their_room(names: list[str], room: int) -> None:
    found = cut_apart(names, room)
    assert list(found) == names and len(set(found.values())) == len(names)
    assert all(len(text) <= room and (len(name) > room or text == name) for name, text in found.items())


def test_both_axes_of_a_picture_have_one_scale_and_a_clamped_token_is_hollow() -> None:
    far = [(1.0, 0.0), (-1.0, 3.0)]
    spec = draw_paths("own", "", {1: [(1.0, OUT, False), (2.0, far, True)]}, 1.0)
    (part,) = spec["concat"]
    layers = [layer for layer in part["layer"] if "x" in layer["encoding"]]
    for layer in layers:
        low, high = layer["encoding"]["x"]["scale"]["domain"]
        assert layer["encoding"]["y"]["scale"]["domain"] == [low, high] and low < -1 and high > 3
    assert part["width"] == part["height"]
    filled = {layer["mark"]["filled"]: layer["data"]["values"] for layer in layers if "filled" in layer["mark"]}
    assert [row["s"] for row in filled[False]] == ["|u| = 2 |x|"]
