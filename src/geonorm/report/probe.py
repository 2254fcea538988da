"""A probe (`geonorm probe`): what each sub-layer and each norm of a model does to hidden states."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..decay import schedule
from .charts import Chart
from .curves import Place
from .depth import GROWS, Measure, over_depth
from .page import html_table
from .study import Record, Section, Study, read_object_strictly, read_rows_strictly
from .style import figures, si
from .tables import Table

MEANS = ("ratio", "cos_pair", "effective_rank", "clamped")
"""Columns of the trace with a mean over sub-layers."""
NORM_MEANS = ("rotation", "cos_ones_before", "cos_null_before", "cos_principal_before")
Rows = dict[str, list[Record]]
SHADED = "Shaded: middle half of tokens."


@dataclass(frozen=True)
class SavedProbe(Study):
    """A probe's folder: its summary, and rows by series. A series is one stream of one model."""

    summary: Record
    trace: Rows
    all_norms: Rows
    ablation: Rows

    what = "Probe"
    maker = "probe"
    columns = 3

    @classmethod
    def read(cls, path: Path) -> SavedProbe:
        summary = read_object_strictly(path / "summary.json")
        stacks = {model["model"]: model["schedule"] for model in summary["models"]}
        files: dict[str, Rows] = {name: {} for name in ("trace", "norms", "ablation")}
        for name, series in files.items():
            file = path / f"{name}.jsonl"
            for row in read_rows_strictly(file) if name != "ablation" or file.exists() else ():
                series.setdefault(series_name(row["model"], row["stack"], stacks[row["model"]]), []).append(row)
        return cls(path, summary, *files.values())

    @property
    def series(self) -> list[str]:
        return list(dict.fromkeys([*self.trace, *self.all_norms]))

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

    @property
    def schemes(self) -> dict[str, str]:
        return {key: self.model_of(name).get("scheme") or key for name, key in self.keys.items()}

    def model_of(self, name: str) -> Record:
        """The summary's entry for the model of a series; empty where it has none."""
        return next((model for model in self.summary["models"] if name in laws_of(model)), {})

    def schedule(self, name: str) -> Record | None:
        """The laws of all sub-layers of a series."""
        model = self.model_of(name)
        return (laws_of(model).get(name) or {}).get("all") if model else None

    def norms(self, name: str) -> list[Record]:
        """Norms of a series inside blocks that read the whole stream or update, in the order of the blocks."""
        rows = [row for row in self.all_norms.get(name, []) if row["layer"] is not None and row["kind"] is not None]
        return sorted(({**row, "t": row["layer"] + 1} for row in rows), key=lambda row: row["t"])

    def single_blocks(self, name: str) -> list[Record]:
        """What leaving out one block costs, block by block."""
        return [{**row, "t": row["first"] + 1} for row in self.ablation.get(name, []) if row["blocks"] == 1]

    def caption(self) -> str:
        tokens = " / ".join(dict.fromkeys(si(model["tokens"]) for model in self.summary["models"]))
        return ", ".join([*filter(None, [Path(self.summary["data"] or "").name]), f"{tokens} tokens"])

    def headline(self) -> str:
        steps = {key: column_mean(self.sites(name), "ratio") for name, key in self.keys.items()}
        known = [f"{figures(step)} of its length in {key}" for key, step in steps.items() if step is not None]
        return f"On average a sub-layer moves a token by {', '.join(known)}" if known else self.title

    def findings(self) -> list[tuple[str, str]]:
        return [(name, self._headline(name)) for name in self.names]

    def _headline(self, name: str) -> str:
        law, step = self.schedule(name), column_mean(self.sites(name), "ratio")
        if step is None:
            return f"{name}: no step of a sub-layer was measured, so only its norms are shown"
        sentence = f"{name}: a sub-layer moves a token by {figures(step)} of its length on average"
        if law:
            best, power = law["best"], power_of(law)
            shape = "none of the usual laws" if best == "none" else f"the {best} law (R² {figures(law[best]['r2'])})"
            sentence += f"; over the blocks the steps follow {shape}{'' if power == '–' else f', power of t {power}'}"
        return sentence

    def limits(self) -> list[str]:
        return [
            f"{model['model']} is not finite from {model['not_finite']} on, so nothing is known after it."
            for model in self.summary["models"]
            if model.get("not_finite")
        ]

    def tables(self) -> dict[str, Table]:
        records = self.records()
        models = [
            [r["model"], r["scheme"] or "–", str(r["depth"] or "–"), (r["law"] or "–").replace("none", "none fits"),
             power_of(self.schedule(r["model"])), figures(r["law_alpha"]), figures(r["law_r2"]),
             r["model_type"] or r["class"] or "–", si(r["parameters"]), si(r["tokens"])]
            for r in records
        ]  # fmt: skip
        means = [
            [r["model"], *(figures(r[key]) for key in ("radius_first", "radius_last", *MEANS)),
             "–" if r["rotation"] is None else f"{math.degrees(r['rotation']):.1f}°",
             *(figures(r[key]) for key in ("norm_spread_before", "norm_spread_after", *NORM_MEANS[1:3]))]
            for r in records
        ]  # fmt: skip
        return {"Models": (OVERVIEW, models), "Means": (AVERAGES, means)}

    def text_tables(self, width: int) -> list[Table]:
        return [self.tables()["Models"]]

    def charts(self) -> dict[str, list[Chart]]:
        return {name: [chart for panel in panels for chart in self._over_depth(panel)] for name, _, panels in FIGURES}

    def _over_depth(self, panel: Panel) -> list[Chart]:
        """A column over the block that its rows stand in, with the thin line of another, or dotted the law of steps."""
        profiles: dict[str, list[Place]] = {}
        second: dict[str, list[Place]] = {}
        for name in self.names:
            rows, law = getattr(self, panel.rows)(name), self.schedule(name) if panel.key == "ratio" else None
            ends = [(row["t"], str(row.get("kind") or ""), row) for row in rows]
            profiles[name] = [Place(t, kind, row[panel.key], row.get(panel.low), row.get(panel.high))
                             for t, kind, row in ends if row.get(panel.key) is not None]  # fmt: skip
            second[name] = [Place(t, kind, row[panel.thin]) for t, kind, row in ends if row.get(panel.thin) is not None]
            if law:
                depth = max(row["t"] for row in rows)
                second[name] = [Place(t, "", evaluate_law(law, t, depth)) for t in range(1, depth + 1)]
        name, kind = panel.key.replace("_", "-"), "thin" if panel.thin else "dotted"
        return over_depth(name, panel.measure, self.looks, profiles, "block t", second, kind, self.keys)

    def sites(self, name: str) -> list[Record]:
        """The sub-layers of a series."""
        return self.trace.get(name, [])

    def sections(self, place: Mapping[str, int]) -> list[Section]:
        charts = self.charts()
        drawn = [Section(title, [charts[name]]) for name, title, _ in FIGURES if charts[name]]
        tables = zip(self.tables().values(), (OVERVIEW[5:], AVERAGES[7:]), strict=True)
        models, means = (html_table(*table, place, more) for table, more in tables)
        return [*drawn, Section("Models", [models]), Section("Means over sub-layers", [means])]

    def records(self) -> list[Record]:
        """Of each series its model, law, and means over the sub-layers and over the norms in blocks; None for what is
        not known. rotation: radians; norm_spread: standard deviation of |x| over tokens before and after the norms, as
        arXiv:2409.12951."""
        records = []
        for name in self.names:
            model, law, sites = self.model_of(name), self.schedule(name) or {}, self.sites(name)
            norms = self.norms(name) or self.all_norms.get(name, [])
            best, power = law.get(str(law.get("best"))) or {}, law.get("power") or {}
            spread = model.get("norm_spread") or {}
            records.append({
                "model": name,
                **{key: model.get(key) for key in ("class", "model_type", "scheme", "depth", "parameters", "tokens")},
                "law": law.get("best"), "law_alpha": best.get("alpha"), "law_r2": best.get("r2"),
                **{f"power_{end}": -power[key] if key in power else None
                   for end, key in (("of_t", "exponent"), ("low", "high"), ("high", "low"))},
                "radius_first": sites[0]["radius"] if sites else None,
                "radius_last": sites[-1]["radius_after"] if sites else None,
                **{key: column_mean(sites, key) for key in MEANS},
                **{key: column_mean(norms, key) for key in NORM_MEANS},
                **{f"norm_spread_{key}": spread.get(key) for key in ("before", "after", "factor")},
                "massive": sum(bool(row["massive"]) for row in sites), "sites": len(sites),
            })  # fmt: skip
        return records


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
    return f"{-power['exponent']:.2f}{ends}".replace("-0.00", "0.00").replace("-", "−")


def column_mean(rows: Sequence[Record], key: str) -> float | None:
    """The mean over the rows that have a value."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def evaluate_law(law: Record, t: float, depth: int) -> float:
    """The fitted law at block t."""
    best, power = law["best"], law["power"]
    kind, alpha = (power["exponent"], power["alpha"]) if best == "none" else (best, law[best]["alpha"])
    return float(schedule(kind, alpha, t, depth))


OVERVIEW = ("model", "scheme", "blocks", "implied step law", "power of t", "scale", "R²", "type", "parameters",
            "tokens")  # fmt: skip
AVERAGES = ("model", "|x| first", "|x| last", "step", "cos of pairs", "effective rank", "share of clamped updates",
            "rotation", "spread of |x|", "after norms", "|cos| to 1", "its null")  # fmt: skip


class Panel(NamedTuple):
    """A chart over depth: a column, its words, the rows it stands in, and the columns of its band and thin line."""

    key: str
    measure: Measure
    rows: str = "sites"
    low: str = ""
    high: str = ""
    thin: str = ""


def quartiles(key: str, measure: Measure, rows: str = "sites") -> Panel:
    return Panel(key, measure, rows, f"{key}_p25", f"{key}_p75")


ONE_BATCH = "One batch."
WEIGHTS = "Where one matrix has far more gradient than the other, one learning rate suits only one."
FIGURES: Sequence[tuple[str, str, Sequence[Panel]]] = (
    ("steps", "Implied step size", (
        quartiles("ratio", Measure(
            "Step of a sub-layer", "tangential / |x|",
            f"{SHADED} Dotted: the law that the means of blocks follow, a power of t where they follow none.",
            "Steps that fall like 1/t leave the late blocks little to do; level steps use all of them.")),
    )),
    ("norms", "Length of stream and update", (
        quartiles("radius", Measure("Length of the stream", "|x|", SHADED, GROWS)),
        quartiles("update_norm", Measure(
            "Length of the update", "|u|", SHADED, "Beside a long stream the same update turns a token less.")),
    )),
    ("tokens", "Tokens among themselves", (
        quartiles("cos_pair", Measure(
            "Likeness of tokens", "cosine between tokens", "",
            "Tokens that grow alike carry less of what sets them apart.")),
        quartiles("effective_rank", Measure(
            "Effective rank of tokens", "effective rank", "",
            "The number of directions that tokens use: where it falls, they collapse into few.")),
    )),
    ("clamped", "The clamp", (
        quartiles("clamped", Measure(
            "Share of clamped updates", "share", "",
            "Under 1 % the clamp does nothing; over 99 % it decides every step.")),
    )),
    ("depth_use", "What blocks are worth", (
        quartiles("increase", Measure(
            "Loss added without block t", "nats per token", "", "Blocks near 0 can be left out at no cost."),
            "single_blocks"),
    )),
    ("rotation", "Rotation by each norm", (
        quartiles("rotation", Measure(
            "Rotation by each norm", "radians", SHADED,
            "A norm that turns tokens takes out a direction, not only a length."), "norms"),
    )),
    ("uniform", "The uniform vector", (
        Panel("cos_ones_before", Measure(
            "Towards (1, ..., 1) before each norm", "|cos|",
            "Band: 5 to 95 % of 64 random directions; thin: the direction that tokens share most.",
            "Inside the band it is no special direction, so that LayerNorm's mean takes out nothing of note."),
            "norms", "cos_null_low_before", "cos_null_high_before", "cos_principal_before"),
    )),
    ("massive", "Large activations and the sphere", (
        quartiles("peak", Measure(
            "The largest activation", "max |x_i| / rms", SHADED,
            "Few large coordinates dominate norms and quantization.")),
        quartiles("radius_cv", Measure(
            "Spread of lengths", "spread of |x| / mean", SHADED,
            "At 0 all tokens lie on one sphere, and a norm changes nothing but the scale.")),
    )),
    ("gradients", "Gradient norms", (
        quartiles("grad_norm", Measure(
            "Gradient of a sub-layer's weights", "gradient norm", ONE_BATCH,
            "A level course lets one learning rate serve all blocks.")),
        quartiles("grad_w1", Measure("Gradient before the last matrix (W1)", "gradient norm", ONE_BATCH, WEIGHTS)),
        quartiles("grad_w2", Measure("Gradient of the last matrix (W2)", "gradient norm", ONE_BATCH, WEIGHTS)),
    )),
)  # fmt: skip
"""Of each figure its name, the title of its section, and its charts, from meaning to detail."""
