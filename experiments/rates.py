"""What a plan asks for next, to find a scheme's best learning rate: factors of 2 until the best is interior, factors
of √2 about it, seeds at the best rate."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import inf, sqrt

from programme import settings

from geonorm.lab.config import TUNING_SEED
from geonorm.lab.runs.records import Summary

Losses = Mapping[float, float]
Known = Mapping[str, Summary]


def tidy(rate: float) -> float:
    """Three digits: what a person would type, and the same number in names and tables."""
    return float(f"{rate:.3g}")


def read_losses(runs: Sequence[Summary]) -> Losses:
    """Mean validation loss by learning rate; infinite where a run diverged."""
    found: dict[float, list[float]] = {}
    for run in runs:
        loss = run.val_loss if run.status == "finished" else None
        found.setdefault(run.lr or 0.0, []).append(inf if loss is None else loss)
    return {rate: sum(losses) / len(losses) for rate, losses in sorted(found.items())}


def extend(losses: Losses, start: Sequence[float], extensions: int = 2, factor: float = 2) -> list[float]:
    """The rates of `start`, then a factor of 2, or another, beyond the end at which the best stands, `extensions`
    times at most."""
    rates = sorted(start)
    for _ in range(extensions):
        if not set(rates) <= set(losses):
            break
        best = min(rates, key=losses.__getitem__)
        if rates[0] < best < rates[-1]:
            break
        rates = [tidy(best / factor), *rates] if best == rates[0] else [*rates, tidy(best * factor)]
    return [*start, *(rate for rate in rates if rate not in start)]


def refine(losses: Losses, rates: Sequence[float]) -> list[float]:
    """A factor of √2 to either side of the best, once all rates are known."""
    if not set(rates) <= set(losses):
        return []
    best = min(rates, key=losses.__getitem__)
    return [tidy(best / sqrt(2)), tidy(best * sqrt(2))]


def name_run(row: str, rate: float, seed: int = 0) -> str:
    return f"{row}-lr{rate:g}-seed{seed}"


def read_row(known: Known, row: str, seed: int | None = None) -> Losses:
    """Mean validation loss of a row by learning rate, of all its seeds or of one."""
    end = "" if seed is None else f"-seed{seed}"
    return read_losses([run for name, run in known.items() if name.startswith(f"{row}-lr") and name.endswith(end)])


def add_runs(
    grid: dict[str, list[str]], row: str, words: Sequence[str], rates: Iterable[float], seeds: Iterable[int] = (0,)
) -> None:
    """Asks for a row, whose words say all but rate and seed, at these rates with these seeds."""
    for seed, rate in product(seeds, rates):
        grid[name_run(row, rate, seed)] = [*words, *settings(lr=f"{rate:g}", seed=seed)]


def find_best(known: Known, rows: Iterable[str], start: Sequence[float], factor: float = 2) -> dict[str, float]:
    """The best rate of those rows that have every rate of `start` and every further one that these ask for."""
    found = {row: read_row(known, row) for row in rows}
    ended = [row for row, losses in found.items() if set(extend(losses, start, factor=factor)) <= set(losses)]
    return {row: min(found[row], key=found[row].__getitem__) for row in ended}


def plan_rows(
    known: Known, rows: Mapping[str, Sequence[str]], start: Sequence[float], seeds: int, factor: float = 2
) -> dict[str, list[str]]:
    """A plan of rows, by name the arguments of `geonorm train` but for rate and seed: every row at the rates of
    `start`, then factors of 2, or another, until its best is interior, then seeds at that."""
    grid: dict[str, list[str]] = {}
    for rate in start:
        for row, words in rows.items():
            add_runs(grid, row, words, [rate])
    for row, words in rows.items():
        add_runs(grid, row, words, extend(read_row(known, row), start, factor=factor))
    best = find_best(known, rows, start, factor)
    for seed in range(1, seeds):
        for row, rate in best.items():
            add_runs(grid, row, rows[row], [rate], [seed])
    return grid


def tune_then_repeat(
    known: Known, rows: Mapping[str, Sequence[str]], start: Sequence[float], fresh: Iterable[int], extensions: int = 6
) -> dict[str, list[str]]:
    """The protocol from 022 on: one seed, which does not count, tunes every row by factors of √2 until its best rate is
    interior; then fresh seeds run at that."""
    grid: dict[str, list[str]] = {}
    for row, words in rows.items():
        losses = read_row(known, row, TUNING_SEED)
        rates = extend(losses, start, extensions, sqrt(2))
        add_runs(grid, row, words, rates, [TUNING_SEED])
        if set(rates) <= set(losses):
            add_runs(grid, row, words, [min(losses, key=losses.__getitem__)], fresh)
    return grid


def tune_multiplier(
    known: Known,
    rows: Mapping[float, tuple[str, Sequence[str]]],
    main: float,
    start: Sequence[float],
    fresh: Iterable[int],
) -> dict[str, list[str]]:
    """The embedding's multiplier, once the matrices' rate is tuned at one: rows, by multiplier the name and the words.
    Each is tuned about the best rate at `main`, one below 1 about that at 1: those of `start`, then a factor of 4
    beyond the best where it is the last. Fresh seeds at the best and at 1, one rate for all."""
    losses = {m: read_row(known, row, TUNING_SEED) for m, (row, _) in rows.items()}
    starts, ended = dict[float, list[float]](), dict[float, float]()
    for m, row in losses.items():
        if near := losses[1.0 if m < 1 else main]:
            starts[m] = [tidy(min(near, key=near.__getitem__) * sqrt(2) ** half) for half in (-1, 0, 1)]
            if set(extend(row, starts[m], 6, sqrt(2))) <= set(row):
                ended[m] = min(row.values())
    wanted = extend(ended, start, 1, 4)
    chosen = min(ended, key=ended.__getitem__) if set(wanted) <= set(ended) else main
    grid: dict[str, list[str]] = {}
    for m in sorted({*wanted} & {*starts} - {main}):
        grid |= tune_then_repeat(known, dict([rows[m]]), starts[m], fresh if m in (chosen, 1) else ())
    return grid
