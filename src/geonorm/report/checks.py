"""What limits a comparison: each way in which it falls short of the protocol, as one sentence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from ..lab.runs.run import flatten
from ..lab.runs.statistics import ending, usable
from .runs import Comparison, Run
from .style import rate, si
from .tables import count

SEEDS_FOR_A_CLAIM = 5
TOKENS_PER_PARAMETER = 10
"""Below this the order of schemes is that of early training, and known to change."""
PARAMETER_TOLERANCE = 0.002


def limits(comparison: Comparison) -> list[str]:
    """What a reader must know before believing the table, as sentences; none where all is in order."""
    return [sentence for check in CHECKS for sentence in check(comparison)]


def _seeds(comparison: Comparison) -> list[str]:
    few = [row for row in comparison.rows if 0 < row["n"] < SEEDS_FOR_A_CLAIM]
    if not few:
        return []
    least = min(row["n"] for row in few)
    spread = " One seed shows no spread, hence no interval." if least == 1 else ""
    return [f"{count(least, 'seed').capitalize()}: a claim needs at least {SEEDS_FOR_A_CLAIM}.{spread}"]


def _unfinished(comparison: Comparison) -> list[str]:
    """Lost runs beside the counted ones flatter a mean; at another learning rate they only end the grid."""
    found = []
    for row in comparison.rows:
        if not row["n"]:
            continue
        lost = [run for run in comparison.of(row["scheme"]) if not usable(run.summary)]
        beside = [run for run in lost if run.summary.get("lr") == row["lr"]]
        if beside:
            found.append(
                f"{row['scheme']}: the mean leaves out {_ended(beside)} at the same learning rate, "
                "which may flatter it."
            )
        if len(lost) > len(beside):
            elsewhere = _ended([run for run in lost if run not in beside])
            found.append(f"{row['scheme']}: {elsewhere} at another learning rate.")
    return found


def _ended(runs: Sequence[Run]) -> str:
    """How these runs ended, in words: "2 diverged runs"."""
    return " and ".join(f"{n} {status} {'run' if n == 1 else 'runs'}" for status, n in _statuses(runs).items())


def _statuses(runs: Sequence[Run]) -> Counter[str]:
    return Counter(ending(run.summary) for run in runs)


def _rates(comparison: Comparison) -> list[str]:
    found = []
    for row in comparison.rows:
        if row["lr"] is not None and row["lr_interior"] is False:
            found.append(
                f"{row['scheme']}: the best learning rate, {rate(row['lr'])}, is an edge of the grid "
                "that was tried; a better one may lie outside."
            )
    untuned = [row["scheme"] for row in comparison.rows if row["n"] and row["lr_interior"] is None]
    if untuned:
        found.append(f"The learning rate was not tuned for {', '.join(untuned)}: only one was tried.")
    tuned = {run.summary.get("tokens") or 0 for run in comparison.runs if run.summary.get("phase") == "tune"}
    longest = max((row["tokens"] or 0 for row in comparison.rows if row["n"]), default=0)
    if tuned and 0 < max(tuned) < longest:
        found.append(
            f"Learning rates were tuned on {si(max(tuned))} of {si(longest)} tokens: the best rate falls with length, "
            "so these may be too high, for some schemes more than for others."
        )
    return found


def _length(comparison: Comparison) -> list[str]:
    shares = [row["tokens"] / row["parameters"] for row in comparison.rows if row["tokens"] and row["parameters"]]
    if not shares or min(shares) >= TOKENS_PER_PARAMETER:
        return []
    return [
        f"{min(shares):.2g} tokens per parameter: below {TOKENS_PER_PARAMETER} this is a ranking of early training."
    ]


def _pairs(comparison: Comparison) -> list[str]:
    return [
        f"{row['scheme']}: only {row['pairs']} of {count(row['n'], 'seed')} have a partner in {comparison.baseline}."
        for row in comparison.rows
        if row["scheme"] != comparison.baseline and row["pairs"] < row["n"]
    ]


def _budget(comparison: Comparison) -> list[str]:
    tokens = sorted({row["tokens"] for row in comparison.rows if row["n"] and row["tokens"]})
    if len(tokens) < 2:
        return []
    return [f"The budgets differ, from {si(tokens[0])} to {si(tokens[-1])} tokens: these are not one comparison."]


def _parameters(comparison: Comparison) -> list[str]:
    found = []
    for key, words in (("matmul_parameters", "matmul parameters"), ("parameters", "parameters")):
        sizes = [row[key] for row in comparison.rows if row[key]]
        if sizes and max(sizes) > min(sizes) * (1 + PARAMETER_TOLERANCE):
            gap = 100 * (max(sizes) / min(sizes) - 1)
            found.append(f"The numbers of {words} differ by {gap:.2g} % ({si(min(sizes))} to {si(max(sizes))}).")
    return found


def _data(comparison: Comparison) -> list[str]:
    hashes = {_hash(run) for run in comparison.runs} - {None}
    return ["The runs did not all see the same data: their sha256 differ."] if len(hashes) > 1 else []


def _hash(run: Run) -> str | None:
    settings = [pair for part in run.environment for pair in flatten(part).items()]
    return next((str(value) for key, value in settings if key.endswith("data_sha256")), None)


def _damage(comparison: Comparison) -> list[str]:
    damaged = [run.path.name for run in comparison.runs if run.damaged]
    return [f"Unreadable lines or files were skipped in {', '.join(damaged)}."] if damaged else []


def _losses(comparison: Comparison) -> list[str]:
    """A finished run whose logged training loss is not finite somewhere."""
    bad = [
        run.label
        for run in comparison.runs
        if run.summary.get("status") == "finished"
        and any(isinstance(r.get("loss"), float) and not math.isfinite(r["loss"]) for r in run.metrics)
    ]
    return [f"The training loss was not finite at some step of {', '.join(bad)}."] if bad else []


CHECKS: Sequence[Callable[[Comparison], list[str]]] = (
    _seeds, _unfinished, _rates, _pairs, _length, _budget, _parameters, _data, _losses, _damage,
)  # fmt: skip
