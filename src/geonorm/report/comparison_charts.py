"""The charts of a comparison: each takes it and gives charts, or none if there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ..lab.statistics.comparison import Row, usable
from . import series
from .runs import SavedComparison
from .style import Look, figures, ramp, rate, si, signed
from .tables import count, paired_difference, spread, summary_line, unfinished
from .vega import NUMBER, RATE, TOKENS, Axis, Chart, Spec, figure_specs

SEEN = "tokens seen"
LOG = " Logarithmic scale."
EARLY = 0.15
"""Share of training that may leave the frame."""


def final_loss(comparison: SavedComparison) -> list[Chart]:
    """Final loss of every run at each scheme's best learning rate."""
    rows = comparison.rows
    losses = {row["scheme"]: [run.summary["val_loss"] for run in comparison.counted(row["scheme"])] for row in rows}
    ends = [row[key] for row in rows for key in ("val_loss_low", "val_loss_high") if row[key] is not None]
    values = [*ends, *(loss for found in losses.values() for loss in found)]
    if not values:
        return []
    note = (
        "Each mark is one run at its scheme's best learning rate; the bar is the 95 % interval of the mean over seeds."
    )
    axis = Axis.around(values, title="final validation loss (nats per token)")
    chart = Chart("Noise between seeds", axis, None, comparison.looks, note)
    for row in rows:
        runs = comparison.counted(row["scheme"])
        dots = [(run.summary["val_loss"], f"{run.label}: {run.summary['val_loss']:.4f}") for run in runs]
        value = f"{spread(row)}, n = {row['n']}" if runs else unfinished(row)
        chart.strip(row["scheme"], value, dots, (row["val_loss_mean"], row["val_loss_low"], row["val_loss_high"]))
    return [chart]


def differences(comparison: SavedComparison) -> list[Chart]:
    """Paired differences to the baseline with their intervals."""
    base = {run.summary.get("seed"): run.summary["val_loss"] for run in comparison.counted(comparison.baseline)}
    rows = [row for row in comparison.rows if row["difference"] is not None and row["scheme"] != comparison.baseline]
    if not rows:
        return []
    dots = {}
    for row in rows:
        pairs = [run for run in comparison.counted(row["scheme"]) if run.summary.get("seed") in base]
        gaps = [(run.summary["val_loss"] - base[run.summary.get("seed")], run.label) for run in pairs]
        dots[row["scheme"]] = [(gap, f"{label}: {signed(gap, 4)} nats") for gap, label in gaps]
    limits = [row[key] for row in rows for key in ("difference_low", "difference_high") if row[key] is not None]
    values = [0.0, *limits, *(gap for found in dots.values() for gap, _ in found)]
    note = (
        "Runs of equal seed share data order, so each mark is one seed's difference. "
        "The bar is the 95 % interval of their mean: where it touches 0 the difference is not resolved."
    )
    if len(rows) > 1:
        note += f" With {len(rows)} comparisons, expect about {0.05 * len(rows):.2g} to miss 0 by chance alone; "
        note += "the table has p adjusted for that."
    axis = Axis.around(values, title=f"difference to {comparison.baseline}, nats per token (left of 0 is better)")
    chart = Chart("Paired differences", axis, None, comparison.looks, note)
    chart.rule(x=0.0)
    for row in rows:
        ends = (row["difference"], row["difference_low"], row["difference_high"])
        chart.strip(row["scheme"], paired_difference(row), dots[row["scheme"]], ends)
    return [chart]


def losses(comparison: SavedComparison) -> list[Chart]:
    """Loss against tokens and against training time."""
    found = []
    axes = (("tokens", SEEN, SEEN, TOKENS), ("seconds", "training time", "seconds in training steps", NUMBER))
    for key, title, unit, form in axes:
        drawn: dict[str, tuple[series.Curve | None, series.Curve | None]] = {}
        for scheme in comparison.names:
            runs = comparison.drawn(scheme)
            train = series.curve(runs, "loss", key)
            drawn[scheme] = (train.thinned(120) if train else None), series.curve(runs, "val_loss", key)
        finished = [pair for scheme, pair in drawn.items() if comparison.counted(scheme)]
        curves = [curve for pair in finished or drawn.values() for curve in pair if curve]
        if not curves:
            continue
        late = [float(loss) for curve in curves for loss in curve.mean[curve.x >= EARLY * curve.x[-1]]]
        end = max(float(curve.x[-1]) for pair in drawn.values() for curve in pair if curve)
        x = Axis(0.0, end * 1.02, title=unit, form=form)
        y = Axis(*_window(min(late), max(late), 0.04, 0.05), title="loss (nats per token)")
        note = (
            "Validation loss, on what every evaluation sees, with markers and the range of seeds, training loss thin. "
            "The start leaves the frame, as may what diverged."
        )
        if key == "seconds":
            note += " Runs that shared the machine slowed one another: no measure of cost."
        chart = Chart(f"Loss against {title}", x, y, comparison.looks, note)
        for scheme, (train, valid) in drawn.items():
            if train:
                chart.line(scheme, zip(train.x, train.mean, strict=True), "thin")
            if valid:
                _curve(chart, scheme, valid, "tokens" if key == "tokens" else "s")
        found.append(chart)
    return found


def _window(low: float, high: float, share: float, least: float) -> tuple[float, float]:
    """The range with a margin at both ends: a share of it, or `least` where it is empty."""
    margin = share * (high - low) or least
    return low - margin, high + margin


def gaps(comparison: SavedComparison) -> list[Chart]:
    """The paired difference to the baseline in the course of training."""
    base = comparison.counted(comparison.baseline)
    others = [scheme for scheme in comparison.names if scheme != comparison.baseline]
    drawn = {scheme: series.paired_gap(comparison.counted(scheme), base) for scheme in others}
    note = (
        f"Validation loss less that of {comparison.baseline}, paired by seed; "
        "the band is the 95 % interval at each point."
    )
    title, unit = "Difference in the course of training", "difference (nats per token)"
    return _courses(comparison, title, unit, drawn, note, "95 %", rules=[0.0], early=EARLY)


def _courses(
    comparison: SavedComparison, title: str, unit: str, drawn: Mapping[str, series.Curve | None], note: str,
    band: str = "seeds", rules: Sequence[float] = (), early: float = 0.0,
) -> list[Chart]:  # fmt: skip
    """A curve per scheme over tokens, and level lines; nothing where no curve has two points. The axis need not hold
    the `early` share of training: then the note says so."""
    curves = {scheme: curve for scheme, curve in drawn.items() if curve}
    if not any(len(curve.x) > 1 for curve in curves.values()):
        return []
    values = [*rules]
    for curve in curves.values():
        late = curve.x >= early * curve.x[-1]
        values += [*curve.low[late], *curve.high[late]]
    y = Axis.around(values, log=series.spans_decades(values), title=unit)
    if early and not all(map(y.holds, (end for curve in curves.values() for end in (*curve.low, *curve.high)))):
        note += " The start leaves the frame."
    chart = _over_tokens(title, curves, y, note, comparison.looks)
    for level in rules:
        chart.rule(y=level)
    for scheme, curve in curves.items():
        _curve(chart, scheme, curve, "tokens", band)
    return [chart]


def _over_tokens(
    title: str, curves: Mapping[str, series.Curve], y: Axis, note: str, styles: Mapping[str, Look]
) -> Chart:
    """An empty chart over the tokens that these curves span, from 0 on."""
    x = Axis(0.0, max(float(curve.x[-1]) for curve in curves.values()) * 1.02, form=TOKENS, title=SEEN)
    return Chart(title, x, y, styles, note + (LOG if y.log else ""))


def _curve(chart: Chart, scheme: str, curve: series.Curve, unit: str, band: str = "seeds") -> None:
    """A mean over seeds with markers and a band: the range of the seeds, or an interval."""
    chart.band(scheme, zip(curve.x, curve.low, curve.high, strict=True))
    chart.line(scheme, zip(curve.x, curve.mean, strict=True))
    for x, mean, low, high in zip(*curve, strict=True):
        within = "" if low == high else f" ({band} {figures(low)} to {figures(high)})"
        chart.mark(scheme, x, mean, f"{scheme} · {si(x)} {unit}: {figures(mean)}{within}")


def learning_rates(comparison: SavedComparison) -> list[Chart]:
    """Loss against learning rate, where several were tried: a chart of the schemes that tuning runs decided on, which
    may be shorter, and one of those that final runs did."""
    tuned = {scheme for scheme, choice in comparison.choices.items()
             if any(run.get("phase") == "tune" for run in choice.tried)}  # fmt: skip
    groups = {"validation loss of the tuning runs": [row for row in comparison.rows if row["scheme"] in tuned],
              "final validation loss": [row for row in comparison.rows if row["scheme"] not in tuned]}  # fmt: skip
    return [chart for what, rows in groups.items() for chart in _rates(comparison, rows, what)]


def _rates(comparison: SavedComparison, rows: Sequence[Row], what: str) -> list[Chart]:
    """These schemes; hopeless rates leave the frame."""
    tried = sorted({lr for row in rows for lr in row["lrs"] if lr})
    found = [loss for row in rows for lr, loss in row["lrs"].items() if lr and loss is not None]
    if len(tried) < 2 or not found:
        return []
    labels = tried if len(tried) <= 7 else tried[:: math.ceil(len(tried) / 7)]
    x = Axis.around(tried, log=True, margin=0.08, form=RATE, title="learning rate", labels=labels)
    low = min(found)
    high = min(max(found), low + 4 * max(median(found) - low, 0.02))
    y = Axis(*_window(low, high, 0.1, 0.01), title=f"{what} (nats per token)")
    note = "Ringed: the rate the scheme is judged at. A cross at the top: some run there did not finish."
    if max(found) > y.high:
        judged = {row["scheme"]: row["lrs"].get(row["lr"]) or low for row in rows}
        gone = [f"{scheme} ({loss:.4f})" for scheme, loss in judged.items() if loss > y.high]
        note += " Higher losses leave the frame" + (f", with the rings of {', '.join(gone)}." if gone else ".")
    if others := [row["scheme"] for row in comparison.rows if row not in rows]:
        note += f" Schemes that other runs decided on are not here: {', '.join(others)}."
    chart = Chart("Learning rates", x, y, comparison.looks, note)
    for row in rows:
        scheme, losses = row["scheme"], {lr: loss for lr, loss in row["lrs"].items() if lr}
        chart.line(scheme, [(lr, math.nan if loss is None else loss) for lr, loss in losses.items()])
        for lr, loss in losses.items():
            runs = [run for run in comparison.of(scheme) if run.summary.get("lr") == lr]
            lost = sum(not usable(run.summary) for run in runs)
            counted = sum(usable(run) and run.get("lr") == lr for run in comparison.choices[scheme].tried)
            label = f"{scheme} · lr {rate(lr)}:"
            if lost:
                label_lost = f"{label} {lost} of {count(len(runs), 'run')} did not finish"
                chart.mark(scheme, lr, y.high, label_lost, "fail")
            if loss is not None:
                kind = "best" if lr == row["lr"] else "mark"
                chart.mark(scheme, lr, loss, f"{label} {loss:.4f}, {count(counted, 'run')}", kind)
    return [chart]


class Measure(NamedTuple):
    """A column of the trace with the words for it."""

    key: str
    title: str
    unit: str
    note: str
    law: str = ""
    """The column that the definition predicts for this one: drawn as the line under the marks."""


PROFILES = {
    measure.key: measure
    for measure in (
        Measure("radius", "Radius of the stream", "|x|", "Mean norm |x| of the tokens that enter each site."),
        Measure("angle", "Angle of each write", "radians", "Mean angle by which a site turns a token.", "law_angle"),
        Measure("radius_after", "Radius after each site", "|x'|", "Mean norm |x'| of tokens that leave.", "law_radius"),
        Measure("1/speed", "Turning per update", "1/s", "From the definition, theta' = P(u) / s, with this x and u."),
        Measure("clamped", "Clamped tokens", "share", "Share of tokens whose angle reached the scheme's limit."),
        Measure("cos_pair", "Likeness of tokens", "cosine", "Mean between tokens of one sequence; 1 is collapse."),
        Measure("grad_norm", "Gradient per site", "gradient norm", "Norm of the gradient at each site."),
    )
}
COURSES = (
    ("radius", "Radius in the course of training", "|x|", "Mean over all sites."),
    ("angle", "Angle in the course of training", "radians", "Mean over all sites."),
)


def geometry(comparison: SavedComparison) -> list[Chart]:
    """What each site does to the stream at the last evaluation, and how that came about."""
    courses = []
    for key, title, unit, note in COURSES:
        drawn = {scheme: series.course(comparison.drawn(scheme), key) for scheme in comparison.names}
        courses += _courses(comparison, title, unit, drawn, note)
    first, others = site_profiles(comparison, list(PROFILES)[:2]), site_profiles(comparison, list(PROFILES)[2:])
    return [*first, *courses, *others, *towards_uniform(comparison)]


def site_profiles(comparison: SavedComparison, keys: Sequence[str]) -> list[Chart]:
    """A measurement at each site at the last evaluation; marks: measured; lines: predicted, where there is a law."""
    return [chart for key in keys if (chart := _profile(comparison, PROFILES[key])) is not None]


def _profile(comparison: SavedComparison, measure: Measure) -> Chart | None:
    measured = {scheme: series.profile(comparison.drawn(scheme), measure.key) for scheme in comparison.names}
    sites = series.all_sites(measured.values())
    if not sites:
        return None
    predicted = {scheme: series.profile(comparison.drawn(scheme), measure.law) for scheme in comparison.names}
    values = [value for found in measured.values() for site in sites if site in found for value in found[site]]
    values += [found[site][0] for found in predicted.values() for site in sites if site in found]
    places = dict(zip(sites, series.spread_evenly([site.layer for site in sites]), strict=True))
    layers = sorted({math.floor(site.layer) for site in sites})
    x = Axis(layers[0] - 0.25, layers[-1] + 1, title="layer (attention hollow, MLP filled)",
             labels=layers[:: math.ceil(len(layers) / 12)])  # fmt: skip
    y = Axis.around(values, log=series.spans_decades(values), margin=0.08, title=measure.unit)
    note = measure.note + (LOG if y.log else "")
    if any(predicted.values()):
        note += " Marks: measured. Lines: what the scheme's definition predicts to first order."
    chart = Chart(measure.title, x, y, comparison.looks, note)
    for scheme, found in measured.items():
        here = {site: found[site] for site in sites if site in found}
        chart.band(scheme, [(places[site], low, high) for site, (_, low, high) in here.items()])
        line = predicted[scheme] or found
        chart.line(scheme, [(places[site], line[site][0]) for site in sites if site in line])
        for site, (mean, low, high) in here.items():
            seeds = "" if low == high else f" (seeds {figures(low)} to {figures(high)})"
            label = f"{scheme} · layer {site.layer:g} {site.kind}: {figures(mean)}{seeds}"
            chart.mark(scheme, places[site], mean, label, "mark" if site.kind == "mlp" else "hollow")
    return chart


MOST_SCHEMES = 6
"""So many schemes have a chart of their own with each norm; of more, the mean over norms says enough."""


def towards_uniform(comparison: SavedComparison) -> list[Chart]:
    """|cos| of what norms are given to the uniform vector in the course of training, beside its null: the mean over
    the norms of each scheme, and every norm of each of the first schemes."""
    courses = {s: series.norm_courses(comparison.drawn(s), "cos_ones_before") for s in comparison.names}
    means = {scheme: series.over_norms(found) for scheme, found in courses.items()}
    shown = [scheme for scheme, curve in means.items() if curve]
    nulls = [series.over_norms(series.norm_courses(comparison.drawn(s), "cos_null_before")) for s in shown]
    null = [float(curve.mean.mean()) for curve in nulls if curve]
    note = "Mean |cos| between what norms are given and the vector of ones; the band is the range of the norms. "
    if null:
        note += f"Level lines: the same to random directions, {figures(min(null))} to {figures(max(null))} by scheme. "
    note += "Below them a stream avoids the uniform vector, above them it has a component along it."
    levels = sorted({min(null), max(null)}) if null else []
    found = _courses(comparison, "Towards the uniform vector", "mean |cos| to ones", means, note, "norms", rules=levels)
    if found and (y := found[0].y):
        each = {scheme: {str(key): c for key, c in courses[scheme].items()} for scheme in shown[:MOST_SCHEMES]}
        found += [_norms(comparison, scheme, curves, y) for scheme, curves in each.items()]
    return found


def _norms(comparison: SavedComparison, scheme: str, curves: Mapping[str, series.Curve], y: Axis) -> Chart:
    """The course of each norm of one scheme, and the band in which random directions are."""
    runs = comparison.drawn(scheme)
    low, high = (series.over_norms(series.norm_courses(runs, f"cos_null_{end}_before")) for end in ("low", "high"))
    random = {"random": Look("#a6a6a6", "#a6a6a6", "", "circle")}
    note = "Before each norm" + ("; grey: 5 to 95 % of 64 random directions." if low and high else ".")
    chart = _over_tokens(f"Each norm of {scheme}", curves, y, note, random | ramp(list(curves)))
    chart.own_legend = True
    if low and high:
        chart.band("random", zip(low.x, low.mean, high.mean, strict=True))
    for name, curve in curves.items():
        chart.line(name, zip(curve.x, curve.mean, strict=True))
        for x, mean in zip(curve.x, curve.mean, strict=True):
            chart.mark(name, x, mean, f"{name} · {si(x)} tokens: {figures(mean)}", "dot")
    return chart


def gradient_course(comparison: SavedComparison) -> list[Chart]:
    """Gradient norm in the course of training, with the spikes of loss and gradient."""
    raw = {scheme: series.curve(comparison.drawn(scheme), "grad_norm") for scheme in comparison.names}
    curves = {scheme: curve.thinned(120) for scheme, curve in raw.items() if curve}
    means = [float(value) for curve in curves.values() for value in curve.mean]
    if not means:
        return []
    events = [
        (scheme, key, *event)
        for scheme in comparison.names
        for key in ("grad_norm", "loss")
        for event in series.events(comparison.drawn(scheme), key)
    ]
    peaks = [value for _, key, *_, value in events if key == "grad_norm" and math.isfinite(value)]
    y = Axis.around([*means, *peaks], log=series.spans_decades([*means, *peaks], 10.0), title="gradient norm")
    note = (
        "Mean over seeds, before clipping. A cross is a spike of these runs among the logged steps: "
        "a gradient norm at its height, a loss at the top. The table counts every step."
    )
    chart = _over_tokens("Gradient norm and spikes", curves, y, note, comparison.looks)
    for scheme, curve in curves.items():
        chart.line(scheme, zip(curve.x, curve.mean, strict=True))
    for scheme, key, run, tokens, value in events:
        what = "gradient norm" if key == "grad_norm" else "loss"
        height = value if key == "grad_norm" and math.isfinite(value) else y.high
        label = f"{run.label} · {si(tokens)} tokens: {what} spikes to {figures(value)}"
        chart.mark(scheme, tokens, height, label, "fail")
    return [chart]


def law(comparison: SavedComparison) -> list[Chart]:
    """Measured over what the definition predicts to first order; nothing where no run recorded that."""
    keys = [measure.law for measure in PROFILES.values() if measure.law]
    if not any(series.profile(comparison.drawn(s), key) for s in comparison.names for key in (*keys, "1/speed")):
        return []
    return site_profiles(comparison, ("radius_after", "angle", "1/speed", "cos_pair"))


FIGURES = {
    "final_loss": final_loss,
    "loss_curves": losses,
    "geometry": lambda comparison: site_profiles(comparison, ("radius", "angle")),
    "law": law,
    "learning_rates": learning_rates,
    "uniform": towards_uniform,
}
"""Figures for a README or a paper, by the names of their files."""


def figures_of(comparison: SavedComparison) -> dict[str, Spec]:
    """Each figure that has something to show, with the caption of everything."""
    return figure_specs({name: draw(comparison) for name, draw in FIGURES.items()}, summary_line(comparison))
