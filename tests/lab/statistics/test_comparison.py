"""The comparison protocol's statistics against known values, properties and simulation."""

import math
from typing import Any

import numpy as np
import pytest

from geonorm.lab.runs.records import Summary
from geonorm.lab.statistics.comparison import SEED_CAP, aggregate, choose, paired_interval, ratio_interval, seeds_needed

from ...rows import each


def summary(scheme: str, seed: int, loss: float | None, lr: float = 1e-3, **extra: Any) -> Summary:
    known = {
        "scheme": scheme, "seed": seed, "lr": lr, "status": "finished", "val_loss": loss, "val_bpb": 1.0,
        "tokens": 1000, "tokens_per_second": 100.0, "peak_memory_bytes": 10, "parameters": 7,
        "matmul_parameters": 5, "spikes": 1, "grad_spikes": 2,
    }  # fmt: skip
    return Summary.read(known | extra)


def test_paired_is_students_t_interval() -> None:
    interval = paired_interval([1.0, 2.0, 3.0])  # t(0.975, 2) = 4.302653, std 1
    assert interval.mean == 2.0 and interval.std == 1.0 and interval.n == 3
    assert interval.high == pytest.approx(2 + 4.302652729911275 / math.sqrt(3), rel=1e-9)
    assert not interval.resolved
    assert paired_interval([1.0, 1.1, 1.05]).resolved
    assert paired_interval([0.5])[:4] == (0.5, None, None, None)
    assert paired_interval([]).n == 0 and math.isnan(paired_interval([]).mean)
    assert not paired_interval([0.5]).resolved


def test_rounding_is_no_difference() -> None:
    losses = {"pre": 3.1, "other": math.nextafter(3.1, 4)}
    row = aggregate([summary(scheme, seed, loss) for seed in range(3) for scheme, loss in losses.items()])[1]
    assert (row.difference, row.resolved, row.p) == (0.0, False, 1.0)


@each("effect, expected", [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10), (2.0, 5)])
def test_seeds_needed_matches_published_tables(effect: float, expected: int) -> None:
    """The sample sizes G*Power gives for the paired t-test (two-sided, 5 %, power 0.8)."""
    assert seeds_needed(effect + np.array([-1.0, 0.0, 1.0])) == expected


def test_seeds_needed_says_nothing_where_nothing_can_be_said() -> None:
    for values in ([0.1], [0.1, 0.1], [-1.0, 1.0], [math.nan, 1.0]):
        assert seeds_needed(values) is None
    assert seeds_needed(1e-4 + np.array([-1.0, 0.0, 1.0])) == SEED_CAP + 1


@each("n, rank", [(6, 1), (10, 2), (20, 6), (40, 14), (100, 40)])
def test_ratio_interval_uses_the_tabulated_ranks(n: int, rank: int) -> None:
    """Order statistics of the sign test's 95 % interval, as tabulated."""
    median, low, high = ratio_interval(np.arange(n, 0, -1))
    assert (median, low, high) == ((n + 1) / 2, rank, n + 1 - rank)


def test_aggregate_pairs_by_seed() -> None:
    runs = [summary("pre", s, 3.0 + s) for s in range(3)]
    runs += [summary("geo", s, 2.9 + s + 0.001 * s) for s in (2, 0, 1)]
    base, geo = aggregate(runs)
    assert (base.scheme, base.difference, base.difference_low) == ("pre", 0.0, None)
    assert geo.difference == pytest.approx(-0.099) and geo.resolved and geo.pairs == 3
    assert geo.difference_low < geo.difference < geo.difference_high < 0
    assert geo.val_loss_std == pytest.approx(1.001)  # far wider than the paired difference
    assert geo.spikes == 3 and geo.grad_spikes == 6 and geo.failed == 0


def test_a_seed_that_was_run_twice_is_one_observation() -> None:
    runs = [summary(scheme, s, loss + 0.01 * s) for scheme, loss in (("pre", 3.0), ("geo", 2.9)) for s in range(3)]
    for once, twice in zip(aggregate(runs), aggregate(runs * 2), strict=True):
        for key in ("n", "val_loss_mean", "val_loss_std", "val_loss_low", "moderated_low", "moderated_p"):
            assert getattr(twice, key) == getattr(once, key), key


def test_aggregate_chooses_each_schemes_best_learning_rate() -> None:
    losses = {1e-4: 3.5, 1e-3: 3.0, 1e-2: 3.2}
    runs = [summary("pre", s, loss, lr) for lr, loss in losses.items() for s in range(2)]
    runs += [summary("geo", s, -math.log(lr), lr) for lr in losses for s in range(2)]
    pre, geo = aggregate(runs)
    assert pre.lr == 1e-3 and pre.lr_interior is True and pre.lrs == pytest.approx(losses)
    assert geo.lr == 1e-2 and geo.lr_interior is False
    assert aggregate([summary("pre", 0, 3.0)])[0].lr_interior is None


def test_tuning_runs_decide_the_rate_and_stay_out_of_the_mean() -> None:
    tune = [summary("pre", 0, loss, lr, phase="tune") for lr, loss in [(1e-4, 3.3), (1e-3, 2.9), (1e-2, 3.0)]]
    final = [summary("pre", s, 3.1, 1e-3, phase="final") for s in range(3)]  # above the runner-up's tuning run
    row = aggregate(tune + final)[0]
    assert row.lr == 1e-3 and row.n == 3 and row.val_loss_mean == pytest.approx(3.1)
    assert row.lrs[1e-3] == 2.9 and row.lr_interior is True


def test_a_rate_is_chosen_among_losses_of_one_length() -> None:
    """Half as long, 1e-3 is at 3.2, and as long as all finals at 2.8; 2e-3, added later, has a final run alone."""
    runs = [summary("pre", 0, loss, lr, phase="tune") for lr, loss in [(1e-3, 3.2), (4e-3, 3.3)]]
    runs += [summary("pre", 0, 2.8, 1e-3), summary("pre", 0, 2.9, 2e-3)]
    row = aggregate(runs)[0]
    assert row.lr == 1e-3 and row.lr_interior is False and row.lrs == {1e-3: 2.8, 2e-3: 2.9}


def test_tuning_runs_do_not_hide_that_every_final_run_diverged() -> None:
    tune = [summary("pre", 0, 3.0 + lr, lr, phase="tune") for lr in (1e-3, 1e-2)]
    final = [summary("pre", seed, None, status="diverged", phase="final") for seed in range(2)]
    row = aggregate(tune + final)[0]
    assert row.n == 0 and row.val_loss_mean is None and row.failed == 2
    assert aggregate(tune)[0].n == 0  # tuned so far: a shorter run never stands in for a final one


def test_runs_that_failed_are_counted_and_a_lucky_survivor_does_not_choose_the_rate() -> None:
    runs = [summary("pre", s, 3.0, 1e-3) for s in range(2)]
    runs += [summary("pre", 0, 2.5, 1e-2), summary("pre", 1, math.nan, 1e-2)]
    runs += [summary("geo", 0, None, status="diverged"), summary("geo", 1, 2.0, status="interrupted")]
    pre, geo = aggregate(runs)
    assert pre.lr == 1e-3 and pre.failed == 1
    assert geo.n == 0 and geo.failed == 2 and geo.val_loss_mean is None and geo.difference is None
    assert geo.statuses == {"diverged": 1, "interrupted": 1}


def test_aggregate_takes_another_baseline() -> None:
    runs = [summary("pre", 0, 3.0), summary("geo", 0, 2.9)]
    pre, geo = aggregate(runs, baseline="geo")
    assert geo.difference == 0.0 and pre.difference == pytest.approx(0.1)
    assert not pre.resolved and pre.seeds_needed is None
    with pytest.raises(ValueError, match="no run of the baseline"):
        aggregate(runs, baseline="post")
    assert aggregate([]) == []


def test_a_baseline_that_may_be_absent_leaves_no_difference_to_another_scheme() -> None:
    runs = [
        summary(scheme, seed, loss + seed / 50) for scheme, loss in (("geo", 3.0), ("peri", 2.9)) for seed in (0, 1)
    ]
    for row in aggregate(runs, "pre", absent=True):
        assert row.baseline == "pre" and row.difference is None and row.p is None and not row.pairs
        assert row.moderated_difference is None
        assert row.val_loss_mean == pytest.approx({"geo": 3.01, "peri": 2.91}[row.scheme])


def test_runs_of_two_lengths_are_not_averaged() -> None:
    """0.05 above at 1,000 tokens and 0.05 below at 8,000: the mean of both, level, is the loss of neither."""
    runs = [
        summary(scheme, seed, loss + seed / 100, tokens=tokens)
        for tokens, gap in ((1000, 0.05), (8000, -0.05))
        for scheme, loss in (("pre", 3.0), ("geo", 3.0 + gap))
        for seed in range(3)
    ]
    pre, geo = aggregate(runs)
    assert geo.difference == pytest.approx(-0.05) and (pre.n, geo.n, geo.tokens) == (3, 3, 8000)


def test_a_rate_is_chosen_by_the_seeds_that_rates_share() -> None:
    """Seed 0, at one rate alone, is an unlucky one; on the seeds that both have, its rate is 0.005 lower."""
    runs = [
        summary("pre", seed, loss, lr=lr)
        for lr, losses in ((3e-3, (3.345, 3.320, 3.320)), (6e-3, (None, 3.325, 3.325)))
        for seed, loss in enumerate(losses)
        if loss is not None
    ]
    assert choose(runs).lr == 3e-3 and choose(runs).lrs[6e-3] == 3.325
    apart = [summary("pre", seed, 3.2 + seed // 2 / 10, 3e-3 + seed // 2 * 3e-3) for seed in range(3)]
    assert choose(apart).lr == 3e-3  # no seed tells: the means do
    tuned = [(4.0, 3e-3, 2.0), (16.0, 3e-3, 3.0), (16.0, 6e-3, 2.9)]  # the multiplier of the final run decides
    runs = [summary("pre", 7, loss, lr, phase="tune", rates={"embed": rate}) for rate, lr, loss in tuned]
    assert choose([*runs, summary("pre", 0, 3.1, 6e-3, rates={"embed": 16.0})]).lrs == {3e-3: 3.0, 6e-3: 2.9}


def test_tuning_runs_of_two_lengths_do_not_choose_together() -> None:
    """Two folders in one report: the longer tuning lacks a rate that has ended, so the final runs decide."""
    tuned = [(3e-3, 4.0, 100), (1e-2, 4.2, 100), (1e-2, 3.6, 500), (3e-2, 3.9, 500)]
    runs = [summary("pre", 7, loss, lr=lr, phase="tune", tokens=tokens) for lr, loss, tokens in tuned]
    choice = choose([*runs, summary("pre", 0, 3.2, lr=3e-3), summary("pre", 0, 3.4, lr=1e-2)])
    assert choice.lr == 3e-3 and choice.lrs == {3e-3: 3.2, 1e-2: 3.4}
    assert choose([*runs[2:], summary("pre", 0, 3.4, lr=1e-2)]).lrs == {1e-2: 3.6, 3e-2: 3.9}
