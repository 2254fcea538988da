"""What the report says of a simulation and of a probe."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from . import probe as probes
from . import probe_charts, simulation_charts
from . import simulation as simulations
from .page import Part, Section, details, html_table, pairs
from .probe import Geometry
from .simulation import SavedSimulation


def simulation(trace: SavedSimulation, place: Mapping[str, int]) -> Part:
    """What the report says of a simulation; `place`: where each scheme stands in the legend."""
    tables = [simulations.speeds(trace.summary), simulations.velocities(trace.summary)]
    said = "; ".join([simulations.NOTE, *simulations.unpredicted(trace.summary)])
    settings = {key: value for key, value in trace.summary.items() if key not in ("kind", "schemes", "status", "out")}
    drawn = [*simulation_charts.cosine(trace), *simulation_charts.collapse(trace), *simulation_charts.speed(trace)]
    sections = [
        Section("Tables", [*(html_table(*content, place) for content in tables), f"<p>{escape(said)}</p>"]),
        Section("In depth", [drawn]),
        Section("On the sphere", [simulation_charts.sphere(trace)], "wide"),
        Section("Settings", [details("All settings", pairs(settings.items()))]),
    ]
    return Part(
        title=f"Simulation: {trace.path.resolve().name}",
        caption=simulations.caption(trace.summary),
        findings=[(row["scheme"], simulations.headline(row)) for row in trace.summary["schemes"]],
        keys=trace.keys,
        sections=sections,
        tables=tables,
        records=[{k: v for k, v in row.items() if not isinstance(v, (dict, list))} for row in trace.summary["schemes"]],
        figures=simulation_charts.figures_of(trace),
    )


TITLES = {
    "norms": "Length of stream and update",
    "steps": "Implied step size",
    "rotation": "Rotation by each norm",
    "uniform": "The uniform vector",
    "tokens": "Tokens among themselves",
    "massive": "Large activations and the sphere",
    "gradients": "Gradient norms",
    "depth_use": "What blocks are worth",
}
"""The section of each figure of a probe."""


def probe(found: Geometry, place: Mapping[str, int]) -> Part:
    """What the report says of a probe; `place`: where each entry stands in the legend."""
    index = {name: place[key] for name, key in found.keys.items()}
    tables = [probes.overview(found.models), probes.averages(found)]
    sections = [
        Section("Tables", [*(html_table(*content, index) for content in tables), f"<p>{escape(probes.NOTE)}</p>"])
    ]
    for name, draw in probe_charts.FIGURES.items():
        if charts := draw(found):
            sections.append(Section(TITLES[name], [charts]))
    titles, rows = probes.averages(found)
    return Part(
        title=f"Geometry: {found.path.resolve().name}",
        caption=probes.caption(found),
        findings=[(name, probes.headline(found, name)) for name in found.names],
        keys=found.keys,
        sections=sections,
        tables=tables,
        records=[dict(zip(titles, row, strict=True)) for row in rows],
        figures=probe_charts.figures_of(found),
    )
