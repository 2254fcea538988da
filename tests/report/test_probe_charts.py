"""Charts of a probe: which series are named, how axes are numbered, and what notes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from geonorm.report.probe import Geometry, averages
from geonorm.report.probe_charts import draw_probe
from geonorm.report.vega import Axis, figure

from ..rows import each


def found(sites: dict[str, list[dict[str, float]]]) -> Geometry:
    return Geometry(Path("probe"), {"models": []}, sites, {}, {})


def test_each_panel_names_the_series_that_it_has() -> None:
    """A parallel block is one site with a gradient norm, and without W1 and W2."""
    rows = [{"t": t, "grad_norm": 0.1 * t, "grad_w1": 0.04 * t, "grad_w2": 0.05 * t} for t in (1, 2, 3)]
    parallel = [{"t": t, "grad_norm": 2.0} for t in (1, 2, 3)]
    charts = draw_probe(found({"llama": rows, "neox": parallel}))["gradients"]
    assert [chart.shown for chart in charts] == [["llama", "neox"], ["llama"], ["llama"]]
    layer = charts[0].spec()["layer"][0]
    assert layer["encoding"]["color"]["legend"]["values"] == ["llama", "neox"]
    assert len(figure(charts, "caption", columns=3)["concat"]) == 3
    assert len({chart.title for chart in charts}) == 3 and all(chart.y and chart.y.title for chart in charts)


def test_columns_of_the_averages_have_names_of_their_own() -> None:
    """They are the keys of the CSV."""
    titles, _ = averages(found({}))
    assert len(set(titles)) == len(titles)


@each("low, high", [(0.3, 0.44), (0.03, 0.2), (2.0, 3.0), (1, 96), (0.012, 0.9)])
def test_numbers_of_a_short_logarithmic_axis_are_few(low: float, high: float) -> None:
    axis = Axis.around([low, high], log=True)
    assert 2 <= len(axis.ticks()) <= 8 and all(axis.holds(tick) for tick in axis.ticks())


@pytest.mark.parametrize("log", [False, True])
def test_values_that_differ_by_rounding_do_not_fill_an_axis(log: bool) -> None:
    """A radius that a scheme keeps: the numbers along the axis would all read alike."""
    axis = Axis.around([11.31370, 11.31371], log=log)
    assert axis.high - axis.low >= 1 and axis.holds(11.3137)
