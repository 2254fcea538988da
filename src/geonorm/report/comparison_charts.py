"""The charts of a comparison: each function returns charts, none where there is nothing to show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ..lab.runs.records import ComparisonRow
from ..lab.statistics.comparison import usable
from ..lab.statistics.spikes import spikes
from . import curves
from .charts import RATE, TOKENS, Axis, Chart, Point, Strip, strip_chart
from .runs import ComparedRuns
from .style import figures, rate, si, signed
from .tables import count, paired_difference, spread, unfinished

LOG = " Logarithmic scale."
EARLY = 0.15
"""Share of training that may leave the frame."""


def final_loss(comparison: ComparedRuns) -> list[Chart]:
    """Final loss of every run at each scheme's best learning rate."""
    strips = []
    for row in comparison.rows:
        runs = comparison.counted(row.scheme)
        dots = [(loss, f"{run.label}: {loss:.4f}") for run in runs if (loss := run.summary.val_loss) is not None]
        text = f"{spread(row)}, n = {row.n}" if runs else unfinished(row)
        ends = (row.val_loss_mean, row.val_loss_low, row.val_loss_high)
        strips.append(Strip(row.scheme, text, dots, *ends))
    if not any(strip.dots for strip in strips):
        return []
    note = "Each mark is a run at its scheme's best learning rate; the bar is the 95 % interval of the mean over seeds."
    unit = "final validation loss (nats per token)"
    return [strip_chart("Noise between seeds", unit, strips, comparison.looks, note)]


def differences(comparison: ComparedRuns) -> list[Chart]:
    """Paired differences to the baseline with their intervals."""
    base = {run.summary.seed: run.summary.val_loss or 0.0 for run in comparison.counted(comparison.baseline)}
    rows = [row for row in comparison.rows if row.difference is not None and row.scheme != comparison.baseline]
    strips = []
    for row in rows:
        pairs = [run for run in comparison.counted(row.scheme) if run.summary.seed in base]
        gaps = [((run.summary.val_loss or 0.0) - base[run.summary.seed], run.label) for run in pairs]
        dots = [(gap, f"{label}: {signed(gap, 4)} nats") for gap, label in gaps]
        strips.append(difference_strip(row, dots))
    if not strips:
        return []
    note = (
        "Runs of equal seed share data order, so each mark is one seed's difference. "
        "The bar is the 95 % interval of their mean: where it touches 0 the difference is not resolved."
    )
    if len(rows) > 1:
        note += f" With {len(rows)} comparisons, expect about {0.05 * len(rows):.2g} to miss 0 by chance alone; "
        note += "the table has p adjusted for that."
    unit = f"difference to {comparison.baseline}, nats per token (left of 0 is better)"
    return [strip_chart("Paired differences", unit, strips, comparison.looks, note, rule=0.0)]


def by_setting(comparison: ComparedRuns, settings: Mapping[str, Sequence[ComparisonRow]]) -> list[Chart]:
    """The difference of each scheme in each setting."""
    known = {f"{row.scheme}: {name}": row for name, rows in settings.items() for row in rows if row.difference_std}
    strips = [difference_strip(row, [])._replace(series=name) for name, row in sorted(known.items())]
    looks = {name: comparison.looks[row.scheme] for name, row in known.items()}
    unit = f"difference to {comparison.baseline}, nats per token (left of 0 is better)"
    return [strip_chart("Differences by setting", unit, strips, looks, rule=0.0)]


def difference_strip(row: ComparisonRow, dots: Sequence[tuple[float, str]]) -> Strip:
    """The paired difference of a scheme, with a dot a seed."""
    ends = (row.difference, row.difference_low, row.difference_high)
    return Strip(row.scheme, paired_difference(row), dots, *ends)


def losses(comparison: ComparedRuns) -> list[Chart]:
    """Validation loss over tokens, with markers, and training loss, thin."""
    train, valid = (metric_curves(comparison, key) for key in ("loss", "val_loss"))
    known = [*train.items(), *valid.items()]
    framed = [curve for scheme, curve in known if comparison.counted(scheme)] or [curve for _, curve in known]
    note = (
        "Validation loss, on what every evaluation reads, with markers and the range of seeds; training loss thin. "
        "The start leaves the frame, as may what diverged."
    )
    charts = over_tokens(comparison, "Loss during training", "loss (nats per token)", valid, note, framed, early=EARLY)
    for scheme, curve in train.items() if charts else ():
        thin = curve.thinned(120)
        charts[0].line(scheme, zip(thin.x, thin.mean, strict=True), "thin")
    return charts


def metric_curves(comparison: ComparedRuns, key: str) -> dict[str, curves.Curve]:
    """By scheme, a column of the metrics over tokens, where it has one."""
    drawn = {scheme: curves.metric_curve(comparison.drawn(scheme), key) for scheme in comparison.names}
    return {scheme: curve for scheme, curve in drawn.items() if curve}


def gaps(comparison: ComparedRuns) -> list[Chart]:
    """The paired difference to the baseline during training."""
    base = comparison.counted(comparison.baseline)
    others = [scheme for scheme in comparison.names if scheme != comparison.baseline]
    paired = {scheme: curves.paired_gap(comparison.counted(scheme), base) for scheme in others}
    known = {scheme: curve for scheme, curve in paired.items() if curve and len(curve.x) > 1}
    note = (
        f"Validation loss − that of {comparison.baseline}, paired by seed; the band is the 95 % interval at each point."
    )
    charts = over_tokens(
        comparison, "Difference during training", "difference (nats per token)", known, note, [*known.values()],
        band="95 %", rules=[0.0], early=EARLY,
    )  # fmt: skip
    ends = [end for curve in known.values() for end in (*curve.low, *curve.high)]
    for chart in charts:
        chart.note += "" if chart.y and all(map(chart.y.holds, ends)) else " The start leaves the frame."
    return charts


def gradient_course(comparison: ComparedRuns) -> list[Chart]:
    """Gradient norm during training, with the spikes of the gradient."""
    known = {scheme: curve.thinned(120) for scheme, curve in metric_curves(comparison, "grad_norm").items()}
    note = (
        "Mean over seeds, before clipping. A cross is a spike of one of these runs among the logged steps; the table "
        "counts those of every step, and those of the loss."
    )
    title, framed = "Gradient norm during training", [*known.values()]
    charts = over_tokens(comparison, title, "gradient norm", known, note, framed, band="")
    for chart in charts:
        for run in [run for scheme in known for run in comparison.drawn(scheme)]:
            for index in spikes(row.grad_norm for row in run.metrics):
                row = run.metrics[index]
                label = f"{run.label} · {si(row.tokens)} tokens: the gradient norm spikes to {figures(row.grad_norm)}"
                top = chart.y.high if chart.y else math.inf
                chart.mark(run.scheme, row.tokens, row.grad_norm if row.grad_norm <= top else top, label, "fail")
    return charts


def over_tokens(
    comparison: ComparedRuns, title: str, unit: str, known: Mapping[str, curves.Curve], note: str,
    framed: Sequence[curves.Curve], band: str = "seeds", rules: Sequence[float] = (), early: float = 0.0,
) -> list[Chart]:  # fmt: skip
    """A curve per scheme over tokens, and level lines; nothing without a curve. The axis holds the curves of `framed`,
    but for the `early` share of training. band: its name in the labels of points; without one a curve is a line."""
    if not framed:
        return []
    late = [end for c in framed for column in (c.low, c.high) for end in column[c.x >= early * c.x[-1]].tolist()]
    y = Axis.around([*rules, *late], log=curves.spans_decades([*rules, *late]), title=unit)
    x = Axis(0.0, max(float(curve.x[-1]) for curve in framed) * 1.02, form=TOKENS, title="tokens")
    chart = Chart(title, x, y, comparison.looks, note + (LOG if y.log else ""))
    for level in rules:
        chart.rule(y=level)
    for scheme, curve in known.items():
        points = []
        for at, mean, low, high in zip(*(column.tolist() for column in curve), strict=True):
            within = "" if low == high else f" ({band} {figures(low)} to {figures(high)})"
            label = f"{scheme} · {si(at)} tokens: {figures(mean)}{within}"
            points.append(Point(at, mean, low, high, label))
        if band:
            chart.curve(scheme, points)
        else:
            chart.line(scheme, [point[:2] for point in points])
    return [chart]


def learning_rates(comparison: ComparedRuns) -> list[Chart]:
    """Loss against learning rate, where several were tried: a chart of the schemes whose rate tuning runs decided,
    which may be shorter, and one of those whose rate final runs decided."""
    tuned = {scheme for scheme, choice in comparison.choices.items()
             if any(run.phase == "tune" for run in choice.tried)}  # fmt: skip
    groups = {"validation loss of the tuning runs": [row for row in comparison.rows if row.scheme in tuned],
              "final validation loss": [row for row in comparison.rows if row.scheme not in tuned]}  # fmt: skip
    return [chart for what, rows in groups.items() for chart in rate_chart(comparison, rows, what)]


def rate_chart(comparison: ComparedRuns, rows: Sequence[ComparisonRow], what: str) -> list[Chart]:
    """These schemes; much higher losses leave the frame."""
    tried = sorted({lr for row in rows for lr in row.lrs if lr})
    known = [loss for row in rows for lr, loss in row.lrs.items() if lr and loss is not None]
    if len(tried) < 2 or not known:
        return []
    labels = tried if len(tried) <= 7 else tried[:: math.ceil(len(tried) / 7)]
    x = Axis.around(tried, log=True, margin=0.08, form=RATE, title="learning rate", labels=labels)
    low = min(known)
    high = min(max(known), low + 4 * max(median(known) - low, 0.02))
    y = Axis.around([low, high], margin=0.1, title=f"{what} (nats per token)")
    note = "Ringed: the rate the scheme is judged at. A cross at the top: some run there did not finish."
    if max(known) > y.high:
        note += " Higher losses leave the frame; the table has them."
    chart = Chart("Learning rates", x, y, comparison.looks, note)
    for row in rows:
        scheme = row.scheme
        chart.line(scheme, [(lr, math.nan if loss is None else loss) for lr, loss in row.lrs.items() if lr])
        for lr in filter(None, row.lrs):
            runs = [run for run in comparison.runs_of(scheme) if run.summary.lr == lr]
            lost = sum(not usable(run.summary) for run in runs)
            counted = sum(usable(run) and run.lr == lr for run in comparison.choices[scheme].tried)
            label, loss = f"{scheme} · lr {rate(lr)}:", row.lrs[lr]
            if lost:
                chart.mark(scheme, lr, y.high, f"{label} {lost} of {count(len(runs), 'run')} did not finish", "fail")
            if loss is not None:
                kind = "best" if lr == row.lr else "mark"
                chart.mark(scheme, lr, loss, f"{label} {loss:.4f}, {count(counted, 'run')}", kind)
    return [chart]


class Measure(NamedTuple):
    """A column of the trace with the words for it."""

    title: str
    unit: str
    note: str
    law: str = ""
    """The column that the definition predicts for this one, drawn as the line under the marks."""


PROFILES = {
    "radius": Measure("Radius of the stream", "|x|", "Mean norm |x| of the tokens before each sub-layer."),
    "angle": Measure("Angle of each write", "radians", "Mean angle by which a sub-layer turns a token.", "law_angle"),
    "clamped": Measure("Share of clamped updates", "share", "Updates whose angle reached the scheme's clamp."),
    "cos_pair": Measure("Likeness of tokens", "cosine", "Mean between tokens of one sequence; 1 is collapse."),
    "grad_norm": Measure("Gradient per sub-layer", "gradient norm", "Norm of the gradient of its weights."),
}


def geometry(comparison: ComparedRuns) -> list[Chart]:
    """Columns of the trace over depth at the last evaluation. Marks: measured; lines: predicted, where there is a
    law."""
    return [chart for key in PROFILES if (chart := _profile(comparison, key, PROFILES[key])) is not None]


def _profile(comparison: ComparedRuns, key: str, measure: Measure) -> Chart | None:
    measured, predicted = (
        {scheme: curves.profile(comparison.drawn(scheme), column) for scheme in comparison.names}
        for column in (key, measure.law)
    )
    order = list(dict.fromkeys(place for one in measured.values() for place in one))
    if not order:
        return None
    values = [value for one in measured.values() for place in one for value in one[place]]
    values += [one[place][0] for one in predicted.values() for place in order if place in one]
    at = dict(zip(order, curves.spread_evenly([layer for layer, _ in order]), strict=True))
    layers = sorted({math.floor(layer) for layer, _ in order})
    x = Axis(layers[0] - 0.25, layers[-1] + 1, title="layer (attention hollow, MLP filled)",
             labels=layers[:: math.ceil(len(layers) / 12)])  # fmt: skip
    y = Axis.around(values, log=curves.spans_decades(values), margin=0.08, title=measure.unit)
    note = measure.note + (LOG if y.log else "")
    if any(predicted.values()):
        note += " Marks: measured. Lines: what the scheme's definition predicts to first order."
    chart = Chart(measure.title, x, y, comparison.looks, note)
    for scheme, one in measured.items():
        here = [place for place in order if place in one]
        line = predicted[scheme] or one
        chart.band(scheme, [(at[place], *one[place][1:]) for place in here])
        chart.line(scheme, [(at[place], line[place][0]) for place in order if place in line])
        for place in here:
            (layer, kind), (mean, low, high) = place, one[place]
            seeds = "" if low == high else f" (seeds {figures(low)} to {figures(high)})"
            label = f"{scheme} · layer {layer:g} {kind}: {figures(mean)}{seeds}"
            chart.mark(scheme, at[place], mean, label, "mark" if kind == "mlp" else "hollow")
    return chart


FIGURES = {
    "final_loss": final_loss,
    "loss_curves": losses,
    "geometry": geometry,
    "learning_rates": learning_rates,
}
"""Figures for a README or a paper, by the names of their files."""
