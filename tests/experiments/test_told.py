"""What docs/results.md tells is what the runs on record give: when seeds come, the page has to follow."""

from __future__ import annotations

import runpy

import pytest

from geonorm.lab.runs.folder import slug
from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.comparison import paired_interval, usable
from geonorm.lab.statistics.spikes import count_apart
from geonorm.report.style import signed
from geonorm.report.tables import paired_difference

from ..rows import each
from .made import ROOT, runs_on_record, table_of

RAW, SPHERE = "(entry=embedding)", ""
READ = "geonorm(entry=embedding, input=norm)"
UNIT = "geonorm(entry=embedding, update=unit)"
EQUAL = UNIT[:-1] + ", retraction=projection, decay=sqrt, decay_on=update, index=sublayer)"
CANDIDATE = "geonorm(update=unit, decay=sqrt, index=sublayer)"
LAST, MEAN = "val_loss", "val_loss_average"
Side = tuple[str, str, float | None]
"""How the names of its runs begin, their scheme, their rate (None: the only one of its final runs)."""


def recipe(scheme: str, lr: float) -> Side:
    return "books-", scheme, lr


def other(experiment: str, first: Side, second: Side) -> tuple[str, Side, Side, str]:
    return experiment, first, second, LAST


GEO, PRE, STRONGEST = recipe(f"geonorm{RAW}", 7.2e-3), recipe(f"pre{RAW}", 2.55e-3), recipe("pre", 1.8e-3)
CASES = [
    *(
        ("017-paper-recipe", first, second, measure)
        for first, second in (
            (GEO, PRE),
            (GEO, STRONGEST),
            (recipe("geonorm", 1.8e-3), STRONGEST),
            (recipe(UNIT, 3.6e-3), PRE),
            (recipe(UNIT, 3.6e-3), GEO),
            (recipe(EQUAL, 3.6e-3), PRE),
            (recipe(EQUAL, 3.6e-3), STRONGEST),
            *((GEO, recipe(f"{name}{RAW}", 1.8e-3)) for name in ("post", "deepnorm", "sandwich", "peri")),
            *((recipe(f"{name}{RAW}", 1.8e-3), PRE) for name in ("post", "deepnorm", "sandwich", "peri")),
        )
        for measure in (LAST, MEAN)
    ),
    *(
        ("017-paper-recipe", first, second, measure)
        for first, second in (
            (recipe(READ, 1.8e-3), PRE),
            (recipe(READ, 1.8e-3), STRONGEST),
            (("latex-", f"geonorm{RAW}", 7.2e-3), ("latex-", f"pre{RAW}", 1.8e-3)),
        )
        for measure in (LAST, MEAN)
    ),
    other("017-paper-recipe", recipe(READ, 1.8e-3), recipe(f"pre{RAW}", 1.8e-3)),
    other("017-paper-recipe", GEO, recipe(f"pre{RAW}", 7.2e-3)),
    other("017-paper-recipe", recipe(f"geonorm{RAW}", 3.6e-3), recipe(f"pre{RAW}", 3.6e-3)),
    other("017-paper-recipe", recipe(UNIT, 3.6e-3), recipe(f"geonorm{RAW}", 3.6e-3)),
    other("012-depth", ("36-", "geonorm", 8e-3), ("36-", "pre", 8e-3)),
    *(
        other(
            "009-tokens", (f"books-{slug(one)}-{tokens}M-", one, lr), (f"books-{slug(two)}-{tokens}M-", two, other_lr)
        )
        for one, lr, two, other_lr, tokens in (
            (f"geonorm{RAW}", 6e-3, f"pre{RAW}", 6e-3, 1),
            (f"geonorm{RAW}", 3e-3, f"pre{RAW}", 1.5e-3, 16),
            ("geonorm", 6e-3, "pre", 6e-3, 1),
            ("geonorm", 3e-3, "pre", 1.5e-3, 16),
            ("pre", 6e-3, f"pre{RAW}", 6e-3, 1),
            ("pre", 1.5e-3, f"pre{RAW}", 1.5e-3, 16),
            ("geonorm", 3e-3, f"pre{RAW}", 1.5e-3, 16),
        )
    ),
    *(
        other("009-tokens", (f"latex-{slug(one)}-4M-", one, 6e-3), (f"latex-{slug(two)}-4M-", two, lr))
        for one, two, lr in ((f"geonorm{RAW}", f"pre{RAW}", 6e-3), ("geonorm", "pre", 3e-3))
    ),
    *(
        other("009-tokens", (f"length{length}-", f"geonorm{RAW}", 6e-3), (f"length{length}-", f"pre{RAW}", lr))
        for length, lr in ((256, 3e-3), (512, 6e-3))
    ),
    *(
        other("011-rate", ("64-cold-", one, lr), (f"64-{warmup}-", two, other_lr))
        for one, lr, warmup, two, other_lr in (
            (f"geonorm{RAW}", 1.6e-2, "warm", f"geonorm{RAW}", 1.6e-2),
            (f"pre{RAW}", 4e-3, "warm", f"pre{RAW}", 8e-3),
            ("geonorm", 8e-3, "warm", "geonorm", 8e-3),
            ("pre", 8e-3, "warm", "pre", 8e-3),
            ("post", 4e-3, "warm", "post", 8e-3),
            ("deepnorm", 8e-3, "warm", "deepnorm", 8e-3),
            (f"geonorm{RAW}", 1.6e-2, "cold", f"pre{RAW}", 4e-3),
        )
    ),
    other("011-rate", ("64-warm-", f"geonorm{RAW}", 1.6e-2), ("64-warm-", f"pre{RAW}", 8e-3)),
    *(
        other("013-candidate", ("confirm-", first, lr), ("confirm-", second, 6e-3))
        for first, lr, second in (
            ("geonorm", 6e-3, "pre"),
            ("geonorm", 6e-3, f"pre{RAW}"),
            ("peri", 6e-3, "pre"),
            ("peri", 6e-3, f"pre{RAW}"),
            ("deepnorm", 3e-3, "pre"),
            ("pre", 6e-3, f"pre{RAW}"),
            *((name, 6e-3, CANDIDATE) for name in ("pre", "keel", f"pre{RAW}", "geonorm", "peri")),
            ("deepnorm", 3e-3, CANDIDATE),
        )
    ),
    *(
        other("013-candidate", ("confirm-", name, 6e-3), ("equal-confirm-", CANDIDATE, 6e-3))
        for name in ("pre", "geonorm", "peri")
    ),
    *(
        other("019-again", (f"{length}-", first, lr), (f"{length}-", second, other_lr))
        for length, first, lr, second, other_lr in (
            ("1.0M", f"geonorm{RAW}", 1.2e-2, "pre", 6e-3),
            ("1.0M", f"geonorm{RAW}", 1.2e-2, f"pre{RAW}", 4.2e-3),
            ("1.0M", "geonorm", 6e-3, f"geonorm{RAW}", 1.2e-2),
            ("1.0M", "geonorm", 6e-3, "pre", 6e-3),
            ("1.0M", "deepnorm", 6e-3, "pre", 6e-3),
            ("1.0M", "peri", 6e-3, "pre", 6e-3),
            ("0.4M", f"geonorm{RAW}", 2.4e-2, "pre", 6e-3),
            ("0.4M", "geonorm", 6e-3, "pre", 6e-3),
        )
    ),
    *(
        other("015-conversion", (f"{entry}-{way}-", f"geonorm{of}", None), (f"{entry}-baseline-", f"pre{of}", None))
        for entry, of in (("raw", RAW), ("sphere", SPHERE))
        for way in ("abrupt", "match")
    ),
]


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


@each("experiment, first, second, measure", CASES)
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
        PRE[1],
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
