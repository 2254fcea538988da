"""The register of residual rules: a table of families or checkpoints, and the angles of a few of them by sub-layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .charts import Axis, Chart
from .page import bullets, html_table
from .study import Record, Section, Study
from .tables import Table, count

FEW = 8
"""Models whose sub-layers are drawn one by one; of more, rules are shown alone."""
TITLES = ("model", "rule", "angles", "entry", "law")
NOTES = (
    "Angles: degrees by which a sub-layer turns the stream, the least, the middle one and the most, for updates at "
    "right angles to it.",
    "Entry: its share of the squared length of the last state; those of the sub-layers make up the rest. It is taken "
    "to have root mean square 1: a shorter embedding without a norm is turned further, and its share is less.",
    "~: the rule does not normalise updates. All are then taken for as long as the entry is; geonorm probe measures "
    "them.",
)


@dataclass(frozen=True)
class SavedRegister(Study):
    """The report of a folder of `geonorm register`. Its series are a few models; of more, their rules."""

    summary: Mapping[str, Any]

    what = "Register"
    maker = "register"

    @property
    def rows(self) -> list[Record]:
        """Of the models whose rule is known."""
        return [row for row in self.summary["rules"] if "scheme" in row]

    @property
    def series(self) -> list[str]:
        return [name for name, _ in self.findings()]

    def caption(self) -> str:
        listed = count(len(self.summary["rules"]), "rule")
        return f"{len(self.rows)} of {listed} known, each verified on the numbers of a tiny model of the family"

    def findings(self) -> list[tuple[str, str]]:
        equations = {row["model"] if len(self.rows) <= FEW else row["scheme"]: row["equation"] for row in self.rows}
        return [(name, f"{name}: {equation}") for name, equation in equations.items()]

    def tables(self) -> dict[str, Table]:
        return {"rules": (TITLES, [cells(row) for row in self.rows])}

    def notes(self) -> list[str]:
        return [*NOTES, *(f"{row['model']}: {row['refused']}" for row in self.summary["rules"] if "refused" in row)]

    def charts(self) -> dict[str, list[Chart]]:
        drawn = (
            [
                self.chart("angle", "degrees", "Where angles fall, late sub-layers change a token little."),
                self.chart("share", "share of the last state", "What has most of the last state decides it."),
            ]
            if len(self.rows) <= FEW
            else []
        )
        return {"register": drawn}

    def chart(self, name: str, title: str, meaning: str) -> Chart:
        """A number of every sub-layer over its place."""
        curves = {row["model"]: [each[name] for each in row["sublayers"]] for row in self.rows}
        chart = Chart(
            name.capitalize(),
            Axis.around([1, max(map(len, curves.values()))], title="sub-layer"),
            Axis.around([value for curve in curves.values() for value in curve], log=name == "share", title=title),
            self.looks,
            name=name,
            meaning=meaning,
        )
        for model, curve in curves.items():
            chart.line(model, [*enumerate(curve, 1)])
        return chart

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        drawn = [Section("Sub-layers", [charts]) for charts in self.charts().values() if charts]
        (titles, rows), *_ = self.tables().values()
        return [*drawn, Section("Rules", [html_table(titles, rows, place), bullets(self.notes())])]

    def records(self) -> list[Record]:
        """A row for each sub-layer of every model."""
        return [{**row, **each} for row in self.rows for each in row["sublayers"]]


def cells(row: Record) -> list[str]:
    """The line of a model in the table."""
    angles = sorted(each["angle"] for each in row["sublayers"])
    numbers = " ".join(f"{angle:.3g}" for angle in (angles[0], angles[len(angles) // 2], angles[-1]))
    mark = "" if row["unit"] else "~"
    return [row["model"], row["scheme"], mark + numbers, f"{mark}{row['entry']:.2g}", row["law"]]
