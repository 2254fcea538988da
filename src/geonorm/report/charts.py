"""The charts of the page: each takes a comparison and gives figures, or none if there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..lab.runs.statistics import usable
from . import series
from .runs import Comparison, Run
from .style import Look, duration, figures, looks, rate, si, signed
from .svg import Axis, Chart
from .tables import count, difference, spread, unfinished

ROW = 46  # height of a row of a strip chart


class Figure(NamedTuple):
    """A chart with its title and the sentence that tells what one sees."""

    title: str
    note: str
    chart: Chart


class Strip(NamedTuple):
    """A row of a strip chart: what is written above it, its dots with their labels, its mean and interval."""

    scheme: int
    name: str
    value: str
    dots: list[tuple[float, str]]
    mean: float | None = None
    low: float | None = None
    high: float | None = None


def strips(rows: Sequence[Strip], styles: Sequence[Look], axis: Axis, summary: str, zero: bool = False) -> Chart:
    """One row per scheme: dots are runs, the bar is the 95 % interval, the tick its mean."""
    chart = Chart(axis, None, summary, height=ROW * len(rows) + 60, width=560)
    if zero:
        chart.rule(0.0)
    for position, row in enumerate(rows):
        text_y = chart.top + position * ROW + 14
        y = text_y + 17.0
        name = row.name if len(row.name) <= 30 else row.name[:29] + "…"
        chart.text(chart.left + 2, text_y, name, f"label s{row.scheme}", row.scheme)
        chart.text(chart.width - chart.right, text_y, row.value, "value end", row.scheme)
        if row.low is not None and row.high is not None:
            chart.segment(row.scheme, row.low, row.high, y)
        for value, label in row.dots:
            chart.dot(row.scheme, value, y, label, styles[row.scheme].marker)
        if row.mean is not None:
            chart.tick(row.scheme, row.mean, y)
    return chart


def noise(comparison: Comparison) -> list[Figure]:
    """Final loss of every run at each scheme's best learning rate."""
    rows = []
    for index, row in enumerate(comparison.rows):
        runs = comparison.counted(row["scheme"])
        dots = [(run.summary["val_loss"], f"{run.label}: {run.summary['val_loss']:.4f}") for run in runs]
        value = f"{spread(row)}, n = {row['n']}" if runs else unfinished(row)
        ends = (row["val_loss_mean"], row["val_loss_low"], row["val_loss_high"])
        rows.append(Strip(index, row["scheme"], value, dots, *ends))
    values = [x for row in rows for x in (*(d for d, _ in row.dots), row.low, row.high) if x is not None]
    if not values:
        return []
    axis = Axis.around(values, title="final validation loss (nats per token)")
    note = (
        "Each mark is one run at its scheme's best learning rate; the bar is the 95 % interval of the mean over seeds."
    )
    styles = list(looks(comparison.schemes).values())
    return [Figure("Noise between seeds", note, strips(rows, styles, axis, "Final loss of every run"))]


def forest(comparison: Comparison) -> list[Figure]:
    """Paired differences to the baseline with their intervals."""
    base = {run.summary.get("seed"): run.summary["val_loss"] for run in comparison.counted(comparison.baseline)}
    rows = []
    for index, row in enumerate(comparison.rows):
        if row["difference"] is None or row["scheme"] == comparison.baseline:
            continue
        dots = []
        for run in comparison.counted(row["scheme"]):
            seed = run.summary.get("seed")
            if seed in base:
                gap = run.summary["val_loss"] - base[seed]
                dots.append((gap, f"{run.label}: {signed(gap, 4)} nats"))
        ends = (row["difference"], row["difference_low"], row["difference_high"])
        rows.append(Strip(index, row["scheme"], difference(row), dots, *ends))
    if not rows:
        return []
    values = [
        0.0,
        *(x for row in rows for x in (*(d for d, _ in row.dots), row.low, row.high) if x is not None),
    ]
    axis = Axis.around(values, title=f"difference to {comparison.baseline}, nats (left of 0 is better)")
    note = (
        "Runs of equal seed share data order, so each mark is one seed's difference. "
        "The bar is the 95 % interval of their mean: where it touches 0 the difference is not resolved."
    )
    if len(rows) > 1:
        note += f" With {len(rows)} comparisons, expect about {0.05 * len(rows):.2g} to miss 0 by chance alone; "
        note += "the table has p adjusted for that."
    styles = list(looks(comparison.schemes).values())
    return [Figure("Paired differences", note, strips(rows, styles, axis, "Paired differences", zero=True))]


def losses(comparison: Comparison) -> list[Figure]:
    """Loss against tokens and against wall time."""
    seconds: Callable[[float], str] = duration
    found = []
    for key, title, form in (("tokens", "tokens seen", si), ("seconds", "wall time", seconds)):
        drawn = [series.losses(comparison, scheme, key) for scheme in comparison.schemes]
        trains = [train for train, _ in drawn if train]
        points = [valid for _, valid in drawn if valid]
        frame = series.frame(comparison, drawn)
        if frame is None:
            continue
        xs = [float(c.x[-1]) for c in [*trains, *points]]
        axis = Axis(0.0, max(xs) * 1.02, form=form, title=title)
        chart = Chart(axis, Axis(*frame), f"Loss against {title}")
        for index, (train, valid) in enumerate(drawn):
            if train:
                chart.line(index, list(train.x), list(train.mean), "line thin")
            if valid:
                _curve(chart, comparison, index, valid, form)
        note = (
            "Validation loss with markers and the range of the seeds, training loss thin. "
            "The start leaves the frame, as may what diverged."
        )
        if key == "seconds":
            note += " Runs that shared the machine slowed one another: no measure of cost."
        found.append(Figure(f"Loss against {title}", note, chart))
    return found


def gaps(comparison: Comparison) -> list[Figure]:
    """The paired difference to the baseline in the course of training."""
    base = comparison.counted(comparison.baseline)
    others = [scheme for scheme in comparison.schemes if scheme != comparison.baseline]
    drawn = {scheme: series.gap(comparison.counted(scheme), base) for scheme in others}
    curves = [curve for curve in drawn.values() if curve]
    if not curves or max(len(curve.x) for curve in curves) < 2:
        return []
    late = [curve.x >= 0.15 * curve.x[-1] for curve in curves]
    values = [0.0, *(v for c, keep in zip(curves, late, strict=True) for v in (*c.low[keep], *c.high[keep]))]
    x = Axis(0.0, max(float(curve.x[-1]) for curve in curves) * 1.02, form=si, title="tokens seen")
    chart = Chart(x, Axis.around(values), "Difference to the baseline in the course of training")
    chart.level(0.0)
    for index, scheme in enumerate(comparison.schemes):
        curve = drawn.get(scheme)
        if curve:
            _curve(chart, comparison, index, curve, si, "95 %")
    note = (
        f"Validation loss less that of {comparison.baseline}, paired by seed; "
        "the band is the 95 % interval at each point."
    )
    return [Figure("Difference in the course of training", note, chart)]


def _curve(
    chart: Chart,
    comparison: Comparison,
    index: int,
    curve: series.Curve,
    form: Callable[[float], str],
    band: str = "seeds",
) -> None:
    """A mean over seeds with markers and a band: the range of the seeds, or an interval."""
    scheme = comparison.schemes[index]
    marker = list(looks(comparison.schemes).values())[index].marker
    chart.band(index, list(curve.x), list(curve.low), list(curve.high))
    chart.line(index, list(curve.x), list(curve.mean))
    for x, mean, low, high in zip(*curve, strict=True):
        within = "" if low == high else f" ({band} {figures(low)} to {figures(high)})"
        chart.mark(index, x, mean, f"{scheme} · {form(x)}: {figures(mean)}{within}", marker)


def learning_rates(comparison: Comparison) -> list[Figure]:
    """Final loss against learning rate, where several were tried."""
    tried = sorted({lr for row in comparison.rows for lr in row["lrs"] if lr})
    losses = [loss for row in comparison.rows for lr, loss in row["lrs"].items() if lr and loss is not None]
    if len(tried) < 2 or not losses:
        return []
    x = Axis.around(tried, log=True, margin=0.08, form=rate, title="learning rate")
    chart = Chart(x, Axis(*series.rate_window(losses)), "Final loss against learning rate")
    chart.x_labels = [(lr, rate(lr)) for lr in (tried if len(tried) <= 7 else tried[:: math.ceil(len(tried) / 7)])]
    markers = [look.marker for look in looks(comparison.schemes).values()]
    for index, row in enumerate(comparison.rows):
        rates = [lr for lr in row["lrs"] if lr]
        chart.line(index, rates, [math.nan if row["lrs"][lr] is None else row["lrs"][lr] for lr in rates])
        for lr in rates:
            runs = _tried(comparison.of(row["scheme"]), lr)
            _rate_mark(chart, index, row["lrs"][lr], lr, runs, markers[index], best=lr == row["lr"])
    note = "Ringed: the rate the scheme is judged at. A cross at the top: some run there did not finish."
    return [Figure("Learning rates", note, chart)]


def _tried(runs: Sequence[Run], lr: float) -> list[Run]:
    """Runs at this learning rate: the tuning runs, where the scheme has any there."""
    here = [run for run in runs if run.summary.get("lr") == lr]
    return [run for run in here if run.summary.get("phase") == "tune"] or here


def _rate_mark(
    chart: Chart, index: int, loss: float | None, lr: float, runs: Sequence[Run], marker: str, best: bool
) -> None:
    lost = sum(not usable(run.summary) for run in runs)
    if lost:
        label = f"{runs[0].scheme} · lr {rate(lr)}: {lost} of {count(len(runs), 'run')} did not finish"
        assert chart.y is not None
        chart.mark(index, lr, chart.y.high, label, "fail", "mark fail")
    if loss is not None:
        label = f"{runs[0].scheme} · lr {rate(lr)}: {loss:.4f}, {count(len(runs) - lost, 'run')}"
        chart.mark(index, lr, loss, label, marker, "mark best" if best else "mark")


class Measure(NamedTuple):
    """A column of the trace with the words for it."""

    key: str
    title: str
    note: str
    law: str = ""
    """The column that the definition predicts for this one: drawn as the line under the marks."""


PROFILES = (
    Measure("radius", "Radius of the stream", "Mean norm |x| of the tokens that enter each site."),
    Measure("angle", "Angle of each write", "Mean angle, in radians, by which a site turns a token.", "law_angle"),
    Measure("radius_after", "Radius after each site", "Mean norm |x'| of the tokens that leave.", "law_radius"),
    Measure("1/speed", "Turning per update", "1/s in theta' = P(u) / s: from the definition, with this x and u."),
    Measure("clamped", "Clamped tokens", "Share of tokens whose angle reached the scheme's limit."),
    Measure("cos_pair", "Likeness of tokens", "Mean cosine between tokens of one sequence; 1 is collapse."),
    Measure("grad_norm", "Gradient per site", "Norm of the gradient at each site."),
)
COURSES = (
    Measure("radius", "Radius in the course of training", "Mean over all sites."),
    Measure("angle", "Angle in the course of training", "Mean over all sites, in radians."),
)


def geometry(comparison: Comparison) -> list[Figure]:
    """What each site does to the stream at the last evaluation, and how that came about."""
    profiles = [_profile(comparison, measure) for measure in PROFILES]
    courses = [_course(comparison, measure) for measure in COURSES]
    return [figure for figure in [*profiles[:2], *courses, *profiles[2:], *uniform(comparison)] if figure]


def _profile(comparison: Comparison, measure: Measure) -> Figure | None:
    found = [series.profile(comparison.drawn(scheme), measure.key) for scheme in comparison.schemes]
    sites = series.all_sites(found)
    if not sites:
        return None
    values = [value for profile in found for triple in profile.values() for value in triple]
    predicted = [series.profile(comparison.drawn(scheme), measure.law) for scheme in comparison.schemes]
    values += [mean for profile in predicted for mean, _, _ in profile.values()]
    log = series.wide(values)
    x = Axis(-0.5, len(sites) - 0.5, title="site, by layer: attention hollow, MLP filled")
    chart = Chart(x, Axis.around(values, log=log, margin=0.08), measure.title)
    first = {site.layer: position for position, site in reversed(list(enumerate(sites)))}
    layers = sorted(first)
    chart.x_labels = [(first[layer], f"{layer:g}") for layer in layers[:: math.ceil(len(layers) / 12)]]
    markers = [look.marker for look in looks(comparison.schemes).values()]
    for index, profile in enumerate(found):
        places = [position for position, site in enumerate(sites) if site in profile]
        triples = [profile[sites[position]] for position in places]
        if not places:
            continue
        chart.band(index, places, [t[1] for t in triples], [t[2] for t in triples])
        line = predicted[index] or profile
        drawn = [position for position, site in enumerate(sites) if site in line]
        chart.line(index, drawn, [line[sites[position]][0] for position in drawn])
        for position, (mean, low, high) in zip(places, triples, strict=True):
            site = sites[position]
            seeds = "" if low == high else f" (seeds {figures(low)} to {figures(high)})"
            label = f"{comparison.schemes[index]} · layer {site.layer:g} {site.kind}: {figures(mean)}{seeds}"
            chart.mark(index, position, mean, label, markers[index], "mark" if site.kind == "mlp" else "mark hollow")
    note = measure.note
    if any(predicted):
        note += " Marks: measured. Lines: what the scheme's definition predicts to first order."
    return Figure(measure.title, note + (" Logarithmic scale." if log else ""), chart)


def _course(comparison: Comparison, measure: Measure) -> Figure | None:
    drawn = [series.course(comparison.drawn(scheme), measure.key) for scheme in comparison.schemes]
    curves = [curve for curve in drawn if curve]
    if not curves or max(len(curve.x) for curve in curves) < 2:
        return None
    values = [value for curve in curves for value in (*curve.low, *curve.high)]
    log = series.wide(values)
    x = Axis(0.0, max(float(curve.x[-1]) for curve in curves) * 1.02, form=si, title="tokens seen")
    chart = Chart(x, Axis.around(values, log=log), measure.title)
    for index, curve in enumerate(drawn):
        if curve:
            _curve(chart, comparison, index, curve, si)
    return Figure(measure.title, measure.note + (" Logarithmic scale." if log else ""), chart)


def uniform(comparison: Comparison) -> list[Figure]:
    """|cos| of what norms are given to the uniform vector in the course of training, beside its null."""
    drawn, nulls = [], []
    for scheme in comparison.schemes:
        runs = comparison.drawn(scheme)
        drawn.append(series.over_norms(series.norm_courses(runs, "cos_ones_before")))
        nulls.append(series.over_norms(series.norm_courses(runs, "cos_null_before")))
    curves = [curve for curve in drawn if curve]
    if not curves or max(len(curve.x) for curve in curves) < 2:
        return []
    null = [float(curve.mean.mean()) for curve in nulls if curve]
    values = [*null, *(value for curve in curves for value in (*curve.low, *curve.high))]
    log = series.wide(values)
    x = Axis(0.0, max(float(curve.x[-1]) for curve in curves) * 1.02, form=si, title="tokens seen")
    title = "Towards the uniform vector"
    chart = Chart(x, Axis.around(values, log=log), title)
    for level in (min(null), max(null)):
        chart.level(level)
    for index, curve in enumerate(drawn):
        if curve:
            _curve(chart, comparison, index, curve, si, "norms")
    note = (
        "Mean |cos| between what norms are given and the vector of ones; the band is the range of the norms. "
        f"Level lines: the same to random directions, {figures(min(null))} to {figures(max(null))} by scheme. "
        "Below them a stream avoids the uniform vector, above them it has a component along it."
    )
    return [Figure(title, note + (" Logarithmic scale." if log else ""), chart)]


def gradients(comparison: Comparison) -> list[Figure]:
    """Gradient norm in the course of training, with the spikes of loss and gradient."""
    raw = [series.curve(comparison.drawn(scheme), "grad_norm") for scheme in comparison.schemes]
    curves = [curve.thinned(120) if curve else None for curve in raw]
    marked = [
        [(*event, key) for key in ("grad_norm", "loss") for event in series.events(comparison.of(scheme), key)]
        for scheme in comparison.schemes
    ]
    means = [float(value) for curve in curves if curve for value in curve.mean]
    if not means:
        return []
    x = Axis(0.0, max(float(c.x[-1]) for c in curves if c) * 1.02, form=si, title="tokens seen")
    peaks = [value for events in marked for *_, value, key in events if key == "grad_norm" and math.isfinite(value)]
    y = Axis.around([*means, *peaks], log=series.wide([*means, *peaks], 10.0))
    chart = Chart(x, y, "Gradient norm and spikes")
    for index, curve in enumerate(curves):
        if curve:
            chart.line(index, list(curve.x), list(curve.mean), "line medium")
        for run, tokens, value, key in marked[index]:
            what = "gradient norm" if key == "grad_norm" else "loss"
            height = value if key == "grad_norm" and math.isfinite(value) else y.high
            label = f"{run.label} · {si(tokens)} tokens: {what} spikes to {figures(value)}"
            chart.mark(index, tokens, height, label, "fail", "mark fail")
    note = (
        "Mean over seeds, before clipping. A cross is a spike among the logged steps: "
        "a gradient norm at its height, a loss at the top. The table counts every step."
    )
    return [Figure("Gradient norm and spikes", note, chart)]
