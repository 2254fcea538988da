"""The coordinate check of `geonorm check-transfer`: how far one optimizer step turns the final state, by size."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from .charts import Axis, Chart, Point
from .depth import describe_ends
from .page import html_table
from .study import Record, Section, Study
from .tables import Table, count, ratio_text

TITLES = ("turn", "sum of angles", "coherence", "to base after 1 step", "4 steps", "16 steps")
AXES = {"depth": "blocks", "width": "width"}
NOTE = "Ratios are to the base model; intervals of 95 % are over seeds."


@dataclass(frozen=True)
class SavedTransfer(Study):
    """The report of a folder of `geonorm check-transfer`."""

    summary: Mapping[str, Any]

    what = "Coordinate check"
    maker = "check-transfer"

    @property
    def series(self) -> list[str]:
        return [scheme["scheme"] for scheme in self.summary["schemes"]]

    @property
    def rows(self) -> list[Record]:
        """The results of the schemes to show, in their order."""
        by_name = {scheme["scheme"]: scheme for scheme in self.summary["schemes"]}
        return [by_name[name] for name in self.names]

    def caption(self) -> str:
        base = f"base model of {self.summary['depth']} blocks and width {self.summary['width']}"
        return f"{base} · Adam at {self.summary['lr']:g} · {count(self.summary['seeds'], 'seed')} · random tokens"

    def findings(self) -> list[tuple[str, str]]:
        return [(scheme["scheme"], f"{scheme['scheme']}: {finding.rstrip('.')}")
                for scheme in self.rows for finding in scheme["findings"]]  # fmt: skip

    def limits(self) -> list[str]:
        return [
            "This is the turn at initialization. In experiment 023 best rates in training did not follow it: over "
            "depth they moved less, over width more, about as 1/width."
        ]

    def tables(self) -> dict[str, Table]:
        tables: dict[str, Table] = {}
        for scheme, axis in [(one, axis) for one in self.rows for axis in one["exponents"]]:
            cells = [
                [str(row[axis]), f"{row['turn']:.2e}", f"{row['path']:.3g}", f"{row['coherence']:.3g}",
                 ratio_text(*row["ratio_1"]), f"{row['ratio_4'][0]:.2f}", f"{row['ratio_16'][0]:.2f}"]
                for row in scheme[axis]
            ]  # fmt: skip
            first, *later = scheme["exponents"][axis].values()
            last = ["exponent", "", "", "", ratio_text(*first), *(f"{exponent[0]:.2f}" for exponent in later)]
            tables[f"{scheme['scheme']}, {axis}"] = [f"{scheme['scheme']}, {axis}", *TITLES], [*cells, last]
        return tables

    def charts(self) -> dict[str, list[Chart]]:
        return {"turn": [self.chart(axis) for axis in AXES if any(axis in scheme["exponents"] for scheme in self.rows)]}

    def chart(self, axis: str) -> Chart:
        """The turn of one step over depth or width, as a ratio to the base model's."""
        curves = {
            scheme["scheme"]: [
                Point(row[axis], turn, low, high, f"{turn:.3g}")
                for row in scheme[axis] for turn, low, high in [row["ratio_1"]]
            ]
            for scheme in self.rows
        }  # fmt: skip
        points = [point for curve in curves.values() for point in curve]
        x = Axis.around([point.x for point in points], log=True, title=AXES[axis])
        y = Axis.around(
            [v for p in points for v in (p.y, p.low, p.high) if v], log=True, title="turn, to the base model"
        )
        ends = {name: (curve[0].y, curve[-1].y) for name, curve in curves.items()}
        title = describe_ends(f"Turn of one step over {AXES[axis]}, to the base model's", ends)
        meaning = "A level course lets one learning rate serve all sizes."
        chart = Chart(title, x, y, self.looks, name=f"turn-{axis}", meaning=meaning)
        chart.rule(y=1.0)
        for name, curve in curves.items():
            chart.curve(name, curve)
        return chart

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        tables = [f"<h3>{escape(title)}</h3>{html_table(*table)}"
                  for title, table in self.tables().items()]  # fmt: skip
        again = shlex.join(["geonorm", "check-transfer", "--config", str(self.path / "config.yaml"), "--out", "NEW"])
        return [
            Section("Turn over depth and width", [self.charts()["turn"], f"<p>{escape(NOTE)}</p>"]),
            Section("In numbers", [*tables]),
            Section("Repeat it", [f"<pre>{escape(again)}</pre>"]),
        ]

    def records(self) -> list[Record]:
        """A row for each scheme, axis and size."""
        names = ("depth", "width", "turn", "path", "coherence")
        return [
            {"scheme": scheme["scheme"], "axis": axis, **{name: row[name] for name in names},
             **{f"ratio_{steps}": row[f"ratio_{steps}"][0] for steps in (1, 4, 16)}}
            for scheme in self.rows for axis in scheme["exponents"] for row in scheme[axis]
        ]  # fmt: skip
