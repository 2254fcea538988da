"""What docs/results.md tells is what the runs on record give: when seeds come, the page has to follow."""

from __future__ import annotations

import runpy
from collections.abc import Iterator

import pytest

from geonorm.lab.runs.folder import slug
from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.comparison import paired_interval, usable
from geonorm.lab.statistics.spikes import count_apart
from geonorm.report.style import signed
from geonorm.report.tables import paired_difference

from ..rows import each
from .made import ROOT, runs_on_record, table_of

RAW = "(entry=embedding)"
READ = "geonorm(entry=embedding, input=norm)"
UNIT = "geonorm(entry=embedding, update=unit)"
EQUAL = UNIT[:-1] + ", retraction=projection, decay=sqrt, decay_on=update, index=sublayer)"
CANDIDATE = "geonorm(update=unit, decay=sqrt, index=sublayer)"
LAST, MEAN = "val_loss", "val_loss_average"
Side = tuple[str, str, float | None]
"""How the names of its runs begin (* is the scheme), their scheme, their rate (None: that of its final runs)."""
TOLD = """
    017-paper-recipe books- books- averaged too: raw geonorm 7.2e-3 − raw pre 2.55e-3; raw geonorm 7.2e-3 − pre
        1.8e-3; geonorm 1.8e-3 − pre 1.8e-3; unit 3.6e-3 − raw pre 2.55e-3; unit 3.6e-3 − raw geonorm 7.2e-3; equal
        3.6e-3 − raw pre 2.55e-3; equal 3.6e-3 − pre 1.8e-3; raw geonorm 7.2e-3 − raw post 1.8e-3; raw geonorm
        7.2e-3 − raw deepnorm 1.8e-3; raw geonorm 7.2e-3 − raw sandwich 1.8e-3; raw geonorm 7.2e-3 − raw peri
        1.8e-3; raw post 1.8e-3 − raw pre 2.55e-3; raw deepnorm 1.8e-3 − raw pre 2.55e-3; raw sandwich 1.8e-3 − raw
        pre 2.55e-3; raw peri 1.8e-3 − raw pre 2.55e-3; read 1.8e-3 − raw pre 2.55e-3; read 1.8e-3 − pre 1.8e-3
    017-paper-recipe books- books-: read 1.8e-3 − raw pre 1.8e-3; raw geonorm 7.2e-3 − raw pre 7.2e-3; raw geonorm
        3.6e-3 − raw pre 3.6e-3; unit 3.6e-3 − raw geonorm 3.6e-3
    017-paper-recipe latex- latex- averaged too: raw geonorm 7.2e-3 − raw pre 1.8e-3
    012-depth 36- 36-: geonorm 8e-3 − pre 8e-3
    009-tokens books-*-1M- books-*-1M-: raw geonorm 6e-3 − raw pre 6e-3; geonorm 6e-3 − pre 6e-3; pre 6e-3 − raw pre
        6e-3
    009-tokens books-*-16M- books-*-16M-: raw geonorm 3e-3 − raw pre 1.5e-3; geonorm 3e-3 − pre 1.5e-3; pre 1.5e-3 −
        raw pre 1.5e-3; geonorm 3e-3 − raw pre 1.5e-3
    009-tokens latex-*-4M- latex-*-4M-: raw geonorm 6e-3 − raw pre 6e-3; geonorm 6e-3 − pre 3e-3
    009-tokens length256- length256-: raw geonorm 6e-3 − raw pre 3e-3
    009-tokens length512- length512-: raw geonorm 6e-3 − raw pre 6e-3
    011-rate 64-cold- 64-warm-: raw geonorm 1.6e-2 − raw geonorm 1.6e-2; raw pre 4e-3 − raw pre 8e-3; geonorm 8e-3 −
        geonorm 8e-3; pre 8e-3 − pre 8e-3; post 4e-3 − post 8e-3; deepnorm 8e-3 − deepnorm 8e-3
    011-rate 64-cold- 64-cold-: raw geonorm 1.6e-2 − raw pre 4e-3
    011-rate 64-warm- 64-warm-: raw geonorm 1.6e-2 − raw pre 8e-3
    013-candidate confirm- confirm-: geonorm 6e-3 − pre 6e-3; geonorm 6e-3 − raw pre 6e-3; peri 6e-3 − pre 6e-3;
        peri 6e-3 − raw pre 6e-3; deepnorm 3e-3 − pre 6e-3; pre 6e-3 − raw pre 6e-3; pre 6e-3 − candidate 6e-3; keel
        6e-3 − candidate 6e-3; raw pre 6e-3 − candidate 6e-3; geonorm 6e-3 − candidate 6e-3; peri 6e-3 − candidate
        6e-3; deepnorm 3e-3 − candidate 6e-3
    013-candidate confirm- equal-confirm-: pre 6e-3 − candidate 6e-3; geonorm 6e-3 − candidate 6e-3; peri 6e-3 −
        candidate 6e-3
    019-again 1.0M- 1.0M-: raw geonorm 1.2e-2 − pre 6e-3; raw geonorm 1.2e-2 − raw pre 4.2e-3; geonorm 6e-3 − raw
        geonorm 1.2e-2; geonorm 6e-3 − pre 6e-3; deepnorm 6e-3 − pre 6e-3; peri 6e-3 − pre 6e-3
    019-again 0.4M- 0.4M-: raw geonorm 2.4e-2 − pre 6e-3; geonorm 6e-3 − pre 6e-3
    015-conversion raw-abrupt- raw-baseline-: raw geonorm − raw pre
    015-conversion raw-match- raw-baseline-: raw geonorm − raw pre
    015-conversion sphere-abrupt- sphere-baseline-: geonorm − pre
    015-conversion sphere-match- sphere-baseline-: geonorm − pre
"""
"""By experiment and the beginnings of the names of both sides' runs: differences on the page, of the last weights
or of the averaged ones, too. "raw" schemes are without embedding norm."""
SHORT = {"read": READ, "unit": UNIT, "equal": EQUAL, "candidate": CANDIDATE}


def side(start: str, words: str) -> Side:
    """A side of a difference: "raw pre 2.55e-3"."""
    name, _, rate = words.strip().rpartition(" ") if words.strip()[-1].isdigit() else (words.strip(), "", "")
    scheme = SHORT.get(name, f"{name.removeprefix('raw ')}{RAW}" if name.startswith("raw ") else name)
    return start.replace("*", slug(scheme)), scheme, float(rate) if rate else None


def cases() -> Iterator[tuple[str, Side, Side, str]]:
    for line in TOLD.replace("\n        ", " ").strip().splitlines():
        places, _, pairs = line.strip().partition(": ")
        experiment, first, second, *more = places.split()
        for pair in pairs.split("; "):
            one, other = pair.split(" − ")
            for measure in (LAST, MEAN) if more else (LAST,):
                yield experiment, side(first, one), side(second, other), measure


def runs_of(known: list[Summary], side: Side) -> dict[int | None, Summary]:
    """By seed. The rates of 017 are rounded on the page."""
    start, scheme, lr = side
    found = [
        run for run in known
        if run.run.startswith(start) and run.scheme == scheme and run.phase == "final" and usable(run)
        and "nogains" not in run.run and ("confirm-" not in start or run.seed >= 10)
        and (lr is None or abs(run.lr / lr - 1) < 0.01)
    ]  # fmt: skip
    assert len({run.lr for run in found}) == 1, (side, [run.run for run in found])
    return {run.seed: run for run in found}


@each("experiment, first, second, measure", cases())
def test_a_difference_is_that_of_the_runs(experiment: str, first: Side, second: Side, measure: str) -> None:
    known = runs_on_record(experiment)
    one, two = runs_of(known, first), runs_of(known, second)
    pairs = [getattr(one[seed], measure) - getattr(two[seed], measure) for seed in sorted(one.keys() & two.keys())]
    found = paired_interval(pairs)
    assert found.low is not None and found.high is not None
    told = f"{signed(found.mean)} ({signed(found.low)} to {signed(found.high)})"
    assert told in (ROOT.parent / "docs" / "results.md").read_text(encoding="utf-8")


def test_norms_at_width_4_are_told_as_their_runs_are() -> None:
    made = table_of("018-norms")
    cells = made["read_cells"](ROOT / "018-norms")
    told = (ROOT.parent / "docs" / "results.md").read_text(encoding="utf-8")
    for scheme in ("pre", "geonorm", "post", "peri"):
        (rows,) = made["judge"]({scheme: cells["books", 4, scheme]}).values()
        assert f"`{scheme}` {made['paired_difference'](rows[1])}" in told


def test_single_runs_of_009_are_those_of_its_page() -> None:
    """Losses of the first seed, each at its best rate for the budget, the longest at that of the one before."""
    known = runs_on_record("009-tokens")
    page = (ROOT / "009-tokens" / "README.md").read_text(encoding="utf-8")
    equal = EQUAL.replace("entry=embedding, ", "")
    schemes = (
        "pre",
        equal,
        "peri",
        "keel",
        "deepnorm",
        "lns",
        "geonorm(retraction=0.5, max_angle=pi)",
        "geonorm",
        f"pre{RAW}",
    )
    rates: dict[str, float] = {}
    for budget in ("1M", "2M", "4M", "8M", "16M"):
        row = []
        for scheme in schemes:
            start = f"books-{slug(scheme)}-{budget}-lr"
            own = {run.lr: run.val_loss for run in known if run.run.startswith(start) and run.seed == 0}
            rates[scheme] = rates[scheme] if budget == "16M" else min(own, key=own.__getitem__)
            row.append(own[rates[scheme]])
        cells = [f"{row[0]:.4f}", *(f"{loss:.4f} ({signed(loss - row[0])})" for loss in row[1:])]
        assert f"| {' | '.join(cells)} |" in page, budget


@pytest.mark.parametrize("page", ["docs/results.md", "docs/clamp.md", "experiments/020-fields/README.md"])
def test_effects_of_fields_are_those_of_the_table(page: str) -> None:
    """Those that pages tell of 020: each stands in table.md as mean and interval, in two ways of writing one."""
    table = (ROOT / "020-fields" / "table.md").read_text(encoding="utf-8")
    text = (ROOT.parent / page).read_text(encoding="utf-8")
    for field in ("input=norm", "entry=sphere", "after=norm", "update=unit"):
        row = next(line for line in table.splitlines() if f"`{field}`" in line)
        effect = row.split(" | ")[3]
        assert effect in text or effect.replace(" (", ", ").rstrip(")") in text


def test_whose_spikes_they_are_follows_the_runs() -> None:
    """The numbers of 012 and 017 in results.md and in 012's README; spikes.md is what spikes.py makes."""
    made = runpy.run_path(str(ROOT / "spikes.py"))
    told = (ROOT.parent / "docs" / "results.md").read_text()
    readme = " ".join((ROOT / "012-depth" / "README.md").read_text().split())
    for experiment, start in (("012-depth", ""), ("017-paper-recipe", "books-")):
        runs = made["read_known"](ROOT / experiment, start)
        assert (ROOT / experiment / "spikes.md").read_text() == "\n".join(made["tabulate"](runs)) + "\n"
        total, apart = sum(run.spikes for run in runs), count_apart(runs, runs, "spikes")
        if experiment == "017-paper-recipe":
            assert f"of {total} in the {len(runs)} runs whose steps are known, {total - apart} are the batch's" in told
            continue
        own = {run.run: run for run in runs if count_apart([run], runs, "spikes")}
        deep = [run for name, run in own.items() if name.startswith("36-")]
        failed = [run.run for run in runs if run.run.startswith("36-") and run.val_loss > 5.5]
        assert f"Of {total} spikes of the loss {total - apart} are the batch's" in readme and len(runs) == 107
        assert f"Of the {apart} others {count_apart(deep, runs, 'spikes')} are in seven runs" in readme
        assert len(deep) == 7 and len(failed) == 6 and set(failed) < set(own)
        assert all(1948 in run.spike_steps for run in runs if run.seed == 0)
        assert f"{count_apart([own[name] for name in failed], runs, 'spikes')} of these" in told
        assert not any(name.startswith("4-") for name in own)


def test_the_size_is_told_as_its_trends_say() -> None:
    """The differences and slopes that the runs of 010 give stand in its trends.md, its page and results.md."""
    folder = ROOT / "010-size"
    made = runpy.run_path(str(folder / "runs.py"))
    ladders = runpy.run_path(str(ROOT / "trends.py"))["open_ladders"](folder, made).values()
    pages = [file.read_text(encoding="utf-8") for file in (folder / "README.md", ROOT.parent / "docs" / "results.md")]
    trends = (folder / "trends.md").read_text(encoding="utf-8")
    told = [paired_difference(row) for ladder in ladders for row in ladder.rows("points") if row.pairs]
    gaps = [gap for gap in told if gap != "baseline"]
    assert len(gaps) == 5 and all(gap in page for gap in gaps for page in (trends, *pages))
    for ladder in ladders:
        (row,) = ladder.rows("trends")
        low, mean, high = (signed(value, 3) for value in (row.slope_low, row.slope, row.slope_high))
        assert all(f"{mean} ({low} to {high})" in page for page in pages)
        assert f"| {row.n} | {signed(row.slope, 4)} (" in trends
