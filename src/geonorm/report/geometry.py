"""Reports on probes (`geonorm probe`): tables, figures per depth and a page, from files of their directories alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .columns import aligned
from .figures import MARKERS, dash, label, legend, plain_ticks
from .runs import record, records, whole
from .simulation import Cells, shell, table
from .simulation import figure as drawing
from .style import Look, figures, looks, si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = dict[str, Any]
NOTE = (
    "step: tangential part of x'-x over |x|, mean over tokens and sites; law: the decay that its course over blocks "
    "follows, with R² of the logarithms, and the power of t with its 95 % interval; |cos| to (1, ..., 1) beside the "
    "same for 64 random directions (5 to 95 % of them) and for the direction that tokens share most"
)
TITLES = {
    "norms": "Length of stream and update",
    "steps": "Implied step size, with its law dotted",
    "rotation": "Rotation by each norm",
    "uniform": "The uniform vector, beside random directions (band) and the principal one (dashed)",
    "tokens": "Tokens among themselves",
    "massive": "Large activations and the sphere",
    "gradients": "Gradient norms: all weights of a site, its matrices before the last (W1), the last (W2)",
    "depth_use": "What blocks are worth",
}
SHADED = "shaded: middle half of tokens"
NOTES = {
    "norms": SHADED,
    "steps": "dotted: the law that it follows, a power of t where it follows none",
    "rotation": SHADED,
    "uniform": "band: 5 to 95 % of 64 random directions; dashed: the principal direction",
    "massive": SHADED,
    "gradients": "one batch",
}
"""What stands below a figure behind the caption: what its bands and thin lines are."""


@dataclass(frozen=True)
class Geometry:
    """A probe's directory: its summary, and rows by series. A series is one stream of one model."""

    path: Path
    summary: Row
    sites: dict[str, list[Row]]
    norms: dict[str, list[Row]]
    ablation: dict[str, list[Row]]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.sites, *(self.norms if not self.sites else ())]))

    def schedule(self, name: str) -> Row | None:
        """Laws of all sites of a series."""
        for model in self.summary["models"]:
            for stack, kinds in model["schedule"].items():
                if series(model["model"], stack, model["schedule"]) == name:
                    found: Row | None = kinds.get("all")
                    return found
        return None


def load(path: Path) -> Geometry:
    """Read a probe's directory. GeonormError where a file is cut or is not what the summary says, OSError where one is
    missing."""
    with whole(path / "summary.json", "probe") as file:
        summary = record(file)
        terminal(summary["models"])
        stacks = {model["model"]: model["schedule"] for model in summary["models"]}
        counts = {key: sum(model[key] for model in summary["models"]) for key in ("sites", "norms")}

    def rows(name: str, count: int | None = None) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {}
        with whole(path / name, "probe") as file:
            for row in records(file):
                found.setdefault(series(row["model"], row["stack"], stacks[row["model"]]), []).append(row)
            if count is not None and sum(map(len, found.values())) != count:
                raise ValueError(f"it has not the {count} lines that summary.json counts")
        return found

    ablation = rows("ablation.jsonl") if (path / "ablation.jsonl").exists() else {}
    return Geometry(path, summary, rows("trace.jsonl", counts["sites"]), rows("norms.jsonl", counts["norms"]), ablation)


def series(model: str, stack: str, stacks: Iterable[str]) -> str:
    """A model's name, with the stream where it has two."""
    return f"{model} ({stack})" if len(list(stacks)) > 1 and stack else model


def depths(rows: Sequence[Row]) -> list[float]:
    """Where sites stand on the axis: block t, and its sites evenly up to t + 1."""
    counts: dict[int, int] = {}
    places = []
    for row in rows:
        places.append(counts.get(row["t"], 0))
        counts[row["t"]] = places[-1] + 1
    return [row["t"] + place / counts[row["t"]] for row, place in zip(rows, places, strict=True)]


def line(
    axes: Axes, rows: Sequence[Row], key: str, look: Look, name: str | None, at: Sequence[float], *,
    shade: bool = True, **style: Any,
) -> bool:  # fmt: skip
    """A quantity over depth; with shade, the middle half of its tokens behind it, where that is known."""
    known = [(x, row) for x, row in zip(at, rows, strict=True) if row.get(key) is not None]
    if not known:
        return False
    usual: Row = {"color": look.light, "linestyle": dash(look), "marker": MARKERS[look.marker], "markersize": 3.5}
    text = None if name is None else label(name)
    axes.plot([x for x, _ in known], [row[key] for _, row in known], label=text, **(usual | style))
    if shade:
        between(axes, known, f"{key}_p25", f"{key}_p75", look, 0.13)
    return True


def between(axes: Axes, known: Sequence[tuple[float, Row]], low: str, high: str, look: Look, alpha: float) -> None:
    """A band from one column to another."""
    band = [(x, row[low], row[high]) for x, row in known if row.get(low) is not None and row.get(high) is not None]
    at, bottom, top = ([point[i] for point in band] for i in range(3))
    axes.fill_between(at, bottom, top, color=look.light, alpha=alpha, linewidth=0)


def panels(keys: Sequence[tuple[str, str, bool]]) -> Callable[[Geometry, Figure], bool]:
    """A figure of one panel per (column of the trace, axis label, log scale)."""

    def paint(found: Geometry, figure: Figure) -> bool:
        shown = False
        for axes, (key, title, log) in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
            some = False
            for name, look in looks(found.names).items():
                rows = found.sites.get(name, [])
                some |= line(axes, rows, key, look, name, depths(rows))
            dress(axes, title, log and some)
            shown |= some
        place_legend(figure)
        return shown

    return paint


def place_legend(figure: Figure) -> None:
    """The legend of all panels, beside the last that shows something."""
    shown = [axes for axes in figure.get_axes() if axes.get_legend_handles_labels()[1]]
    if shown:
        legend(shown[-1], shown[:-1])


def dress(axes: Axes, title: str, log: bool) -> None:
    axes.set_xlabel("block t")
    axes.locator_params(axis="x", integer=True)
    axes.set_title(title)
    if log:
        axes.set_yscale("log")
        plain_ticks(axes.yaxis)


def steps(found: Geometry, figure: Figure) -> bool:
    """Implied step size over depth, mean of a block's sites, linear and log-log, with each series' law."""
    shown = False
    for axes, log in zip(figure.subplots(1, 2), (False, True), strict=True):
        for name, look in looks(found.names).items():
            rows = block_means(found.sites.get(name, []), "ratio")
            shown |= line(axes, rows, "ratio", look, name, [row["t"] for row in rows], linestyle="", shade=False)
            law = found.schedule(name)
            if rows and law:
                depth = len(rows)
                grid = [1 + (depth - 1) * k / 60 for k in range(61)]
                axes.plot(grid, [curve(law, t, depth) for t in grid], color=look.light, linestyle=":", linewidth=1.6)
        dress(axes, "tangential / |x|, mean of a block" + ("; powers are straight" if log else ""), log and shown)
        if log:
            axes.set_xscale("log")
            plain_ticks(axes.xaxis)
    place_legend(figure)
    return shown


def block_means(rows: Sequence[Row], key: str) -> list[Row]:
    """One row per block: the mean of a column over its sites."""
    found: dict[int, list[float]] = {}
    for row in rows:
        if row.get(key) is not None:
            found.setdefault(row["t"], []).append(row[key])
    return [{"t": t, key: sum(values) / len(values)} for t, values in sorted(found.items())]


def curve(law: Row, t: float, depth: int) -> float:
    if law["best"] == "none":
        fitted: float = law["power"]["alpha"] * t ** -law["power"]["exponent"]
        return fitted
    shapes = {"harmonic": 1 / t, "sqrt": t**-0.5, "linear": (depth - t + 1) / depth, "constant": 1.0}
    scale: float = law[law["best"]]["alpha"]
    return scale * shapes[law["best"]]


def norm_rows(found: Geometry, name: str) -> list[Row]:
    """Norms of a series that stand in a block and see the whole stream or update, in the order of the blocks."""
    rows = [row for row in found.norms.get(name, []) if row["layer"] is not None and row["kind"] is not None]
    return sorted(({**row, "t": row["layer"] + 1} for row in rows), key=lambda row: row["t"])


def rotation(found: Geometry, figure: Figure) -> bool:
    """Degrees that each norm turns tokens by, as it is and without gain and bias."""
    shown = False
    for axes, key in zip(figure.subplots(1, 2, sharey=True), ("rotation", "rotation_plain"), strict=True):
        for name, look in looks(found.names).items():
            rows = [
                {"t": row["t"], **{k: degrees(v) for k, v in row.items() if k.startswith(key)}}
                for row in norm_rows(found, name)
            ]
            shown |= line(axes, rows, key, look, name, depths(rows))
        dress(axes, "degrees, with gain and bias" if key == "rotation" else "degrees, without gain and bias", False)
    place_legend(figure)
    return shown


def degrees(value: Any) -> Any:
    return math.degrees(value) if isinstance(value, float) else value


def uniform(found: Geometry, figure: Figure) -> bool:
    """|cos| to the uniform vector in front of each norm and behind it, with the null."""
    shown = False
    for axes, end in zip(figure.subplots(1, 2, sharey=True), ("before", "after"), strict=True):
        for name, look in looks(found.names).items():
            rows = norm_rows(found, name)
            at = depths(rows)
            shown |= line(axes, rows, f"cos_ones_{end}", look, name, at, shade=False)
            thin: Row = {"linestyle": "--", "marker": "", "linewidth": 0.9, "shade": False}
            line(axes, rows, f"cos_principal_{end}", look, None, at, **thin)
            points = list(zip(at, rows, strict=True))
            between(axes, points, f"cos_null_low_{end}", f"cos_null_high_{end}", look, 0.25)
        dress(axes, f"|cos| to (1, ..., 1) {end} the norm", False)
    place_legend(figure)
    return shown


def depth_use(found: Geometry, figure: Figure) -> bool:
    """Loss without one block, and against the angle between the ends of what is left out."""
    if not any(found.ablation.values()):
        return False
    left, right = figure.subplots(1, 2)
    for name, look in looks(found.names).items():
        rows = found.ablation.get(name, [])
        one = [{**row, "t": row["first"] + 1} for row in rows if row["blocks"] == 1]
        line(left, one, "increase", look, name, [row["t"] for row in one])
        right.plot([row["angle"] for row in rows], [row["increase"] for row in rows], linestyle="", color=look.light,
                   marker=MARKERS[look.marker], markersize=3.5, label=label(name))  # fmt: skip
    dress(left, "loss added without block t, nats", False)
    right.set_xlabel("angle from x before to x after, radians")
    right.set_title("loss added without blocks in a row, nats")
    legend(right)
    return True


def gradients(found: Geometry, figure: Figure) -> bool:
    keys = (("grad_norm", "site"), ("grad_w1", "W1"), ("grad_w2", "W2"))
    known = [(k, title) for k, title in keys if any(r.get(k) for rows in found.sites.values() for r in rows)]
    return bool(known) and panels([(key, f"gradient norm, {title}", True) for key, title in known])(found, figure)


FIGURES: dict[str, Callable[[Geometry, Figure], bool]] = {
    "norms": panels([("radius", "|x|, the stream", True), ("update_norm", "|u|, the update", True)]),
    "steps": steps,
    "rotation": rotation,
    "uniform": uniform,
    "tokens": panels([("cos_pair", "cos between tokens", False), ("effective_rank", "effective rank", True)]),
    "massive": panels([("peak", "max |x_i| / rms", True), ("radius_cv", "spread of |x| / mean", True),
                       ("resultant", "resultant length", False)]),
    "gradients": gradients,
    "depth_use": depth_use,
}  # fmt: skip


def caption(found: Geometry) -> str:
    models = found.summary["models"]
    tokens = " / ".join(dict.fromkeys(si(model["tokens"]) for model in models))
    return f"{found.summary['data']}, {tokens} tokens"


def overview(models: Sequence[Row]) -> tuple[list[str], Cells]:
    """One line per model."""
    titles = [
        "model",
        "type",
        "scheme",
        "blocks",
        "parameters",
        "tokens",
        "implied step law",
        "scale",
        "R²",
        "power of t",
    ]
    cells = []
    for model in models:
        for stack, kinds in (model["schedule"] or {"": {}}).items():
            law = kinds.get("all") if kinds else None
            best = law.get(law["best"]) if law else None
            cells.append([
                series(model["model"], stack, model["schedule"]), model["model_type"] or model["class"],
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


def averages(found: Geometry) -> tuple[list[str], Cells]:
    """Means over the sites, and over the norms in blocks, of each series."""
    titles = ["model", "|x| first", "|x| last", "step", "rotation", "|cos| to 1", "null", "principal", "cos of pairs",
              "effective rank", "massive"]  # fmt: skip
    cells = []
    for name in found.names:
        rows, norms = found.sites.get(name, []), norm_rows(found, name) or found.norms.get(name, [])
        ends = [rows[0]["radius"], rows[-1]["radius_after"]] if rows else [None, None]
        degree = mean(norms, "rotation")
        cells.append([
            name, *(figures(v) for v in ends), figures(mean(rows, "ratio")),
            "–" if degree is None else f"{math.degrees(degree):.1f}°",
            *(figures(mean(norms, key)) for key in ("cos_ones_before", "cos_null_before", "cos_principal_before")),
            figures(mean(rows, "cos_pair")), figures(mean(rows, "effective_rank")),
            f"{sum(bool(r['massive']) for r in rows)} of {len(rows)} sites",
        ])  # fmt: skip
    return titles, cells


def mean(rows: Sequence[Row], key: str) -> float | None:
    values = [row[key] for row in rows if row.get(key) is not None]
    return sum(values) / len(values) if values else None


def terminal(models: Sequence[Row]) -> list[str]:
    """The overview as lines of text."""
    titles, cells = overview(models)
    return aligned([titles, *cells], numbers=False)


def page(probes: Sequence[Geometry], drawings: Sequence[dict[str, bytes]]) -> str:
    """One self-contained page about one or more probes; drawings: SVG by name, per probe."""
    title = "Geometry: " + ", ".join(dict.fromkeys(found.path.resolve().name for found in probes))
    return shell(title, "".join(_section(found, drawn) for found, drawn in zip(probes, drawings, strict=True)))


def _section(found: Geometry, drawn: dict[str, bytes]) -> str:
    tables = "".join(table(*content) for content in (overview(found.summary["models"]), averages(found)))
    pictures = "".join(drawing(TITLES[name], svg) for name, svg in drawn.items())
    return (
        f'<section><h2>{escape(found.path.resolve().name)}</h2><p class="caption">{escape(caption(found))}</p>'
        f"{tables}<p>{escape(NOTE)}</p>{pictures}</section>"
    )
