"""What the report says of a simulation, of a probe and of a ladder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape

from . import ladder as ladders, ladder_charts, probe as probes, simulation as simulations
from .ladder import SavedLadder
from .page import Part, Section, details, html_table, pairs
from .probe import Geometry
from .probe_charts import FIGURES, draw_probe
from .simulation import SavedSimulation
from .simulation_charts import collapse, cosine, speed_and_radius, sphere
from .spheres import spheres
from .vega import figure_specs


def report_simulation(trace: SavedSimulation, place: Mapping[str, int]) -> Part:
    """What the report says of a simulation; `place`: where each scheme stands in the legend."""
    rows = trace.summary["schemes"]
    tables = [simulations.speeds(trace.summary), simulations.velocities(trace.summary)]
    said = "; ".join([simulations.NOTE, *simulations.explain_unpredicted(trace.summary)])
    settings = {key: value for key, value in trace.summary.items() if key not in ("kind", "schemes", "status", "out")}
    pictures, turning = sphere(trace), spheres(trace, place)
    drawn = {"cosine": cosine(trace), "collapse": collapse(trace), "speed": speed_and_radius(trace)}
    name, caption = trace.path.resolve().name, simulations.caption(trace.summary)
    return Part(
        source=name,
        title=f"Simulation: {name}",
        caption=caption,
        findings=[(row["scheme"], simulations.headline(row)) for row in rows],
        keys=trace.keys,
        sections=[
            Section("Tables", [*(html_table(*content, place) for content in tables), f"<p>{escape(said)}</p>"]),
            Section("In depth", [[chart for charts in drawn.values() for chart in charts]]),
            Section("On the sphere", [turning or pictures], "" if turning else "wide"),
            Section("Settings", [details("All settings", pairs(settings.items()))]),
        ],
        tables=tables,
        records=rows,
        figures=figure_specs(drawn, caption) | figure_specs({"sphere": pictures}, ""),
    )


def report_probe(found: Geometry, place: Mapping[str, int]) -> Part:
    """What the report says of a probe; `place`: where each entry stands in the legend."""
    index = {name: place[key] for name, key in found.keys.items()}
    tables = [probes.overview(found.models), probes.averages(found)]
    drawn = draw_probe(found)
    name, caption = found.path.resolve().name, probes.caption(found)
    return Part(
        source=name,
        title=f"Geometry: {name}",
        caption=caption,
        findings=[(series, probes.headline(found, series)) for series in found.names],
        keys=found.keys,
        sections=[
            Section("Tables", [*(html_table(*content, index) for content in tables), f"<p>{escape(probes.NOTE)}</p>"]),
            *(Section(FIGURES[figure][0], [charts]) for figure, charts in drawn.items() if charts),
        ],
        tables=tables,
        records=probes.records(found),
        figures=figure_specs(drawn, caption, columns=3),
    )


def report_ladder(found: SavedLadder, place: Mapping[str, int]) -> Part:
    """What the report says of a ladder; `place`: where each scheme stands in the legend."""
    told = {title: content for title, content in ladders.tables(found).items() if content[1]}
    speedups, *others = (f"<h3>{escape(title)}</h3>{html_table(*content, place)}" for title, content in told.items())
    drawn = {draw.__name__: draw(found) for draw in ladder_charts.CHARTS}
    name, caption = found.path.resolve().name, ladders.caption(found)
    again = shlex.join(["geonorm", "ladder", "--config", str(found.path / "config.yaml"), "--out", "NEW"])
    runs = pairs((run["run"], f"{run['status']}, {run['val_loss']}") for run in found.results["runs"])
    return Part(
        source=name,
        title=f"Ladder: {name}",
        caption=caption,
        findings=ladders.headlines(found),
        keys=found.keys,
        sections=[
            Section("Effective speed-up", [drawn["speedup"], speedups, f"<p>{escape(ladders.NOTE)}</p>"], "wide"),
            Section("Loss", [[*drawn["loss"], *drawn["difference"]], f"<p>{escape(ladders.COMPUTE)}</p>"]),
            Section("In numbers", [*others]),
            Section("Repeat it", [f"<pre>{escape(again)}</pre>", details("All runs", runs)]),
        ],
        limits=ladders.caveats(found),
        limits_title=ladders.LIMITED,
        tables=list(told.values()),
        records=ladders.records(found),
        figures=figure_specs(drawn, caption),
    )
