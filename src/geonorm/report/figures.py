"""Figures for a README or a paper: PNG and SVG by matplotlib, caption inside, the same bytes every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import series
from .page import summary_line
from .runs import Comparison
from .style import Look, looks, rate, si
from .tables import difference, spread, unfinished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MARKERS = {
    "circle": "o", "square": "s", "triangle": "^", "diamond": "D", "down": "v", "cross": "P", "hexagon": "h",
    "star": "*",
}  # fmt: skip
STYLE: dict[str, Any] = {
    "svg.hashsalt": "geonorm", "svg.fonttype": "path", "font.family": "DejaVu Sans", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#5c5c5c", "axes.titlesize": 10,
    "axes.titlelocation": "left", "axes.grid": True, "axes.axisbelow": True, "grid.color": "#ececec",
    "xtick.color": "#5c5c5c", "ytick.color": "#5c5c5c", "lines.linewidth": 1.6, "lines.markersize": 4.5,
    "legend.frameon": False, "figure.constrained_layout.use": True, "savefig.dpi": 160,
}  # fmt: skip


def draw(comparison: Comparison, out_dir: Path) -> list[Path]:
    """Write each figure that has something to show, as NAME.png and NAME.svg."""
    return save(comparison, FIGURES, summary_line(comparison), out_dir)


def save(
    source: Any, figures: Mapping[str, Callable[[Any, Figure], bool]], caption: str, out_dir: Path,
    notes: Mapping[str, str] | None = None,
) -> list[Path]:  # fmt: skip
    """Paint each figure of `figures` from `source`; one that returns False has nothing to show and is left out. Below
    each stands the caption, and behind it the note of that figure, if it has one."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    out_dir.mkdir(parents=True, exist_ok=True)
    rc: Any = STYLE  # matplotlib types the keys as literals
    written = []
    with mpl.rc_context(rc):
        for name, paint in figures.items():
            figure = Figure(figsize=(8.4, 3.6))
            FigureCanvasAgg(figure)
            if not paint(source, figure):
                continue
            figure.supxlabel(
                "; ".join(filter(None, (caption, (notes or {}).get(name)))),
                x=0.01,
                ha="left",
                fontsize=8,
                color="#5c5c5c",
            )
            for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
                path = out_dir / f"{name}.{suffix}"
                figure.savefig(path, metadata=metadata)
                written.append(path)
    return written


def final_loss(comparison: Comparison, figure: Figure) -> bool:
    """Strip chart of the final losses: one dot per run, mean and 95 % interval per scheme."""
    if not any(row["n"] for row in comparison.rows):
        return False
    figure.set_figheight(1.5 + 0.42 * len(comparison.rows))
    axes = figure.subplots()
    styles = looks(comparison.schemes)
    right = axes.get_yaxis_transform()
    for place, row in enumerate(comparison.rows):
        look = styles[row["scheme"]]
        losses = [run.summary["val_loss"] for run in comparison.counted(row["scheme"])]
        axes.plot(losses, [place] * len(losses), linestyle="none", marker=MARKERS[look.marker], color=look.light)
        if row["val_loss_low"] is not None:
            ends = [row["val_loss_low"], row["val_loss_high"]]
            axes.plot(ends, [place, place], color=look.light, alpha=0.22, linewidth=8, solid_capstyle="butt")
        if losses:
            axes.plot([row["val_loss_mean"]], [place], marker="|", markersize=13, color=look.light)
        compared = difference(row)
        note = f"{spread(row)}\n{compared}" if losses else unfinished(row)
        axes.text(1.02, place, note, transform=right, va="center", fontsize=8, parse_math=False)
    axes.set_yticks(range(len(comparison.rows)), [label(s) for s in comparison.schemes], color="#1c1c1c")
    axes.set_ylim(len(comparison.rows) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("final validation loss (nats per token)")
    axes.set_title(
        f"One mark per run; bar: 95 % interval of the mean; right: difference to {label(comparison.baseline)}"
    )
    return True


def loss_curves(comparison: Comparison, figure: Figure) -> bool:
    """Loss against tokens and against wall time, side by side."""
    panels = [(key, [series.losses(comparison, s, key) for s in comparison.schemes]) for key in ("tokens", "seconds")]
    panels = [(key, drawn) for key, drawn in panels if any(train or valid for train, valid in drawn)]
    if not panels:
        return False
    grid: Sequence[Axes] = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (key, drawn) in zip(grid, panels, strict=True):
        for (scheme, look), (train, valid) in zip(looks(comparison.schemes).items(), drawn, strict=True):
            if train:
                axes.plot(train.x, train.mean, color=look.light, linewidth=0.6, alpha=0.5)
            if valid:
                _plot(axes, valid.x, valid, look, scheme)
        frame = series.frame(comparison, drawn)
        if frame:
            axes.set_ylim(*frame)
        axes.set_xlim(left=0)
        axes.set_xlabel("tokens seen" if key == "tokens" else "wall time, seconds")
        if key == "tokens":
            axes.xaxis.set_major_formatter(lambda value, _: si(value))
    grid[0].set_ylabel("loss (nats per token)")
    grid[0].set_title("Validation loss with markers, training loss thin")
    legend(grid[-1])
    return True


def geometry(comparison: Comparison, figure: Figure) -> bool:
    """Radius and angle at each site, at the last evaluation."""
    panels = []
    for measure, title in (
        ("radius", "Radius |x| entering each site"),
        ("angle", "Angle of each write, radians"),
    ):
        profiles = [series.profile(comparison.drawn(scheme), measure) for scheme in comparison.schemes]
        if any(profiles):
            panels.append((title, profiles))
    if not panels:
        return False
    grid: Sequence[Axes] = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (title, profiles) in zip(grid, panels, strict=True):
        sites = series.all_sites(profiles)
        for (scheme, look), profile in zip(looks(comparison.schemes).items(), profiles, strict=True):
            places = [place for place, site in enumerate(sites) if site in profile]
            if not places:
                continue
            mean, low, high = zip(*(profile[sites[place]] for place in places), strict=True)
            axes.plot(places, mean, color=look.light, linestyle=dash(look))
            axes.plot([], [], MARKERS[look.marker], linestyle=dash(look), color=look.light, label=label(scheme))
            axes.fill_between(places, low, high, color=look.light, alpha=0.15, linewidth=0)
            for place, value in zip(places, mean, strict=True):
                face = look.light if sites[place].kind == "mlp" else "white"
                axes.plot(place, value, MARKERS[look.marker], color=look.light, markerfacecolor=face)
        if series.wide(value for profile in profiles for triple in profile.values() for value in triple):
            axes.set_yscale("log")
        layer_ticks(axes, sites)
        axes.set_xlabel("layer (attention hollow, MLP filled)")
        axes.set_title(title)
    legend(grid[-1])
    return True


LAWS = (  # measured, predicted, title
    ("radius_after", "law_radius", "Radius |x| after each site"),
    ("angle", "law_angle", "Angle of each write, radians"),
    ("1/speed", "1/speed", "Turning per update, 1/s"),
    ("cos_pair", None, "Mean cosine between tokens"),
)


def law(comparison: Comparison, figure: Figure) -> bool:
    """Measured at each site of the trained network over what the scheme's definition predicts to first order."""
    panels = []
    for measured, predicted, title in LAWS:
        both = [
            [series.profile(comparison.drawn(scheme), key) if key else {} for key in (measured, predicted)]
            for scheme in comparison.schemes
        ]
        if any(marks for marks, _ in both):
            panels.append((title, both, predicted))
    if not any(predicted and any(line for _, line in both) for _, both, predicted in panels):
        return False
    figure.set_figheight(max(6.4, 0.9 + 0.2 * len(comparison.schemes)))
    grid: Sequence[Axes] = figure.subplots(2, 2).flatten()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, both, _) in zip(grid, panels, strict=False):
        sites = series.all_sites(marks for marks, _ in both)
        for (scheme, look), (marks, line) in zip(looks(comparison.schemes).items(), both, strict=True):
            measured_at, predicted_at = (
                [(place, profile[site][0]) for place, site in enumerate(sites) if site in profile]
                for profile in (marks, line)
            )
            axes.plot(*zip(*(predicted_at or measured_at), strict=True), color=look.light, linestyle=dash(look))
            for place, value in measured_at:
                face = look.light if sites[place].kind == "mlp" else "white"
                axes.plot(place, value, MARKERS[look.marker], color=look.light, markerfacecolor=face)
            axes.plot([], [], MARKERS[look.marker], linestyle=dash(look), color=look.light, label=label(scheme))
        if series.wide(value[0] for marks, _ in both for value in marks.values()):
            axes.set_yscale("log")
        layer_ticks(axes, sites)
        axes.set_title(title)
    for axes in grid[2:]:
        axes.set_xlabel("layer (attention hollow, MLP filled)")
    figure.suptitle(
        "Marks: measured in the network; lines: first order of the definition", x=0.01, ha="left", fontsize=9
    )
    figure.legend(*grid[1].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return True


def layer_ticks(axes: Axes, sites: Sequence[series.Site]) -> None:
    """At most a dozen layer numbers, each at the first site of its layer."""
    starts = [place for place, site in enumerate(sites) if not place or site.layer != sites[place - 1].layer]
    starts = starts[:: math.ceil(len(starts) / 12)]
    axes.set_xticks(starts, [f"{sites[place].layer:g}" for place in starts])


def learning_rates(comparison: Comparison, figure: Figure) -> bool:
    """Final loss against learning rate; a ring marks the rate a scheme is judged at."""
    tables = [(row, {lr: loss for lr, loss in row["lrs"].items() if lr}) for row in comparison.rows]
    tried = sorted({lr for _, table in tables for lr in table})
    if len(tried) < 2 or all(loss is None for _, table in tables for loss in table.values()):
        return False
    figure.set_figwidth(5.6)
    axes = figure.subplots()
    styles = looks(comparison.schemes)
    for row, table in tables:
        look = styles[row["scheme"]]
        losses = [math.nan if loss is None else loss for loss in table.values()]
        name = label(row["scheme"])
        axes.plot(list(table), losses, MARKERS[look.marker], linestyle=dash(look), color=look.light, label=name)
        if row["lr"] in table:
            axes.plot(row["lr"], table[row["lr"]], "o", markersize=10, markerfacecolor="none", color=look.light)
    axes.set_ylim(*series.rate_window([loss for _, table in tables for loss in table.values() if loss is not None]))
    axes.set_xscale("log")
    axes.set_xticks(tried, [rate(lr) for lr in tried])
    axes.minorticks_off()
    axes.set_xlabel("learning rate")
    axes.set_ylabel("validation loss (nats per token)")
    axes.set_title("Ringed: the rate a scheme is judged at")
    legend(axes)
    return True


MOST_PANELS = 6


def uniform(comparison: Comparison, figure: Figure) -> bool:
    """|cos| to the uniform vector of what each norm is given, over tokens; grey: where random directions are."""
    panels = []
    for scheme in comparison.schemes:
        runs = comparison.drawn(scheme)
        courses = series.norm_courses(runs, "cos_ones_before")
        if courses and max(len(curve.x) for curve in courses.values()) > 1:
            ends = [series.over_norms(series.norm_courses(runs, f"cos_null_{end}_before")) for end in ("low", "high")]
            panels.append((scheme, courses, ends))
    if not panels:
        return False
    panels = panels[:MOST_PANELS]
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure.set_size_inches(max(8.4, 1.6 + 2.6 * columns), 0.9 + 2.5 * rows)
    grid = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (scheme, courses, ends) in zip(grid, panels, strict=False):
        low, high = ends
        if low and high:
            axes.fill_between(low.x, low.mean, high.mean, color="#bdbdbd", alpha=0.5, linewidth=0, label="random")
        for place, (where, curve) in enumerate(courses.items()):
            shade = place / max(1, len(courses) - 1)
            colour = (0.9 - 0.75 * shade, 0.6 - 0.35 * shade, 0.25 + 0.25 * shade)
            axes.plot(curve.x, curve.mean, color=colour, linewidth=1.2, label=str(where))
        axes.set_title(label(scheme), fontsize=9)
        axes.xaxis.set_major_formatter(lambda value, _: si(value))
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("tokens seen")
    for axes in grid[::columns]:
        axes.set_ylabel("mean |cos| to ones")
    figure.suptitle("Before each norm; grey: 5 to 95 % of 64 random directions", x=0.01, ha="left", fontsize=9)
    legend(grid[min(columns, len(panels)) - 1])
    return True


FIGURES: dict[str, Callable[[Comparison, Figure], bool]] = {
    "final_loss": final_loss,
    "loss_curves": loss_curves,
    "geometry": geometry,
    "law": law,
    "learning_rates": learning_rates,
    "uniform": uniform,
}


def _plot(axes: Axes, x: Any, curve: series.Curve, look: Look, scheme: str) -> None:
    """A mean over seeds with markers, and the range of the seeds."""
    style = MARKERS[look.marker]
    axes.plot(x, curve.mean, style, linestyle=dash(look), color=look.light, label=label(scheme))
    axes.fill_between(x, curve.low, curve.high, color=look.light, alpha=0.15, linewidth=0)


def legend(axes: Axes, others: Sequence[Axes] = ()) -> None:
    """Beside the axes, of what they and the others show; the figure grows with the number of schemes."""
    entries = {
        name: handle for one in (*others, axes) for handle, name in zip(*one.get_legend_handles_labels(), strict=True)
    }
    figure = axes.get_figure(root=True)
    if figure is not None:
        figure.set_figheight(max(figure.get_figheight(), 0.9 + 0.2 * len(entries)))
    axes.legend(entries.values(), entries, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)


def plain_ticks(axis: Axis) -> None:
    """A logarithmic axis of less than two and a half decades with numbers as they are written (0.03, 20), and few."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    low, high = axis.get_view_interval()
    if high >= 300 * low:
        return
    axis.set_major_locator(
        LogLocator(subs=(1, 2, 5)) if high >= 10 * low else MaxNLocator(5, steps=[1, 2, 5, 10], min_n_ticks=3)
    )
    axis.set_major_formatter(lambda value, _: f"{value:.6g}")
    axis.set_minor_locator(NullLocator())


def dash(look: Look) -> Any:
    return (0, tuple(float(part) / 1.6 for part in look.dash.split())) if look.dash else "-"


def label(scheme: str) -> str:
    """The scheme's name, cut to fit, that matplotlib does not read as mathematics."""
    return (scheme if len(scheme) <= 30 else scheme[:29] + "…").replace("$", r"\$")
