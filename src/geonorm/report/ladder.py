"""What the report says of a ladder: effective speed-ups, loss against compute, slopes and fits, from results.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ..lab.runs.folder import read_object
from .atomic import Record, read_whole, refuse_damaged
from .checks import SEEDS_FOR_A_CLAIM, TOKENS_PER_PARAMETER, name_irregular_runs, name_other_sizes
from .columns import align, wrap_all
from .page import Cells
from .source import SavedStudy
from .style import rate, si, signed
from .tables import WIDTH, chances, count, learning_rate, paired_difference, seeds_of, spread

NOTE = (
    "Effective speed-up: how many times the tokens (along sizes: the compute) the baseline needs for the loss of the "
    "scheme; where that lies outside the baseline's curve, for the loss of the baseline on the curve of the scheme. It "
    "is read between neighbouring budgets, seed by seed, and never extrapolated: > and < are bounds. Intervals are "
    "over seeds, each a trunk with all its budgets, under variances that all rows moderate; p of each alone, and by "
    "Holm for all. Wall time: by the speeds of these runs, which shared a machine (geonorm bench train measures them "
    "in turns)."
)
LIMITED = "What limits this ladder"
COMPUTE = (
    "Compute: 6 x parameters of the baseline x tokens in FLOP, tables that are only looked up left out, and "
    "attention's scores too. Tokens per parameter: of all, and of all but those tables."
)


@dataclass(frozen=True)
class SavedLadder(SavedStudy):
    """A ladder's directory: its results.json, of the schemes that are shown."""

    path: Path
    results: dict[str, Any]
    shown: list[str]

    @property
    def names(self) -> list[str]:
        return self.shown

    @property
    def baseline(self) -> str:
        return str(self.results["baseline"])

    def rows(self, table: str) -> list[Record]:
        """Rows of a table (points, speedups, trends, fits) of the schemes that are shown, in their order."""
        found = [row for row in self.results[table] if row["scheme"] in self.shown]
        order = {size: place for place, size in enumerate(self.sizes)}
        return sorted(found, key=lambda row: (order.get(row["size"], -1), self.shown.index(row["scheme"])))

    @property
    def sizes(self) -> dict[str, Record]:
        """The longest point of each size, the smallest size first."""
        points = sorted(self.results["points"], key=lambda row: (row["parameters"], row["tokens"]))
        return {row["size"]: row for row in points}

    def rank(self) -> Mapping[str, float | None]:
        """The loss at the point of most compute, by which schemes are sorted."""
        last = max(self.results["points"], key=lambda row: row["compute"])
        return {row["scheme"]: row["val_loss_mean"] for row in self.results["points"]
                if (row["size"], row["tokens"]) == (last["size"], last["tokens"])}  # fmt: skip

    def only(self, names: Sequence[str], sort: str | None = None) -> Self:
        shown = [name for name in names if name in self.shown] if names else list(self.shown)
        if sort == "loss":
            losses = self.rank()
            shown.sort(key=lambda name: math.inf if (loss := losses.get(name)) is None else loss)
        return replace(self, shown=shown)


def load(path: Path) -> SavedLadder:
    """Read a ladder's directory. GeonormError where results.json is damaged, OSError where it is missing."""
    with refuse_damaged(path / "results.json", "ladder") as file:
        results = read_whole(file)
        found = SavedLadder(path, results, list(dict.fromkeys(row["scheme"] for row in results["points"])))
        text_lines(found)
        return found


def speedup_text(row: Record, name: str = "speedup") -> str:
    """A speed-up with its interval, its bound, or why there is none."""
    if row[name] is None and name != "speedup":
        return "–"
    if row["bound"]:
        return f"{row['bound']} {row['limit']:.3g}"
    if row[name] is None:
        return str(row["problem"])
    ends = "" if row[f"{name}_low"] is None else f" ({row[f'{name}_low']:.2f} to {row[f'{name}_high']:.2f})"
    return f"{row[name]:.2f}{ends}"


def headline(row: Record) -> str:
    """What was found of a scheme at a size, in one plain sentence."""
    where = f"at {si(row['parameters'])} parameters and {si(row['tokens'])} tokens"
    versus = f"{row['scheme']} against {row['baseline']} {where}"
    if row["bound"] or row["speedup"] is None:
        if not row["bound"]:
            return f"{versus} is not resolved: {row['problem']}"
        more = "more" if row["bound"] == ">" else "less"
        return f"{versus}: a speed-up of {more} than {row['limit']:.3g}, as far as the curves reach"
    wall = "" if row["wall"] is None else f", {speedup_text(row, 'wall')} in wall time"
    what = "tokens" if row["along"] == "tokens" else "compute along the sizes"
    told = f"speed-up {speedup_text(row)} in {what}{wall}"
    if row["speedup_low"] is None:
        return f"{versus}: {told}; not resolved, one seed gives no interval"
    if row["speedup_low"] <= 1 <= row["speedup_high"]:
        return f"{versus} is not resolved at {count(row['n'], 'seed')}: {told}"
    holm = row["speedup_p_holm"]
    among = "" if holm < 0.05 else f", but not among all speed-ups here (Holm: p = {holm:.2g})"
    return f"{versus}: {told}, {count(row['n'], 'seed')}{among}"


def headlines(found: SavedLadder) -> list[tuple[str, str]]:
    """Of each scheme what was found at the largest size in a sentence, and the speed-up at the others."""
    said = []
    for scheme in found.shown:
        rows = [row for row in found.rows("speedups") if row["scheme"] == scheme]
        others = ", ".join(f"{speedup_text(row)} at {si(row['parameters'])}" for row in rows[:-1])
        for last in rows[-1:]:
            said.append((scheme, headline(last) + (f"; {others}" if others else "")))
    return said


def caption(found: SavedLadder) -> str:
    """Sizes, tokens, seeds and data: the caption of everything."""
    points, sizes = found.results["points"], list(found.sizes.values())
    sized = dict.fromkeys(si(row["parameters"]) for row in sizes)
    tokens = sorted(row["tokens"] for row in points)
    lengths = dict.fromkeys((si(tokens[0]), si(tokens[-1])))
    return " · ".join(
        [
            f"{', '.join(sized)} parameters",
            f"{' to '.join(lengths)} tokens",
            seeds_of(points),
            f"data {Path(str(found.results.get('data'))).name}",
        ]
    )


def outdated(found: SavedLadder) -> list[str]:
    """A sentence where runs of the folder have begun, or ended otherwise, since results.json was written: what extends
    it was interrupted, or goes on."""
    known = {run["run"]: run["status"] for run in found.results["runs"]}
    runs = [settings.parent for settings in found.path.glob("runs/*/config.yaml")]
    later = sum(known.get(run.name) != read_object(run / "summary.json").get("status", "failed") for run in runs)
    return [f"Not counted: {count(later, 'run')} that began or ended after results.json was written."] if later else []


def caveats(found: SavedLadder) -> list[str]:
    """What a reader must know before believing the numbers."""
    judged, said = {found.baseline, *found.shown}, outdated(found)
    points = [row for row in found.results["points"] if row["scheme"] in judged]
    if (least := min((row["n"] for row in points if row["n"]), default=SEEDS_FOR_A_CLAIM)) < SEEDS_FOR_A_CLAIM:
        said.append(f"{count(least, 'seed').capitalize()} at the least: a claim needs {SEEDS_FOR_A_CLAIM}.")
    for row in points:
        where = f"{row['scheme']} at {si(row['parameters'])} parameters, {si(row['tokens'])} tokens"
        if row["failed"]:
            said.append(f"{where}: {count(row['failed'], 'run')} did not finish.")
        if row["lr_interior"] is False:
            said.append(f"{where}: its best rate, {rate(row['lr'])}, is an edge of those tried.")
    said += name_other_sizes(
        ((row["scheme"], row["own_parameters"], row["parameters"])
         for row in points if row["own_parameters"] and row["parameters"]),
        "the baseline, by whose compute it is judged",
    )  # fmt: skip
    for table, name, samples in (("speedups", "speedup", "speed-ups"), ("trends", "slope", "slopes")):
        for row in found.rows(table):
            if times := row.get(f"{name}_scatter"):
                said.append(
                    f"{row['scheme']} at {size_of(found, row)}: its {samples} scatter {times:.2g} times as far over "
                    "seeds as the others, of whose spread its interval is partly made: it may be too narrow."
                )
    said += name_irregular_runs([run for run in found.results["runs"] if run["scheme"] in judged])
    if all(row["lr_interior"] is None for row in points):
        said.append("One learning rate at each size, by the rule: a scheme that wants another one pays for that.")
    shares = [row["tokens"] / row["parameters"] for row in found.sizes.values()]
    if shares and min(shares) < TOKENS_PER_PARAMETER:
        said.append(
            f"{min(shares):.2g} tokens per parameter: below {TOKENS_PER_PARAMETER} this is a ladder of early training."
        )
    if len(found.sizes) > 1:
        said.append("Depth, width, tokens, batch and rate grow together: sizes differ in all of them.")
    return said


def tables(found: SavedLadder) -> dict[str, tuple[Sequence[str], Cells]]:
    """By title: speed-ups, slopes, points, fits."""
    speed = [
        [row["scheme"], si(row["parameters"]), si(row["tokens"]), row["along"], str(row["n"]), speedup_text(row),
         tested(row, "speedup"), speedup_text(row, "wall")]
        for row in found.rows("speedups")
    ]  # fmt: skip
    slopes = [
        [row["scheme"], row["along"], size_of(found, row), str(row["n"]), "–" if row["slope"] is None else
         signed(row["slope"], 4) + ("" if row["slope_low"] is None else
         f" ({signed(row['slope_low'], 4)} to {signed(row['slope_high'], 4)})"),
         tested(row, "slope")]
        for row in found.rows("trends")
    ]  # fmt: skip
    points = [
        [row["scheme"], si(row["parameters"]), si(row["tokens"]), per_parameter(row), f"{row['compute']:.2e}",
         str(row["n"]), spread(row), paired_difference(row), chances(row), learning_rate(row)]
        for row in found.rows("points")
    ]  # fmt: skip
    fits = [
        [row["scheme"], row["along"], size_of(found, row), str(row["points"]),
         row["problem"] or f"E {within(row, 'E')}, a {within(row, 'a')}, rms {row['rms']:.4f}"]
        for row in found.rows("fits")
    ]  # fmt: skip
    return {
        "Speed-up": (["scheme", "parameters", "tokens", "along", "n", "speed-up (95 %)", "p, Holm", "wall time"],
                     speed),
        "Slope of the difference": (["scheme", "along", "size", "n", "nats per decade (95 %)", "p, Holm"], slopes),
        "Points": (["scheme", "parameters", "tokens", "per parameter", "FLOP", "n", "val loss", "difference (95 %)",
                    "p, Holm", "lr"], points),
        "Fits of E + A x^-a": (["scheme", "x", "size", "points", "found"], fits),
    }  # fmt: skip


def per_parameter(row: Record) -> str:
    """Tokens for each parameter, and for each of those that are not only looked up."""
    return ", ".join(f"{row['tokens'] / (row['parameters'] - left):.3g}" for left in (0, row["embedding"]))


def tested(row: Record, name: str) -> str:
    """p alone, and adjusted for all rows of the table."""
    return "–" if row[f"{name}_p"] is None else f"{row[f'{name}_p']:.2g}, {row[f'{name}_p_holm']:.2g}"


def size_of(found: SavedLadder, row: Record) -> str:
    return si(found.sizes[row["size"]]["parameters"]) if row["size"] in found.sizes else "all"


def within(row: Record, name: str) -> str:
    ends = f" ({row[f'{name}_low']:.3g} to {row[f'{name}_high']:.3g})" if f"{name}_low" in row else ""
    return f"{row[name]:.3g}{ends}"


def records(found: SavedLadder) -> list[Record]:
    """Every number of every point, with the speed-up where its budget is the longest; `speedup_n` are the seeds of
    that, `n` those of the point."""
    ends = {(row["scheme"], row["size"], row["tokens"]): row for row in found.rows("speedups")}
    rows = []
    for row in found.rows("points"):
        end = ends.get((row["scheme"], row["size"], row["tokens"]), {})
        rows.append({**end, "speedup_n": end.get("n"), **row})
    return rows


def text_lines(found: SavedLadder) -> list[str]:
    """The table of speed-ups, one sentence each, and what limits them."""
    titles, cells = tables(found)["Speed-up"]
    said = [text for _, text in headlines(found)] + ["", f"{LIMITED}:", *(f"- {limit}" for limit in caveats(found))]
    return [*align([titles, *cells], numbers=False), "", *wrap_all(said, WIDTH)]
