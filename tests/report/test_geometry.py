"""Figures of a probe's page: legends, axes and notes say what is drawn."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from geonorm.report import geometry
from geonorm.report.figures import STYLE, plain_ticks
from geonorm.report.geometry import Geometry, gradients


def found(sites: dict[str, list[dict[str, float]]]) -> Geometry:
    return Geometry(Path("probe"), {"models": []}, sites, {}, {})


def test_a_series_that_only_the_first_panel_has_is_in_the_legend() -> None:
    """A parallel block is one site with a gradient norm, and without W1 and W2."""
    rows = [{"t": t, "grad_norm": 0.1 * t, "grad_w1": 0.04 * t, "grad_w2": 0.05 * t} for t in (1, 2, 3)]
    parallel = [{"t": t, "grad_norm": 2.0} for t in (1, 2, 3)]
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    assert gradients(found({"llama": rows, "neox": parallel}), figure)
    legend = figure.get_axes()[-1].get_legend()
    assert legend is not None
    assert {text.get_text() for text in legend.get_texts()} == {"llama", "neox"}


def test_titles_of_panels_do_not_touch() -> None:
    rows = [{"t": t, "grad_norm": 0.1 * t, "grad_w1": 0.04 * t, "grad_w2": 0.05 * t} for t in (1, 2, 3)]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.4, 3.6))
        assert gradients(found({"a model with a name": rows}), figure)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for axes in figure.get_axes() for text in titles(axes)]
    assert len(boxes) == 3
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def titles(axes: Axes) -> list[Text]:
    """The titles of a panel that say something."""
    return [text for text in axes.get_children() if isinstance(text, Text) and text.get_text()]


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.44), (0.03, 0.2), (2.0, 3.0), (1, 96), (0.012, 0.9)])
def test_numbers_of_a_short_logarithmic_axis_are_few_and_plain(low: float, high: float) -> None:
    axes = Figure().subplots()
    axes.plot([0, 1], [low, high])
    axes.set_yscale("log")
    plain_ticks(axes.yaxis)
    bottom, top = axes.get_ylim()
    texts = [axes.yaxis.get_major_formatter()(v, 0) for v in axes.yaxis.get_majorticklocs() if bottom <= v <= top]
    assert 2 <= len(texts) <= 8 and not list(axes.yaxis.get_minorticklocs())
    assert all(float(text) > 0 and "e" not in text and "$" not in text for text in texts)


def test_only_figures_with_bands_speak_of_them() -> None:
    assert set(geometry.NOTES) <= set(geometry.FIGURES) == set(geometry.TITLES)
    assert "random directions" in geometry.NOTES["uniform"] and "shaded" not in geometry.NOTES["uniform"]
