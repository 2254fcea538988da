"""Reports on probes (`geonorm probe`): reading their directories, tables and words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .atomic import read_every_line, read_whole, refuse_damaged
from .columns import align
from .page import Cells
from .source import SavedStudy
from .style import figures, si

Row = dict[str, Any]
NOTE = (
    "step: tangential part of x'-x over |x|, mean over tokens and sites; law: the decay that its course over blocks "
    "follows, with R² of the logarithms, and the power of t with its 95 % interval; |cos| to (1, ..., 1) beside the "
    "same for 64 random directions (5 to 95 % of them) and for the direction that tokens share most; spread: "
    "standard deviation of |x| over tokens before and after the norms of the blocks, geometric means"
)


@dataclass(frozen=True)
class Geometry(SavedStudy):
    """A probe's directory: its summary, and rows by series. A series is one stream of one model."""

    path: Path
    summary: Row
    sites: dict[str, list[Row]]
    norms: dict[str, list[Row]]
    ablation: dict[str, list[Row]]
    layers: dict[str, list[Row]] = field(default_factory=dict)
    chosen: Sequence[str] = ()
    """Of which models alone, by their names or schemes, in this order; of all where none is named."""

    @property
    def names(self) -> list[str]:
        found = list(dict.fromkeys([*self.sites, *(self.norms if not self.sites else ())]))
        if not self.chosen:
            return found
        return [name for wanted in self.chosen for name in found if wanted in (name, self._model(name).get("scheme"))]

    @property
    def keys(self) -> dict[str, str]:
        """Of each series, what it is shown as: its model's scheme, if no other has it, or its own name."""
        schemes = {name: self._model(name).get("scheme") for name in self.names}
        alone = [scheme for scheme in schemes.values() if list(schemes.values()).count(scheme) == 1]
        return {name: scheme if scheme and scheme in alone else name for name, scheme in schemes.items()}

    @property
    def models(self) -> list[Row]:
        """The models of the summary that are shown."""
        found = self.summary["models"]
        return [model for model in found if set(_streams(model)) & set(self.names)] if self.chosen else found

    def only(self, names: Sequence[str], sort: str | None = None) -> Geometry:
        return replace(self, chosen=names)

    def _model(self, name: str) -> Row:
        """What the summary says of the model of a series; nothing where it does not know it."""
        return next((model for model in self.summary["models"] if name in _streams(model)), {})

    def schedule(self, name: str) -> Row | None:
        """Laws of all sites of a series."""
        kinds = _streams(self._model(name)).get(name) if self._model(name) else None
        return (kinds or {}).get("all")


def _streams(model: Row) -> dict[str, Row]:
    """The series of a model, one, or one a stream, with the laws of its kinds of sites."""
    return {series_name(model["model"], stack, model["schedule"]): kinds
            for stack, kinds in (model["schedule"] or {"": {}}).items()}  # fmt: skip


def load(path: Path) -> Geometry:
    """Read a probe's directory. GeonormError where a file is cut or is not what the summary says, OSError where one is
    missing."""
    with refuse_damaged(path / "summary.json", "probe") as file:
        summary = read_whole(file)
        text_lines(summary["models"])
        stacks = {model["model"]: model["schedule"] for model in summary["models"]}
        counts = {key: sum(model[key] for model in summary["models"]) for key in ("sites", "norms")}

    def rows(name: str, count: int | None = None) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        with refuse_damaged(path / name, "probe") as file:
            for row in read_every_line(file):
                found.setdefault(series_name(row["model"], row["stack"], stacks[row["model"]]), []).append(row)
            if count is not None and sum(map(len, found.values())) != count:
                raise ValueError(f"it has not the {count} lines that summary.json counts")
        return found

    names = ("ablation", "layers")
    ablation, layers = (rows(f"{name}.jsonl") if (path / f"{name}.jsonl").exists() else {} for name in names)
    sites, norms = rows("trace.jsonl", counts["sites"]), rows("norms.jsonl", counts["norms"])
    return Geometry(path, summary, sites, norms, ablation, layers)


def series_name(model: str, stack: str, stacks: Iterable[str]) -> str:
    """A model's name, with the stream where it has two."""
    return f"{model} ({stack})" if len(list(stacks)) > 1 and stack else model


def norm_rows(found: Geometry, name: str) -> list[Row]:
    """Norms of a series that stand in a block and see the whole stream or update, in the order of the blocks."""
    rows = [row for row in found.norms.get(name, []) if row["layer"] is not None and row["kind"] is not None]
    return sorted(({**row, "t": row["layer"] + 1} for row in rows), key=lambda row: row["t"])


def caption(found: Geometry) -> str:
    models = found.summary["models"]
    tokens = " / ".join(dict.fromkeys(si(model["tokens"]) for model in models))
    return ", ".join([*filter(None, [found.summary["data"]]), f"{tokens} tokens"])


def overview(models: Sequence[Row]) -> tuple[list[str], Cells]:
    """One line per model."""
    titles = ["model", "type", "scheme", "blocks", "parameters", "tokens", "implied step law",
              "scale", "R²", "power of t"]  # fmt: skip
    cells = []
    for model in models:
        for stack, kinds in (model["schedule"] or {"": {}}).items():
            law = kinds.get("all") if kinds else None
            best = law.get(law["best"]) if law else None
            cells.append([
                series_name(model["model"], stack, model["schedule"]), model["model_type"] or model["class"],
                model["scheme"] or "–", str(model["depth"] or "–"), si(model["parameters"]), si(model["tokens"]),
                "–" if law is None else law["best"].replace("none", "none fits"),
                *(figures(best[key]) if best else "–" for key in ("alpha", "r2")), power_of(law),
            ])  # fmt: skip
    return titles, cells


def power_of(law: Row | None) -> str:
    """The exponent p of t^p fitted to the steps, with its interval where that is on record."""
    fitted = (law or {}).get("power")
    if not fitted:
        return "–"
    between = f" ({-fitted['high']:.2f} to {-fitted['low']:.2f})" if "low" in fitted else ""
    return f"{-fitted['exponent']:.2f}{between}".replace("-0.00", "0.00")


MEANS = ("ratio", "cos_pair", "effective_rank", "attn_first", "attn_first_null", "clamped")
"""Of sites."""
NORM_MEANS = ("rotation", "cos_ones_before", "cos_null_before", "cos_principal_before")


def measures(found: Geometry, name: str) -> Row:
    """Means over the sites, and over the norms in blocks, of a series; None for what is not known. rotation: radians;
    norm_spread: standard deviation of |x| over tokens before and after the norms of blocks, as arXiv:2409.12951."""
    rows, norms = found.sites.get(name, []), norm_rows(found, name) or found.norms.get(name, [])
    spread = found._model(name).get("norm_spread") or {}
    return {
        "radius_first": rows[0]["radius"] if rows else None,
        "radius_last": rows[-1]["radius_after"] if rows else None,
        **{key: column_mean(rows, key) for key in MEANS},
        **{key: column_mean(norms, key) for key in NORM_MEANS},
        **{f"norm_spread_{key}": spread.get(key) for key in ("before", "after", "factor")},
        "massive": sum(bool(row["massive"]) for row in rows),
        "sites": len(rows),
    }


def records(found: Geometry) -> list[Row]:
    """Every number of the page by series, as it is."""
    result = []
    for name in found.names:
        model, law = found._model(name), found.schedule(name) or {}
        best, power = law.get(str(law.get("best"))) or {}, law.get("power") or {}
        result.append({
            "model": name,
            **{key: model.get(key) for key in ("class", "model_type", "scheme", "depth", "parameters", "tokens")},
            "law": law.get("best"), "law_alpha": best.get("alpha"), "law_r2": best.get("r2"),
            **{f"power_{end}": -power[key] if key in power else None
               for end, key in (("of_t", "exponent"), ("low", "high"), ("high", "low"))},
            **measures(found, name),
        })  # fmt: skip
    return result


def averages(found: Geometry) -> tuple[list[str], Cells]:
    """Means over the sites, and over the norms in blocks, of each series, as a table."""
    titles = ["model", "|x| first", "|x| last", "step", "rotation", "spread of |x| by norms", "|cos| to 1", "its null",
              "principal", "cos of pairs", "effective rank", "massive", "attention to the first token",
              "even attention", "clamped"]  # fmt: skip
    cells = []
    for name in found.names:
        m = measures(found, name)
        before, after, factor = (figures(m[f"norm_spread_{key}"]) for key in ("before", "after", "factor"))
        cells.append([
            name, *(figures(m[key]) for key in ("radius_first", "radius_last", "ratio")),
            "–" if m["rotation"] is None else f"{math.degrees(m['rotation']):.1f}°",
            "–" if m["norm_spread_before"] is None else f"{before} to {after} (÷ {factor})",
            *(figures(m[f"cos_{key}"]) for key in ("ones_before", "null_before", "principal_before", "pair")),
            figures(m["effective_rank"]), f"{m['massive']} of {m['sites']} sites",
            *(figures(m[key]) for key in ("attn_first", "attn_first_null", "clamped")),
        ])  # fmt: skip
    return titles, cells


def headline(found: Geometry, name: str) -> str:
    """What was found about a series, in one plain sentence."""
    law, rows = found.schedule(name), found.sites.get(name, [])
    step = column_mean(rows, "ratio")
    if step is None:
        return f"{name}: no site of the stream was found, so only its norms are shown"
    said = f"{name}: a site moves a token by {figures(step)} of its length on average"
    if law:
        best, power = law["best"], power_of(law)
        shape = "none of the usual laws" if best == "none" else f"the {best} law (R² {figures(law[best]['r2'])})"
        said += f"; over the blocks the steps follow {shape}" + (f", power of t {power}" if power != "–" else "")
    return said


def column_mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def text_lines(models: Sequence[Row]) -> list[str]:
    """The overview as lines of text."""
    titles, cells = overview(models)
    return align([titles, *cells], numbers=False)
