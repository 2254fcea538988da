"""What limits a comparison: each way in which it falls short of the protocol, as one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from ..lab.load import Run
from ..lab.runs.folder import VOLATILE, flatten
from ..lab.runs.records import Summary
from ..lab.statistics.comparison import ending, find_scattered, usable
from .page import plain_text
from .runs import ComparedRuns
from .style import rate, si
from .tables import count

SEEDS_FOR_A_CLAIM = 5
TOKENS_PER_PARAMETER = 10
"""Below this the order of schemes is that of early training, and known to change."""
PARAMETER_TOLERANCE = 0.002
PER_RUN = ("scheme", "seed", "lr", "optim.rates", "out")
"""Settings that differ between runs by design."""
WITHOUT_EFFECT = {
    *VOLATILE, *PER_RUN, "checkpoint.every", "evaluation.every", "evaluation.trace_tokens",
    "runtime.device", "runtime.threads",
    "runtime.compile", "runtime.recompute", "runtime.tensorboard",
}  # fmt: skip
"""Those, and settings under which a run ends with the same loss but for the order of sums."""
NAMED = 3
"""Settings that a sentence names."""


def _seeds(comparison: ComparedRuns) -> Iterator[str]:
    least = min((row.n for row in comparison.judged if row.n), default=SEEDS_FOR_A_CLAIM)
    if least < SEEDS_FOR_A_CLAIM:
        spread = " One seed shows no spread, hence no interval." if least == 1 else ""
        yield f"{count(least, 'seed').capitalize()}: a claim needs at least {SEEDS_FOR_A_CLAIM}.{spread}"


def _spreads(comparison: ComparedRuns) -> Iterator[str]:
    judged = [row.scheme for row in comparison.judged]
    for scheme, times, p in find_scattered(comparison.all_rows):
        if scheme in judged:
            yield f"{scheme}: its seeds {describe_scatter(times, f'as those of the others (p = {p:.2g})')}"


def describe_scatter(times: float, others: str) -> str:
    """The end of a sentence on a spread that moderation would underestimate."""
    return (
        f"scatter {times:.2g} times as far {others}: moderated intervals with it, whose spread is partly theirs, may "
        "be too narrow."
    )


def _unfinished(comparison: ComparedRuns) -> Iterator[str]:
    """Lost runs beside the counted ones flatter a mean; at another learning rate they only end the grid."""
    for row in comparison.judged:
        lost = [run for run in comparison.runs_of(row.scheme) if row.n and not usable(run.summary)]
        beside = [run for run in lost if run.summary.lr == row.lr]
        elsewhere = [run for run in lost if run not in beside]
        if beside:
            yield (
                f"{row.scheme}: the mean leaves out {_ended(beside)} at the same learning rate, which may flatter it."
            )
        if elsewhere:
            yield f"{row.scheme}: {_ended(elsewhere)} at another learning rate."


def _ended(runs: Sequence[Run]) -> str:
    """How these runs ended, in words: "2 diverged runs"."""
    statuses = Counter(ending(run.summary) for run in runs)
    return " and ".join(count(n, f"{status} run") for status, n in statuses.items())


def _rates(comparison: ComparedRuns) -> Iterator[str]:
    for row in comparison.judged:
        if row.lr is not None and row.lr_interior is False:
            yield (
                f"{row.scheme}: the best learning rate, {rate(row.lr)}, is an edge of the grid "
                "that was tried; a better one may lie outside."
            )
    untuned = [row.scheme for row in comparison.judged if row.n and row.lr_interior is None]
    if untuned:
        yield f"The learning rate was not tuned for {', '.join(untuned)}: only one was tried."
    tuned = max((run.summary.tokens or 0 for run in comparison.runs if run.summary.phase == "tune"),
                default=0)  # fmt: skip
    longest = max((row.tokens or 0 for row in comparison.judged if row.n), default=0)
    if 0 < tuned < longest:
        yield (
            f"Learning rates were tuned on {si(tuned)} of {si(longest)} tokens: the best rate falls with length, "
            "so these may be too high, for some schemes more than for others."
        )
    if tuned > longest > 0:
        yield (
            f"Learning rates were tuned on {si(tuned)} tokens, more than the {si(longest)} that are compared: the best "
            "rate falls with length, so these may be too low."
        )


def _length(comparison: ComparedRuns) -> Iterator[str]:
    """That a comparison is too short to tell how schemes end."""
    shares = [row.tokens / row.parameters for row in comparison.judged if row.n and row.tokens and row.parameters]
    if shares and min(shares) < TOKENS_PER_PARAMETER:
        yield (
            f"{min(shares):.2g} tokens per parameter: below {TOKENS_PER_PARAMETER} this is a ranking of early training."
        )


def _pairs(comparison: ComparedRuns) -> Iterator[str]:
    for row in comparison.judged:
        if row.scheme != comparison.baseline and row.pairs < row.n:
            seeds = count(row.n, "seed")
            yield f"{row.scheme}: only {row.pairs} of {seeds} have a partner in {comparison.baseline}."


def _budget(comparison: ComparedRuns) -> Iterator[str]:
    tokens = sorted({row.tokens for row in comparison.judged if row.n and row.tokens})
    if len(tokens) > 1:
        yield f"The budgets differ, from {si(tokens[0])} to {si(tokens[-1])} tokens: these are not one comparison."
    for row in comparison.judged:
        final = [run.summary for run in comparison.runs_of(row.scheme) if run.summary.phase != "tune"]
        shorter = [run for run in final if usable(run) and (run.tokens or 0) < (row.tokens or 0)]
        if shorter:
            yield f"{row.scheme}: {count(len(shorter), 'shorter run')} left out, for lengths do not mix in a mean."


def _settings(comparison: ComparedRuns) -> Iterator[str]:
    """Counted runs that were not trained alike, within a scheme, where its mean mixes them, and between schemes."""
    schemes = [row.scheme for row in comparison.judged]
    flat = {scheme: [flatten(run.config) for run in comparison.counted(scheme)] for scheme in schemes}
    for scheme, configs in flat.items():
        if mixed := _differing(configs):
            yield f"{scheme}: its mean is over runs that differ in {mixed}: report them separately."
    ones = [configs[0] for configs in flat.values() if configs and not _differing(configs)]
    if between := _differing(ones):
        yield f"The schemes were not trained alike: they differ in {between}."


def _differing(configs: Sequence[dict[str, Any]]) -> str:
    """Settings in which configurations differ, with their values, in words. What an older version did not have is
    unknown."""
    keys = [key for key in configs[0] if key not in WITHOUT_EFFECT] if configs else []
    known = [key for key in keys if all(key in config for config in configs)]
    values = {key: dict.fromkeys(plain_text(config[key]) for config in configs) for key in known}
    return name_some([f"{key} ({' and '.join(each)})" for key, each in values.items() if len(each) > 1])


def name_some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _parameters(comparison: ComparedRuns) -> Iterator[str]:
    counted = [run.summary for row in comparison.judged for run in comparison.counted(row.scheme)]
    for key in ("matmul_parameters", "parameters"):
        sizes = [size for run in counted if (size := getattr(run, key))]
        if sizes and max(sizes) > min(sizes) * (1 + PARAMETER_TOLERANCE):
            gap, words = 100 * (max(sizes) / min(sizes) - 1), key.replace("_", " ")
            yield f"The numbers of {words} differ by {gap:.3g} % ({si(min(sizes))} to {si(max(sizes))})."


def _data(comparison: ComparedRuns) -> Iterator[str]:
    hashes = set()
    for run in comparison.runs:
        settings = [pair for part in run.environment for pair in flatten(part).items()]
        hashes.add(frozenset(str(value) for key, value in settings if key.endswith("data_sha256")))
    if len(hashes - {frozenset()}) > 1:
        yield "The runs did not all see the same data: their sha256 differ."


def _losses(comparison: ComparedRuns) -> Iterator[str]:
    """A finished run whose training loss is not finite somewhere (null on record), or that passed over batches, so that
    it saw other data than its pair."""
    finished = [run for run in comparison.runs if run.summary.status == "finished"]
    bad = [run.label for run in finished if any(math.isnan(row.loss) for row in run.metrics)]
    if bad:
        yield f"The training loss was not finite at some step of {', '.join(bad)}."
    for run in finished:
        if events := run.summary.events:
            yield f"{run.label}: {count(len(events), 'step')} skipped or rewound, so it saw other data than its pair."


def list_irregular_runs(runs: Sequence[Summary]) -> Iterator[str]:
    """The same of the runs of a ladder, as far as their summaries say it."""
    finished = [run for run in runs if run.status == "finished"]
    for key, what in (
        ("null_losses", "with a training loss that was not finite at some step"),
        ("events", "with steps skipped or rewound, so that other data were seen than by the pair"),
    ):
        names = [str(run.run) for run in finished if getattr(run, key)]
        if names:
            yield f"{count(len(names), 'run')} {what}: {name_some(names)}."


def list_other_sizes(sizes: Iterable[tuple[str, int, int]], whom: str) -> Iterator[str]:
    """Schemes whose models have other numbers of parameters than those they are compared with, by the largest gap.

    sizes: of each model its scheme, its parameters and those of the other. whom: the other, in words.
    """
    gaps: dict[str, float] = {}
    for scheme, parameters, other in sizes:
        gaps[scheme] = max(gaps.get(scheme, 0.0), parameters / other - 1, key=abs)
    for scheme, gap in gaps.items():
        if abs(gap) > PARAMETER_TOLERANCE:
            yield f"{scheme} has up to {100 * abs(gap):.3g} % {'more' if gap > 0 else 'fewer'} parameters than {whom}."


def _damage(comparison: ComparedRuns) -> Iterator[str]:
    damaged = [run.path.name for run in comparison.runs if run.damaged]
    if damaged:
        yield f"Unreadable lines or files were skipped in {', '.join(damaged)}."


CHECKS: Sequence[Callable[[ComparedRuns], Iterator[str]]] = (
    _seeds, _spreads, _unfinished, _rates, _pairs, _length, _budget, _settings, _parameters, _data, _losses, _damage,
)  # fmt: skip
