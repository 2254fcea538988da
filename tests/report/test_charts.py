"""Charts, numbers and names: what one sees of them."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, strategies as st

from geonorm.report.charts import Axis, Chart, Point, figure
from geonorm.report.curves import spans_decades
from geonorm.report.paths import draw_paths
from geonorm.report.style import COLOURS, Look, looks
from geonorm.report.tables import cut_apart

OUT = [(1.0, 0.0), (1.5, 0.5)]


def test_looks_are_distinct_and_stay_with_their_scheme() -> None:
    names = ["pre", "geonorm", *(f"x{i}" for i in range(20))]
    found = looks(names)
    assert Counter(look.light for look in found.values())[found["pre"].light] == 1
    assert found["pre"].light == COLOURS["ink"][0] and len({look.light for look in list(found.values())[:8]}) == 8
    assert len({(look.light, look.dash) for look in found.values()}) == len(names)
    assert looks(["geonorm", "pre"])["geonorm"].light == found["geonorm"].light


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
    chart.outline("ring", OUT, "ring")
    assert chart.drawn == ["pre"]  # the rim of a sphere is no series


def test_a_series_looks_the_same_in_all_charts_of_a_figure_and_like_no_other() -> None:
    """Vega has one scale of colours for all charts, that of the first: a series that is not in it took another's."""
    charts = []
    for names in (["pre", "a"], ["b", "a"]):
        chart = Chart("", Axis(0, 1), Axis(0, 1), looks(names))
        for name in names:
            chart.line(name, [(0.0, 0.0), (1.0, 1.0)])
        charts.append(chart)
    scales = [part["layer"][0]["encoding"]["color"]["scale"] for part in figure(charts)["concat"]]
    assert scales[0] == scales[1] and scales[0]["domain"] == ["pre", "a", "b"]
    other = Chart("", Axis(0, 1), Axis(0, 1), {"c": Look("#123456", "#123456", "", "circle")})
    alone = figure([charts[0], other])["concat"][0]["layer"][0]["encoding"]["color"]["scale"]
    assert alone["range"][:2] == [look.light for look in charts[0].looks.values()]  # looks that differ stay
    assert len(set(scales[0]["range"])) == 3 and looks(["pre", "a"])["a"].light == looks(["b", "a"])["b"].light


@given(st.lists(st.text("ab(", max_size=60), unique=True, max_size=9), st.integers(6, 40))
def test_names_stay_apart_within_their_room(names: list[str], room: int) -> None:
    found = cut_apart(names, room)
    assert list(found) == names and len(set(found.values())) == len(names)
    assert all(len(text) <= room and (len(name) > room or text == name) for name, text in found.items())


def test_both_axes_of_a_picture_have_one_scale_and_a_clamped_token_is_hollow() -> None:
    far = [(1.0, 0.0), (-1.0, 3.0)]
    spec = draw_paths("own", "", {1: [(1.0, OUT, False), (2.0, far, True)]}, 1.0)
    for layer in spec["layer"]:
        low, high = layer["encoding"]["x"]["scale"]["domain"]
        assert layer["encoding"]["y"]["scale"]["domain"] == [low, high] and low < -1 and high > 3
    assert spec["width"] == spec["height"]
    filled = {layer["mark"]["filled"]: layer["data"]["values"] for layer in spec["layer"] if "filled" in layer["mark"]}
    assert [row["s"] for row in filled[False]] == ["|u| = 2 |x|"]
