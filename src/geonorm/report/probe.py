"""A probe (`geonorm probe`): what each sub-layer and each norm of a model does to hidden states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

from ..decay import schedule
from .charts import Axis, Chart
from .curves import spread_evenly
from .page import html_table
from .study import Record, Section, Study, read_object_strictly, read_rows_strictly, refuse_damaged
from .style import figures, si
from .tables import Table

NOTE = (
    "step: tangential part of x'-x over |x|, mean over tokens and sub-layers; law: the decay that its course over "
    "blocks follows, with R² of the logarithms, and the power of t with its 95 % interval; |cos| to (1, ..., 1) beside "
    "the same for 64 random directions (5 to 95 % of them) and for the direction that tokens share most; spread: "
    "standard deviation of |x| over tokens before and after the norms of the blocks, geometric means"
)
MEANS = ("ratio", "cos_pair", "effective_rank", "clamped")
"""Columns of the trace with a mean over sub-layers."""
NORM_MEANS = ("rotation", "cos_ones_before", "cos_null_before", "cos_principal_before")
Rows = dict[str, list[Record]]
SHADED = "Shaded: middle half of tokens."
ADDED = "loss added (nats per token)"


@dataclass(frozen=True)
class SavedProbe(Study):
    """A probe's folder: its summary, and rows by series. A series is one stream of one model."""

    summary: Record
    trace: Rows
    all_norms: Rows
    ablation: Rows

    what = "Geometry"
    columns = 3

    @classmethod
    def load(cls, path: Path) -> SavedProbe:
        """GeonormError where a file is cut or is not what the summary says, OSError where one is missing."""
        with refuse_damaged(path, "probe"):
            summary = read_object_strictly(path / "summary.json")
            stacks = {model["model"]: model["schedule"] for model in summary["models"]}
            files: dict[str, Rows] = {name: {} for name in ("trace", "norms", "ablation")}
            for name, series in files.items():
                file = path / f"{name}.jsonl"
                for row in read_rows_strictly(file) if name != "ablation" or file.exists() else ():
                    series.setdefault(series_name(row["model"], row["stack"], stacks[row["model"]]), []).append(row)
            study = cls(path, summary, *files.values())
            study.text_lines()
        return study

    @property
    def series(self) -> list[str]:
        return list(self.trace or self.all_norms)

    @property
    def names(self) -> list[str]:
        """`chosen` may name models or their schemes."""
        if not self.chosen:
            return self.series
        return [name for key in self.chosen for name in self.series if key in (name, self.model_of(name).get("scheme"))]

    @property
    def keys(self) -> dict[str, str]:
        """A series is its model's scheme in the legend if no other model has it, or its name."""
        schemes = {name: self.model_of(name).get("scheme") for name in self.names}
        unique = [scheme for scheme in schemes.values() if list(schemes.values()).count(scheme) == 1]
        return {name: scheme if scheme and scheme in unique else name for name, scheme in schemes.items()}

    def model_of(self, name: str) -> Record:
        """The summary's entry for the model of a series; empty where it has none."""
        return next((model for model in self.summary["models"] if name in laws_of(model)), {})

    def schedule(self, name: str) -> Record | None:
        """The laws of all sub-layers of a series."""
        model = self.model_of(name)
        laws = laws_of(model).get(name) if model else None
        return (laws or {}).get("all")

    def norms(self, name: str) -> list[Record]:
        """Norms of a series inside blocks that read the whole stream or update, in the order of the blocks."""
        rows = [row for row in self.all_norms.get(name, []) if row["layer"] is not None and row["kind"] is not None]
        return sorted(({**row, "t": row["layer"] + 1} for row in rows), key=lambda row: row["t"])

    def single_blocks(self, name: str) -> list[Record]:
        """What leaving out one block costs, block by block."""
        return [{**row, "t": row["first"] + 1} for row in self.ablation.get(name, []) if row["blocks"] == 1]

    def caption(self) -> str:
        tokens = " / ".join(dict.fromkeys(si(model["tokens"]) for model in self.summary["models"]))
        return ", ".join([*filter(None, [self.summary["data"]]), f"{tokens} tokens"])

    def findings(self) -> list[tuple[str, str]]:
        return [(name, self._headline(name)) for name in self.names]

    def _headline(self, name: str) -> str:
        law, step = self.schedule(name), column_mean(self.trace.get(name, []), "ratio")
        if step is None:
            return f"{name}: no sub-layer of the stream was recognized, so only its norms are shown"
        sentence = f"{name}: a sub-layer moves a token by {figures(step)} of its length on average"
        if law:
            best, power = law["best"], power_of(law)
            shape = "none of the usual laws" if best == "none" else f"the {best} law (R² {figures(law[best]['r2'])})"
            sentence += f"; over the blocks the steps follow {shape}" + (
                f", power of t {power}" if power != "–" else ""
            )
        return sentence

    def tables(self) -> dict[str, Table]:
        return {"Models": self._overview(), "Means": self._means()}

    def text_tables(self, width: int) -> list[Table]:
        return [self._overview()]

    def _overview(self) -> Table:
        """A row per model and stream."""
        titles = ["model", "type", "scheme", "blocks", "parameters", "tokens", "implied step law",
                  "scale", "R²", "power of t"]  # fmt: skip
        models = self.summary["models"]
        if self.chosen:
            models = [model for model in models if set(laws_of(model)) & set(self.names)]
        rows = []
        for model in models:
            for name, kinds in laws_of(model).items():
                law = kinds.get("all") if kinds else None
                best = law.get(law["best"]) if law else None
                rows.append([
                    name, model["model_type"] or model["class"], model["scheme"] or "–", str(model["depth"] or "–"),
                    si(model["parameters"]), si(model["tokens"]),
                    "–" if law is None else law["best"].replace("none", "none fits"),
                    *(figures(best[key]) if best else "–" for key in ("alpha", "r2")), power_of(law),
                ])  # fmt: skip
        return titles, rows

    def _means(self) -> Table:
        """Means over the sub-layers, and over the norms in blocks, of each series."""
        titles = ["model", "|x| first", "|x| last", "step", "rotation", "spread of |x| by norms", "|cos| to 1",
                  "its null", "cos of pairs", "effective rank", "share of clamped updates"]  # fmt: skip
        rows = []
        for name in self.names:
            m = self.means(name)
            before, after, factor = (figures(m[f"norm_spread_{key}"]) for key in ("before", "after", "factor"))
            rows.append([
                name, *(figures(m[key]) for key in ("radius_first", "radius_last", "ratio")),
                "–" if m["rotation"] is None else f"{math.degrees(m['rotation']):.1f}°",
                "–" if m["norm_spread_before"] is None else f"{before} to {after} (÷ {factor})",
                *(figures(m[key]) for key in ("cos_ones_before", "cos_null_before", "cos_pair", "effective_rank",
                                              "clamped")),
            ])  # fmt: skip
        return titles, rows

    def means(self, name: str) -> Record:
        """Means over the sub-layers, and over the norms in blocks, of a series; None for what is not known. rotation:
        radians; norm_spread: standard deviation of |x| over tokens before and after the norms, as arXiv:2409.12951."""
        rows, norms = self.trace.get(name, []), self.norms(name) or self.all_norms.get(name, [])
        spread = self.model_of(name).get("norm_spread") or {}
        return {
            "radius_first": rows[0]["radius"] if rows else None,
            "radius_last": rows[-1]["radius_after"] if rows else None,
            **{key: column_mean(rows, key) for key in MEANS},
            **{key: column_mean(norms, key) for key in NORM_MEANS},
            **{f"norm_spread_{key}": spread.get(key) for key in ("before", "after", "factor")},
            "massive": sum(bool(row["massive"]) for row in rows),
            "sites": len(rows),
        }

    def charts(self) -> dict[str, list[Chart]]:
        drawn = {name: [chart for panel in panels for chart in over_depth(self, panel)] for name, _, panels in FIGURES}
        return {"steps": implied_steps(self), **drawn}

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        tables = [html_table(*table, place) for table in self.tables().values()]
        charts = self.charts()
        titles = {"steps": "Implied step size", **{name: title for name, title, _ in FIGURES}}
        drawn = [Section(title, [charts[name]]) for name, title in titles.items() if charts[name]]
        return [Section("Tables", [*tables, f"<p>{escape(NOTE)}</p>"]), *drawn]

    def records(self) -> list[Record]:
        rows = []
        for name in self.names:
            model, law = self.model_of(name), self.schedule(name) or {}
            best, power = law.get(str(law.get("best"))) or {}, law.get("power") or {}
            rows.append({
                "model": name,
                **{key: model.get(key) for key in ("class", "model_type", "scheme", "depth", "parameters", "tokens")},
                "law": law.get("best"), "law_alpha": best.get("alpha"), "law_r2": best.get("r2"),
                **{f"power_{end}": -power[key] if key in power else None
                   for end, key in (("of_t", "exponent"), ("low", "high"), ("high", "low"))},
                **self.means(name),
            })  # fmt: skip
        return rows


def laws_of(model: Record) -> dict[str, Record]:
    """The series of a model, one, or one a stream, with the laws of its kinds of sub-layers."""
    return {series_name(model["model"], stack, model["schedule"]): kinds
            for stack, kinds in (model["schedule"] or {"": {}}).items()}  # fmt: skip


def series_name(model: str, stack: str, stacks: Iterable[str]) -> str:
    """A model's name, with the stream where it has two."""
    return f"{model} ({stack})" if len(list(stacks)) > 1 and stack else model


def power_of(law: Record | None) -> str:
    """The exponent p of t^p fitted to the steps, with its interval where that is on record."""
    power = (law or {}).get("power")
    if not power:
        return "–"
    ends = f" ({-power['high']:.2f} to {-power['low']:.2f})" if "low" in power else ""
    return f"{-power['exponent']:.2f}{ends}".replace("-0.00", "0.00")


def column_mean(rows: Sequence[Record], key: str) -> float | None:
    """The mean over the rows that have a value."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


class Line(NamedTuple):
    """A column over depth; `low` and `high` are the columns of its band, `kind` how it is drawn."""

    key: str
    low: str = ""
    high: str = ""
    kind: str = "line"


class Panel(NamedTuple):
    """A chart over depth: its lines, of the rows that `rows` gives for a series."""

    title: str
    unit: str
    lines: Sequence[Line]
    note: str = ""
    log: bool = False
    rows: Callable[[SavedProbe, str], Sequence[Record]] = lambda study, name: study.trace.get(name, [])


def middle_half(key: str) -> tuple[Line]:
    return (Line(key, f"{key}_p25", f"{key}_p75"),)


def over_depth(study: SavedProbe, panel: Panel) -> list[Chart]:
    """Columns of rows over the block they stand in, for each series; nothing where no series has the first column."""
    placed = {}
    for name in study.names:
        rows = panel.rows(study, name)
        placed[name] = list(zip(spread_evenly([row["t"] for row in rows]), rows, strict=True))
    every = [(t, row) for each in placed.values() for t, row in each]
    columns = [column for line in panel.lines for column in (line.key, line.low, line.high) if column]
    values = [row[column] for _, row in every for column in columns if row.get(column) is not None]
    places = [t for t, row in every if row.get(panel.lines[0].key) is not None]
    if not places or (panel.log and not any(value > 0 for value in values)):
        return []
    y = Axis.around(values, log=panel.log, margin=0.06, title=panel.unit + ", logarithmic" * panel.log)
    blocks = range(math.floor(min(places)), math.floor(max(places)) + 1)
    x = Axis(blocks[0] - 0.25, blocks[-1] + 1, title="block t", labels=blocks[:: math.ceil(len(blocks) / 12)])
    chart = Chart(panel.title, x, y, study.looks, panel.note)
    for name, each in placed.items():
        for line in panel.lines:
            known = [(t, row) for t, row in each if row.get(line.key) is not None]
            ends = [(t, row.get(line.low), row.get(line.high)) for t, row in each]
            chart.band(name, [(t, low, high) for t, low, high in ends if low is not None and high is not None])
            chart.line(name, [(t, row[line.key]) for t, row in known], line.kind)
            for t, row in known if line.kind == "line" else ():
                place = f"block {math.floor(t)} {row.get('kind') or ''}".strip()
                chart.mark(name, t, row[line.key], f"{name} · {place}: {figures(row[line.key])}")
    return [chart]


def implied_steps(study: SavedProbe) -> list[Chart]:
    """Implied step size over depth, mean of a block's sub-layers, with its law."""
    means = {name: block_means(study.trace.get(name, []), "ratio") for name in study.names}
    points = [point for rows in means.values() for point in rows]
    if not points:
        return []
    x = Axis(1, max(t for t, _ in points) * 1.1, log=True, title="block t, logarithmic")
    y = Axis.around(
        [value for _, value in points], log=True, margin=0.1, title="tangential / |x|, mean of a block, log"
    )
    note = "Powers are straight. Dotted: the law that it follows, a power of t where it follows none."
    chart = Chart("Implied step size", x, y, study.looks, note)
    for name, rows in means.items():
        law = study.schedule(name)
        if rows and law:
            grid = [1 + (len(rows) - 1) * k / 60 for k in range(61)]
            chart.line(name, [(t, evaluate_law(law, t, len(rows))) for t in grid], "dotted")
        for t, value in rows:
            chart.mark(name, t, value, f"{name} · block {t}: {figures(value)}")
    return [chart]


def block_means(rows: Sequence[Record], key: str) -> list[tuple[int, float]]:
    """(block, mean of a column over its sub-layers)."""
    blocks: dict[int, list[float]] = {}
    for row in rows:
        if row.get(key) is not None:
            blocks.setdefault(row["t"], []).append(row[key])
    return [(t, sum(values) / len(values)) for t, values in sorted(blocks.items())]


def evaluate_law(law: Record, t: float, depth: int) -> float:
    """The fitted law at block t."""
    best, power = law["best"], law["power"]
    kind, alpha = (power["exponent"], power["alpha"]) if best == "none" else (best, law[best]["alpha"])
    return float(schedule(kind, alpha, t, depth))


ONE_BATCH = "One batch."
RANDOM = "Band: 5 to 95 % of 64 random directions; thin: the direction that tokens share most."
FIGURES: Sequence[tuple[str, str, Sequence[Panel]]] = (
    ("norms", "Length of stream and update", (
        Panel("Length of the stream", "|x|", middle_half("radius"), SHADED, log=True),
        Panel("Length of the update", "|u|", middle_half("update_norm"), SHADED, log=True),
    )),
    ("rotation", "Rotation by each norm", (
        Panel("Rotation by each norm", "radians", middle_half("rotation"), SHADED, rows=SavedProbe.norms),
    )),
    ("uniform", "The uniform vector", (
        Panel("Towards the uniform vector before each norm", "|cos| to (1, ..., 1)",
              (Line("cos_ones_before", "cos_null_low_before", "cos_null_high_before"),
               Line("cos_principal_before", kind="thin")), RANDOM, rows=SavedProbe.norms),
    )),
    ("tokens", "Tokens among themselves", (
        Panel("Likeness of tokens", "cosine between tokens", middle_half("cos_pair")),
        Panel("Effective rank of tokens", "effective rank", middle_half("effective_rank"), log=True),
    )),
    ("massive", "Large activations and the sphere", (
        Panel("Large activations", "max |x_i| / rms", middle_half("peak"), SHADED, log=True),
        Panel("Spread of lengths", "spread of |x| / mean", middle_half("radius_cv"), SHADED, log=True),
    )),
    ("clamped", "The clamp", (Panel("Share of clamped updates", "share", middle_half("clamped")),)),
    ("gradients", "Gradient norms", (
        Panel("Gradient of all weights of a sub-layer", "gradient norm", middle_half("grad_norm"), ONE_BATCH, log=True),
        Panel("Gradient of matrices before the last (W1)", "gradient norm", middle_half("grad_w1"), ONE_BATCH,
              log=True),
        Panel("Gradient of the last matrix (W2)", "gradient norm", middle_half("grad_w2"), ONE_BATCH, log=True),
    )),
    ("depth_use", "What blocks are worth", (
        Panel("Loss without block t", ADDED, middle_half("increase"), rows=SavedProbe.single_blocks),
    )),
)  # fmt: skip
"""Of each figure its name, the title of its section, and its charts."""
