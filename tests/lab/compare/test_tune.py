"""The protocol of tuning, on losses that are a function of the rates."""

from collections.abc import Callable
from functools import partial
from math import inf, isclose, log, sqrt
from typing import Any

from geonorm.lab.compare.config import CompareConfig
from geonorm.lab.compare.tune import Rates, best_rates, missing_rates, run_config, tune
from geonorm.lab.config import TUNING_SEED, Optim, TrainConfig, phase_of
from geonorm.lab.runs.records import Summary

from ...rows import each

Loss = Callable[[TrainConfig], float]


class FakeExecutor:
    """Ends each run at once, with the loss that a function says; inf is a divergence."""

    def __init__(self, loss: Loss) -> None:
        self.loss, self.summaries = loss, list[Summary]()
        self.configs, self.lines = list[TrainConfig](), list[str]()
        self.say = self.lines.append

    def run(self, configs: list[TrainConfig]) -> list[Summary]:
        self.configs += configs
        ended = []
        for config in configs:
            loss = self.loss(config)
            known = {"status": "finished", "val_loss": loss} if loss < inf else {"status": "diverged"}
            about = {"scheme": config.scheme, "lr": config.lr, "phase": phase_of(config.seed), "steps": config.steps}
            ended.append(Summary.read({**known, **about, "rates": config.optim.multipliers or None}))
        self.summaries += ended
        return ended


def valley(best: float, embed: float = 1.0) -> Loss:
    return lambda c: 3 + log(c.lr / best) ** 2 + log(c.optim.multipliers.get("embed", 1.0) / embed) ** 2


def tuned(loss: Loss, **settings: Any) -> tuple[Rates | None, FakeExecutor]:
    executor = FakeExecutor(loss)
    config = CompareConfig(**{"schemes": ["pre"], "lrs": [1e-3, 2e-3, 4e-3], "tune": True, "steps": 10, **settings})
    embed = config.optim.multipliers.get("embed")
    best = tune(executor, partial(run_config, config), ["pre"], config.lrs, embed, config.tune)  # type: ignore[arg-type]
    return best.get("pre"), executor


@each("best", [2e-3, 1.6e-2, 2.5e-4, 3e-3])
def test_the_best_has_neighbours_out_to_a_factor_of_2_on_both_sides(best: float) -> None:
    rates, executor = tuned(valley(best))
    assert rates is not None and abs(log(rates.lr / best)) <= log(2) / 4 * 1.01
    tried = [c.lr for c in executor.configs]
    for factor in (0.5, sqrt(0.5), sqrt(2), 2):
        assert any(isclose(lr, rates.lr * factor, rel_tol=0.01) for lr in tried), factor
    assert len(tried) == len(set(tried)) == len({c.out for c in executor.configs})
    assert all((c.seed, c.steps) == (TUNING_SEED, 10) for c in executor.configs)
    assert "end of the grid" not in executor.lines[-1]


def test_a_second_valley_within_a_factor_of_2_is_seen() -> None:
    rates, _ = tuned(lambda c: 2.9 if c.lr > 1.9e-3 else valley(1e-3)(c), lrs=[1e-3])
    assert rates is not None and rates.lr > 1.9e-3


def test_without_tune_nothing_is_added_and_an_edge_is_named() -> None:
    for best, lr, edge in ((2e-3, 2e-3, False), (1.0, 4e-3, True), (1e-9, 1e-3, True)):
        rates, executor = tuned(valley(best), tune=False)
        assert rates == Rates(lr) and len(executor.configs) == 3
        assert ("end of the grid" in executor.lines[-1]) == edge


def test_a_valley_that_never_comes_ends() -> None:
    rates, executor = tuned(valley(1e6))
    assert rates is not None and "end of the grid" in executor.lines[-1] and 16 <= len(executor.configs) <= 19


def test_divergence_ends_the_grid_and_is_looked_below() -> None:
    rates, executor = tuned(lambda c: valley(4e-3)(c) if c.lr <= 2e-3 else inf)
    assert rates == Rates(2e-3) and "end of the grid" not in executor.lines[-1]
    assert max(c.lr for c in executor.configs) == 4e-3
    rates, executor = tuned(lambda c: inf)
    assert rates is None and "no final runs" in executor.lines[-1]
    assert (lrs := sorted(c.lr for c in executor.configs))[0] < 1e-4 and lrs[-3:] == [1e-3, 2e-3, 4e-3]


@each("start, best", [(16, 16.0), (1, 4.0), (16, 64.0)])
def test_the_embedding_is_tuned_apart_where_it_is_named(start: float, best: float) -> None:
    rates, executor = tuned(valley(3e-3, best), optim=Optim(rates=[f"embed={start:g}", "head=2"]))
    assert rates is not None and rates.embed == best and abs(log(rates.lr / 3e-3)) < log(2) / 3
    multipliers = [c.optim.multipliers for c in executor.configs]
    assert {4 * best, best / 4} <= {m["embed"] for m in multipliers} and {m["head"] for m in multipliers} == {2}
    assert all(f"-embed{c.optim.multipliers['embed']:g}-" in c.out for c in executor.configs)
    assert rates.embed == best and "end of the grid" not in executor.lines[-1]
    lrs = [c.lr for c in executor.configs if c.optim.multipliers["embed"] == best]
    assert min(lrs) < 0.6 * rates.lr and max(lrs) > 1.9 * rates.lr, "also where the multiplier has moved"
    final = run_config(CompareConfig(optim=Optim(rates=["embed=1"])), "pre", rates, 0)
    assert final.optim.multipliers == {"embed": best} and phase_of(final.seed) == "final"


def test_a_rate_that_is_nearly_there_is_not_tried_again() -> None:
    assert missing_rates({1e-3: 2.0, 1.45e-3: 2.1, 0.7e-3: 2.1, 2.1e-3: 3.0, 0.52e-3: 3.0}, [1e-3]) == []
    assert missing_rates({}, [1e-3, 2e-3]) == [1e-3, 2e-3]
    assert best_rates({Rates(2e-3): 2.0, Rates(1e-3): 2.0}) == Rates(1e-3)
    assert missing_rates({1e-3: 2.0, 1.2e-3: inf}, [1e-3]) == [5e-4, 7.07e-4], "none above one that diverged"
