"""The charts of a comparison: each function returns charts, none where there is nothing to show."""

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from ..lab.runs.records import ComparisonRow
from ..lab.statistics.comparison import usable
from . import curves
from .charts import RATE, TOKENS, Axis, Chart, Point, Strip, strip_chart
from .depth import GROWS, Measure, over_depth
from .runs import ComparedRuns
from .style import figures, rate, si, signed
from .tables import count, paired_difference, spread, unfinished, verdict

EARLY = 0.15
"""Share of training, at its start, that a chart need not show."""
Curves = Mapping[str, Sequence[curves.Curve]]
"""By scheme, its curves: a single one, or one for each seed."""


class View(NamedTuple):
    """A way to draw curves over training: its name, the share of training that the frame leaves out, and what x is."""

    name: str
    early: float = EARLY
    log: bool = False
    flops: bool = False
    """True for 6 FLOPs a token and parameter of a matrix product, without attention's scores; schemes may differ."""
    seeds: bool = False


TIMES = (View("tokens"), View("tokens, log", 0.02, log=True), View("last part", 0.7))
VIEWS = (*TIMES, View("FLOPs", flops=True), View("single seeds", seeds=True))


def describe_verdicts(comparison: ComparedRuns) -> str:
    """Which schemes are better than the baseline, worse, or neither."""
    groups: dict[str, list[str]] = {}
    for row in comparison.rows:
        side = "better" if (row.difference or 0) < 0 else "worse"
        if row.scheme != comparison.baseline:
            word = "without a result" if row.difference is None else verdict(row)
            groups.setdefault(word.replace("resolved", side, 1) if row.resolved else word, []).append(row.scheme)
    sides = [f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {side}" for side, names in groups.items()]
    return f"Against {comparison.baseline}, " + "; ".join(sides) if sides else f"{comparison.baseline} alone"


def final_loss(comparison: ComparedRuns) -> list[Chart]:
    """Final loss of every run at each scheme's best learning rate."""
    strips, widths, means = [], [], []
    for row in comparison.rows:
        runs = comparison.counted(row.scheme)
        dots = [(loss, f"{run.label}: {loss:.4f}") for run in runs if (loss := run.summary.val_loss) is not None]
        text = f"{spread(row)}, n = {row.n}" if runs else unfinished(row)
        strips.append(Strip(row.scheme, text, dots, row.val_loss_mean, row.val_loss_low, row.val_loss_high))
        if dots and row.val_loss_mean is not None:
            widths.append(max(dots)[0] - min(dots)[0])
            means.append(row.val_loss_mean)
    if not means:
        return []
    noise = f"Seeds of a scheme differ by up to {max(widths):.2g} nats" if max(widths) else "One seed shows no noise"
    return [strip_chart(
        f"{noise}; schemes differ by {max(means) - min(means):.2g}",
        "final validation loss (nats per token)", strips, comparison.looks,
        "Each mark is a run at its scheme's best learning rate; the bar is the 95 % interval of the mean over seeds.",
        name="noise", meaning="A difference below the noise of seeds needs more seeds before it says anything.",
    )]  # fmt: skip


def differences(comparison: ComparedRuns) -> list[Chart]:
    """Paired differences to the baseline with their intervals."""
    base = {run.summary.seed: run.summary.val_loss or 0.0 for run in comparison.counted(comparison.baseline)}
    rows = [row for row in comparison.rows if row.difference is not None and row.scheme != comparison.baseline]
    strips = []
    for row in rows:
        pairs = [run for run in comparison.counted(row.scheme) if run.summary.seed in base]
        gaps = [((run.summary.val_loss or 0.0) - base[run.summary.seed], run.label) for run in pairs]
        dots = [(gap, f"{label}: {signed(gap, 4)} nats") for gap, label in gaps]
        ends = (row.difference, row.difference_low, row.difference_high)
        strips.append(Strip(row.scheme, paired_difference(row), dots, *ends))
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
    return [strip_chart(
        describe_verdicts(comparison), unit, strips, comparison.looks, note, 0.0, name="differences",
        meaning="The verdicts rest on these intervals.",
    )]  # fmt: skip


def by_setting(comparison: ComparedRuns, settings: Mapping[str, Sequence[ComparisonRow]]) -> list[Chart]:
    """The difference of each scheme in each setting."""
    known = {f"{row.scheme}: {name}": row for name, rows in settings.items() for row in rows if row.difference_std}
    strips = [Strip(name, paired_difference(row), [], row.difference, row.difference_low, row.difference_high)
              for name, row in sorted(known.items())]  # fmt: skip
    looks = {name: comparison.looks[row.scheme] for name, row in known.items()}
    better = sum((row.difference or 0) < 0 for row in known.values())
    return [strip_chart(
        f"Better than {comparison.baseline} on average in {better} of {count(len(known), 'case')}",
        f"difference to {comparison.baseline}, nats per token (left of 0 is better)", strips, looks, rule=0.0,
        name="settings",
        meaning="What changes its side from setting to setting is no property of the scheme alone.",
    )]  # fmt: skip


def losses(comparison: ComparedRuns) -> list[Chart]:
    """Validation loss over tokens, with markers, and training loss, thin."""
    train, valid = (metric_curves(comparison, key) for key in ("loss", "val_loss"))
    seeds = {scheme: [curve for run in comparison.drawn(scheme) if (curve := curves.metric_curve([run], "val_loss"))]
             for scheme in comparison.names}  # fmt: skip
    known = [*train.items(), *valid.items()]
    framed = [pair for pair in known if comparison.counted(pair[0])] or known
    thin = {scheme: curve.thinned(120) for scheme, curve in train.items()}
    order = sorted(valid, key=lambda scheme: valid[scheme].mean[-1])
    title = (
        f"At the last evaluation {order[0]} is lowest, at {valid[order[0]].mean[-1]:.4f}" if order else "Training loss"
    )
    return over_tokens(
        comparison,
        "loss",
        title,
        "loss (nats per token)",
        {scheme: [curve] for scheme, curve in valid.items()},
        "Validation loss, on the sample that every evaluation reads, with markers and the range of seeds; training "
        "loss thin. The start leaves the frame, as may what diverged.",
        "A lead early in training often turns: the end of equally long runs counts.",
        framed,
        VIEWS,
        thin=thin,
        seeds=seeds,
    )


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
    ends = ", ".join(f"{scheme} {signed(curve.mean[-1])}" for scheme, curve in known.items())
    return over_tokens(
        comparison, "gap", f"At the last evaluation, against {comparison.baseline}: {ends}",
        "difference (nats per token)",
        {scheme: [curve] for scheme, curve in known.items()},
        f"Validation loss, on the sample of every evaluation, − that of {comparison.baseline}, paired by seed; band: "
        "the 95 % interval at each point. The start may leave the frame.",
        "A gap that is still closing at the end may be gone in longer runs.", [*known.items()], TIMES, band="95 %",
        rules=[0.0],
    )  # fmt: skip


def gradient_curves(comparison: ComparedRuns) -> list[Chart]:
    """Gradient norm during training, with the spikes of the gradient."""
    known = {scheme: curve.thinned(120) for scheme, curve in metric_curves(comparison, "grad_norm").items()}
    views = tuple(view._replace(early=0.0) for view in TIMES[:2])
    counts = [f"{row.scheme} {row.grad_spikes}" for row in comparison.rows if row.grad_spikes]
    return over_tokens(
        comparison, "gradient",
        f"Spikes of the gradient norm: {', '.join(counts)}" if counts else "No spike of the gradient norm",
        "gradient norm", {},
        "Mean over seeds, before clipping, of the logged steps. Spikes are counted at every step; all columns of the "
        "table have those of the loss, and how many the batch made.",
        "A norm that grows late, or many spikes, warns of a rate that longer runs will not bear.", [*known.items()],
        views, thin=known,
    )  # fmt: skip


def over_tokens(
    comparison: ComparedRuns, name: str, title: str, unit: str, known: Curves, note: str, meaning: str,
    framed: Sequence[tuple[str, curves.Curve]], views: Sequence[View], *, band: str = "seeds",
    rules: Sequence[float] = (), thin: Mapping[str, curves.Curve] | None = None, seeds: Curves | None = None,
) -> list[Chart]:  # fmt: skip
    """Curves with markers over training, thin ones, and level lines, in several views; nothing without a curve. The
    axis holds the curves of `framed` from where the view begins. band: its name in the labels of points."""
    if not framed:
        return []
    charts: list[Chart] = []
    for view in views:
        cost = {
            scheme: 6.0 * (run.matmul_parameters or run.parameters or 1) if view.flops else 1.0
            for scheme in comparison.names
            for run in [comparison.drawn(scheme)[0].summary]
        }
        late = [end for _, c in framed for column in (c.low, c.high)
                for end in column[c.x >= view.early * c.x[-1]].tolist()]  # fmt: skip
        y = Axis.around([*rules, *late], log=curves.spans_decades([*rules, *late]), title=unit)
        last = max(float(curve.x[-1]) * cost[scheme] for scheme, curve in framed)
        first = view.early * last if view.log or view.early > EARLY else 0.0
        words = ("FLOPs", RATE) if view.flops else ("tokens", TOKENS)
        x = Axis(first or (1e-3 * last if view.log else 0.0), last * 1.02, log=view.log, title=words[0], form=words[1])
        panel = name if not charts else f"{name}-{view.name.replace(', ', '-').replace(' ', '-').lower()}"
        chart = Chart(title, x, y, comparison.looks, note, name=panel, meaning=meaning, view=view.name)
        for level in rules:
            chart.rule(y=level)
        for scheme, curve in ({} if view.seeds else thin or {}).items():
            chart.line(scheme, zip(curve.x * cost[scheme], curve.mean, strict=True), "thin" if known else "line")
        for scheme, drawn in ((seeds or {}) if view.seeds else known).items():
            for curve in drawn:
                points = []
                for at, mean, low, high in zip(*(column.tolist() for column in curve), strict=True):
                    within = "" if low == high else f" ({band} {figures(low)} to {figures(high)})"
                    label = f"{scheme} · {si(at)} tokens: {figures(mean)}{within}"
                    points.append(Point(at * cost[scheme], mean, low, high, label))
                chart.curve(scheme, points)
        charts.append(chart)
    charts[0].views = charts[1:]
    return charts[:1]


def learning_rates(comparison: ComparedRuns) -> list[Chart]:
    """Loss against learning rate, where several were tried: a chart of the schemes whose rate tuning runs decided,
    which may be shorter, and one of those whose rate final runs decided."""
    tuned = {scheme for scheme, choice in comparison.choices.items()
             if any(run.phase == "tune" for run in choice.tried)}  # fmt: skip
    groups = {"validation loss of the tuning runs": [row for row in comparison.rows if row.scheme in tuned],
              "final validation loss": [row for row in comparison.rows if row.scheme not in tuned]}  # fmt: skip
    return [chart for what, rows in groups.items() for chart in rate_chart(comparison, rows, what)]


def rate_chart(comparison: ComparedRuns, rows: Sequence[ComparisonRow], what: str) -> list[Chart]:
    """Loss against learning rate for the schemes of some rows; losses that are much higher are left out."""
    tried = sorted({lr for row in rows for lr in row.lrs if lr})
    known = [loss for row in rows for lr, loss in row.lrs.items() if lr and loss is not None]
    if len(tried) < 2 or not known:
        return []
    labels = tried if len(tried) <= 5 else tried[:: math.ceil(len(tried) / 5)]
    x = Axis.around(tried, log=True, margin=0.08, form=RATE, title="learning rate", labels=labels)
    low = min(known)
    high = min(max(known), low + 4 * max(median(known) - low, 0.02))
    y = Axis.around([low, high], margin=0.1, title="nats per token")
    note = f"The {what}. Ringed: the rate the scheme is judged at. A cross at the top: some run there did not finish."
    if max(known) > y.high:
        note += " Higher losses leave the frame; the table has them."
    best = [f"{row.scheme} {rate(row.lr)}{' (an edge)' if row.lr_interior is False else ''}" for row in rows if row.lr]
    chart = Chart(
        f"Best learning rates: {', '.join(best)}", x, y, comparison.looks, note, name="rates-" + what.split()[0],
        meaning="Where valleys lie apart, a comparison at one rate for all favours a scheme.",
    )  # fmt: skip
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


SECOND = 0.5
"""Radians up to which the first-order prediction of an angle is right within 8 %: arctan 0.5 = 0.46."""
TURNS = "Where the angle falls with depth, late blocks change tokens little; where it stays, each block still counts."
PROFILES = {
    "radius": Measure("Length of the stream", "|x|", "Mean |x| of the tokens before each sub-layer.", GROWS),
    "angle": Measure("Angle of each write", "radians", "Mean angle by which a sub-layer turns a token.", TURNS),
    "clamped": Measure("Share of clamped updates", "share", "Updates whose angle reached the scheme's clamp.",
                       "Under 1 % the clamp does nothing; over 99 % it decides every step and the update's length "
                       "none."),
    "cos_pair": Measure("Likeness of tokens", "cosine", "Mean between tokens of one sequence; 1 is collapse.",
                        "Tokens that grow alike carry less of what sets them apart."),
    "grad_norm": Measure("Gradient per sub-layer", "gradient norm", "Norm of the gradient of its weights.",
                         "A level course lets one learning rate serve all blocks."),
}  # fmt: skip


def geometry(comparison: ComparedRuns) -> list[Chart]:
    """Columns of the trace over depth at the last evaluation; of the angle also what the definition predicts, where
    its first order is valid."""
    laws = {
        scheme: [
            place if place.value <= SECOND else curves.Place(place.layer, place.kind, math.nan)
            for place in curves.profile(comparison.drawn(scheme), "law_angle")
        ]
        for scheme in comparison.names
    }
    charts = []
    for key, measure in PROFILES.items():
        profiles = {scheme: curves.profile(comparison.drawn(scheme), key) for scheme in comparison.names}
        second = laws if key == "angle" else {}
        if any(second.values()):
            dotted = f" Dotted: the scheme's definition to first order, up to {SECOND:g} rad."
            measure = measure._replace(note=measure.note + dotted)
        unit, labels = "layer (attention, then MLP)", comparison.keys
        charts += over_depth(key, measure, comparison.looks, profiles, unit, second, "dotted", labels)
    return charts


FIGURES: dict[str, Sequence[Callable[[ComparedRuns], list[Chart]]]] = {
    "final_loss": (final_loss, differences),
    "loss_curves": (losses, gaps),
    "geometry": (geometry,),
    "learning_rates": (learning_rates,),
}
"""Figures for a README or a paper, by the names of their files."""
