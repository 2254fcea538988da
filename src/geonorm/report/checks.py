"""The limits of a comparison: each way in which it falls short of the protocol, as one sentence."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..lab.load import Run
from ..lab.runs.folder import RESUME_MAY_DIFFER, flatten
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
    *RESUME_MAY_DIFFER, *PER_RUN, "checkpoint.every", "evaluation.every", "evaluation.trace_tokens",
    "runtime.device", "runtime.threads",
    "runtime.compile", "runtime.recompute", "runtime.tensorboard",
}  # fmt: skip
"""Settings that differ by design, and settings that change a run's loss by the order of sums at most."""
MOST_NAMED = 3
"""Most settings or runs that one sentence names."""


def _seeds(comparison: ComparedRuns) -> list[str]:
    least = min((row.n for row in comparison.judged if row.n), default=SEEDS_FOR_A_CLAIM)
    spread = " One seed shows no spread, hence no interval." if least == 1 else ""
    claim = f"{count(least, 'seed').capitalize()}: a claim needs at least {SEEDS_FOR_A_CLAIM}.{spread}"
    return [claim] if least < SEEDS_FOR_A_CLAIM else []


def _spreads(comparison: ComparedRuns) -> list[str]:
    judged = [row.scheme for row in comparison.judged]
    return [f"{scheme}: its seeds {describe_scatter(times, f'as those of the others (p = {p:.2g})')}"
            for scheme, times, p in find_scattered(comparison.all_rows) if scheme in judged]  # fmt: skip


def describe_scatter(times: float, others: str) -> str:
    """The end of a sentence on a spread that moderation would underestimate."""
    return (
        f"scatter {times:.2g} times as far {others}: moderated intervals with it, whose spread is partly theirs, may "
        "be too narrow."
    )


def _unfinished(comparison: ComparedRuns) -> list[str]:
    """Runs that did not finish: at the learning rate that counts they flatter the mean, at another they only limit the
    grid."""
    sentences = []
    for row in comparison.judged:
        lost = [run for run in comparison.runs_of(row.scheme) if row.n and not usable(run.summary)]
        beside = [run for run in lost if run.summary.lr == row.lr]
        elsewhere = [run for run in lost if run not in beside]
        left = f"{row.scheme}: the mean leaves out {_ended(beside)} at the same learning rate, which may flatter it."
        sentences += [left] if beside else []
        sentences += [f"{row.scheme}: {_ended(elsewhere)} at another learning rate."] if elsewhere else []
    return sentences


def _ended(runs: Sequence[Run]) -> str:
    """How these runs ended, in words: "2 diverged runs"."""
    statuses = Counter(ending(run.summary) for run in runs)
    return " and ".join(count(n, f"{status} run") for status, n in statuses.items())


def _rates(comparison: ComparedRuns) -> list[str]:
    judged = comparison.judged
    sentences = [
        f"{row.scheme}: the best learning rate, {rate(row.lr)}, is an edge of the grid that was tried; a better one "
        "may lie outside."
        for row in judged if row.lr is not None and row.lr_interior is False
    ]  # fmt: skip
    if untuned := [row.scheme for row in judged if row.n and row.lr_interior is None]:
        sentences.append(f"The learning rate was not tuned for {', '.join(untuned)}: only one was tried.")
    tuned = max((run.summary.tokens or 0 for run in comparison.runs if run.summary.phase == "tune"), default=0)
    longest = max((row.tokens or 0 for row in judged if row.n), default=0)
    if tuned and longest and tuned != longest:
        side = f"the best rate falls with length, so these may be too {'high' if tuned < longest else 'low'}."
        sentences.append(f"Learning rates were tuned on {si(tuned)} tokens, and {si(longest)} are compared: {side}")
    return sentences


def _length(comparison: ComparedRuns) -> list[str]:
    """That a comparison is too short to tell how schemes end."""
    shares = [row.tokens / row.parameters for row in comparison.judged if row.n and row.tokens and row.parameters]
    least = min(shares, default=TOKENS_PER_PARAMETER)
    early = f"{least:.2g} tokens per parameter: below {TOKENS_PER_PARAMETER} this is a ranking of early training."
    return [early] if least < TOKENS_PER_PARAMETER else []


def _pairs(comparison: ComparedRuns) -> list[str]:
    return [f"{row.scheme}: only {row.pairs} of {count(row.n, 'seed')} have a partner in {comparison.baseline}."
            for row in comparison.judged if row.scheme != comparison.baseline and row.pairs < row.n]  # fmt: skip


def _budget(comparison: ComparedRuns) -> list[str]:
    tokens = sorted({row.tokens for row in comparison.judged if row.n and row.tokens})
    sentences = []
    if len(tokens) > 1:
        ends = f"from {si(tokens[0])} to {si(tokens[-1])} tokens"
        sentences.append(f"The budgets differ, {ends}: these are not one comparison.")
    for row in comparison.judged:
        final = [run.summary for run in comparison.runs_of(row.scheme) if run.summary.phase != "tune"]
        if shorter := [run for run in final if usable(run) and (run.tokens or 0) < (row.tokens or 0)]:
            left = f"{count(len(shorter), 'shorter run')} left out, for lengths do not mix in a mean."
            sentences.append(f"{row.scheme}: {left}")
    return sentences


def _settings(comparison: ComparedRuns) -> list[str]:
    """Counted runs that were not trained alike, within a scheme, where its mean mixes them, and between schemes."""
    schemes = [row.scheme for row in comparison.judged]
    flat = {scheme: [flatten(run.config) for run in comparison.counted(scheme)] for scheme in schemes}
    mixed = {scheme: _differing(configs) for scheme, configs in flat.items()}
    between = _differing([configs[0] for scheme, configs in flat.items() if configs and not mixed[scheme]])
    sentences = [f"{scheme}: its mean is over runs that differ in {what}: report them separately."
                 for scheme, what in mixed.items() if what]  # fmt: skip
    return sentences + ([f"The schemes were not trained alike: they differ in {between}."] if between else [])


def _differing(configs: Sequence[dict[str, Any]]) -> str:
    """Settings in which configurations differ, with their values, in words. A setting that one of them lacks, as those
    of older versions do, is left out."""
    keys = [key for key in configs[0] if key not in WITHOUT_EFFECT] if configs else []
    known = [key for key in keys if all(key in config for config in configs)]
    values = {key: dict.fromkeys(plain_text(config[key]) for config in configs) for key in known}
    return name_some([f"{key} ({' and '.join(each)})" for key, each in values.items() if len(each) > 1])


def name_some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def _parameters(comparison: ComparedRuns) -> list[str]:
    counted = [run.summary for row in comparison.judged for run in comparison.counted(row.scheme)]
    sentences = []
    for key in ("matmul_parameters", "parameters"):
        sizes = [size for run in counted if (size := getattr(run, key))] or [1]
        if max(sizes) > min(sizes) * (1 + PARAMETER_TOLERANCE):
            ends = f"{100 * (max(sizes) / min(sizes) - 1):.3g} % ({si(min(sizes))} to {si(max(sizes))})"
            sentences.append(f"The numbers of {key.replace('_', ' ')} differ by {ends}.")
    return sentences


def _data(comparison: ComparedRuns) -> list[str]:
    hashes = {
        frozenset(str(value) for part in run.environment for key, value in flatten(part).items()
                  if key.endswith("data_sha256"))
        for run in comparison.runs
    }  # fmt: skip
    different = len(hashes - {frozenset()}) > 1
    return ["The runs did not all see the same data: their sha256 differ."] if different else []


def _rewound(comparison: ComparedRuns) -> list[str]:
    """Finished runs that skipped batches when they were rewound, so that they saw other data than their pairs."""
    finished = [run for run in comparison.runs if run.summary.status == "finished"]
    return [
        f"{run.label}: {count(len(events), 'step')} rewound, so it saw other data than its pair."
        for run in finished if (events := run.summary.events)
    ]  # fmt: skip


def list_rewound_runs(runs: Sequence[Summary]) -> list[str]:
    """The same for the runs of a ladder, in one sentence, by their summaries."""
    rewound = [str(run.run) for run in runs if run.status == "finished" and run.events]
    what = "with steps rewound, so that other data were seen than by the pair"
    return [f"{count(len(rewound), 'run')} {what}: {name_some(rewound)}."] if rewound else []


def list_other_sizes(sizes: Iterable[tuple[str, int, int]], whom: str) -> list[str]:
    """Schemes whose models have other numbers of parameters than those they are compared with, by the largest gap.

    sizes: of each model its scheme, its parameters and those of the other. whom: the other, in words.
    """
    gaps: dict[str, float] = {}
    for scheme, parameters, other in sizes:
        gaps[scheme] = max(gaps.get(scheme, 0.0), parameters / other - 1, key=abs)
    return [f"{scheme} has up to {100 * abs(gap):.3g} % {'more' if gap > 0 else 'fewer'} parameters than {whom}."
            for scheme, gap in gaps.items() if abs(gap) > PARAMETER_TOLERANCE]  # fmt: skip


def _damage(comparison: ComparedRuns) -> list[str]:
    damaged = ", ".join(run.path.name for run in comparison.runs if run.damaged)
    return [f"Unreadable or missing lines, or files that do not belong together, in {damaged}."] if damaged else []


CHECKS: Sequence[Callable[[ComparedRuns], list[str]]] = (
    _seeds, _spreads, _unfinished, _rates, _pairs, _length, _budget, _settings, _parameters, _data, _rewound, _damage,
)  # fmt: skip
