"""Charts of a simulation: what is called theory is theory."""

from __future__ import annotations

from pathlib import Path

import geonorm
from geonorm.dynamics.config import SimulateConfig
from geonorm.lab.simulate import save
from geonorm.report import simulation, simulation_charts
from geonorm.settings import to_dict


def test_a_chart_without_theory_says_so(tmp_path: Path) -> None:
    """A narrow cone in a network as drawn has a law of its cosine, none of its speed; collapse shows curves alone."""
    config = SimulateConfig(
        schemes=["pre"], tokens=3, dim=8, seeds=1, init="cone", delta=1e-3, weights="network", per="layer",
        method="layers", time=8.0, points=9,
    )  # fmt: skip
    found = geonorm.simulate(config)
    save(tmp_path, to_dict(config), {}, found.files())
    trace = simulation.load(tmp_path)
    (cosine,), (speed, radius) = simulation_charts.cosine(trace), simulation_charts.speed_and_radius(trace)
    assert set(trace.theory["pre"]["speed"]) == {None}
    assert cosine.note == radius.note == "Markers: simulation, lines: theory."
    assert speed.note == "Simulation, mean over seeds." and speed.rows
    assert not any("lines: theory" in chart.note for chart in simulation_charts.collapse(trace))
