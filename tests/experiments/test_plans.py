"""Plans of experiments: every run that one asks for is a command that `geonorm train` takes."""

import runpy
import sys
from collections.abc import Callable, Mapping
from math import log2
from pathlib import Path
from typing import Any

import pytest

from geonorm.cli.arguments import read
from geonorm.lab.config import TrainCommand
from geonorm.lab.runs.records import Summary
from geonorm.schemes import parse

ROOT = Path(__file__).parents[2] / "experiments"
sys.path.insert(0, str(ROOT))  # where programme.py finds what plans import


def summary(**values: Any) -> Summary:
    return Summary.read({"status": "finished", "scheme": "", **values})


def plan_of(name: str) -> Any:
    return runpy.run_path(str(ROOT / name / "runs.py"))["plan"]


RUNS = {
    "007-clamp": 84, "008-parts": 84, "009-tokens": 168, "010-size": 30, "011-rate": 96, "016-streams": 75,
    "018-norms": 144, "019-again": 54, "020-fields": 80, "100-paper-125m": 18, "101-width-768": 6,
}  # fmt: skip
"""How many runs a plan asks for first; the others follow the results on record."""
PLANS = sorted(file.parent.name for file in ROOT.glob("*/runs.py"))


def finished(grid: Mapping[str, Any], loss: Callable[[float], float]) -> dict[str, Any]:
    rates = {name: float(name.rpartition("-lr")[2].partition("-seed")[0]) for name in grid}
    return {name: summary(lr=lr, val_loss=loss(lr)) for name, lr in rates.items()}


@pytest.mark.parametrize("experiment", PLANS)
def test_every_run_of_a_plan_is_a_command(experiment: str) -> None:
    """A branch stands behind the run that it branches from and has its settings; the name says rate and seed."""
    grid = plan_of(experiment)({})
    assert len(grid) == RUNS.get(experiment, len(grid)) > 0
    order = list(grid)
    for name, words in grid.items():
        assert parse(words[words.index("--scheme") + 1])
        rate, seed = (float(words[words.index(f"--{key}") + 1]) for key in ("lr", "seed"))
        assert name.endswith(f"-lr{rate:g}-seed{seed:.0f}")
        if "--branch" in words:
            prefix = words[words.index("--branch") + 1]
            assert order.index(prefix) < order.index(name)
            own, other = (each[each.index("--lr") :] for each in (words[: words.index("--branch")], grid[prefix]))
            assert own == other[: len(own)]
    options = {tuple(word for word in words if word.startswith("--")): words for words in grid.values()}
    for words in options.values():
        config = read(TrainCommand, "geonorm train", list(words))
        assert config.steps and config.shape(config.scheme).layers


def test_the_next_rates_of_a_row() -> None:
    own = runpy.run_path(str(ROOT / "rates.py"))
    start = [4e-3, 2e-3, 8e-3]
    losses = {2e-3: 3.1, 4e-3: 3.0, 8e-3: 2.9}
    assert own["extend"](losses, start) == [*start, 1.6e-2] and own["extend"]({2e-3: 3.0}, start) == start
    assert own["extend"](losses | {1.6e-2: 2.95}, start) == [*start, 1.6e-2]
    assert own["refine"](losses | {1.6e-2: 2.95}, [*start, 1.6e-2]) == [5.66e-3, 1.13e-2]
    known: dict[str, Any] = {}
    for _ in range(6):
        grid = own["plan_rows"](known, {"a": ["--scheme", "pre"]}, start, seeds=3)
        known = finished(grid, lambda lr: 3 + abs(log2(lr / 4e-3)) * 0.05)
    wanted = "0.002-seed0 0.004-seed0 0.008-seed0 0.004-seed1 0.004-seed2"
    assert {name.removeprefix("a-lr") for name in known} == set(wanted.split())


def test_the_tuning_seed_finds_the_rate_and_fresh_seeds_repeat_it() -> None:
    plan, known = plan_of("025-batch"), {}
    for _ in range(6):
        known = finished(plan(known), lambda lr: 3 + abs(log2(lr / 1.48e-2)))
    tuned = [name.rpartition("-lr")[2] for name in known if name.startswith("peri-lr")]
    assert tuned[:5] == [f"{rate}-seed1000000" for rate in ("0.00523", "0.0074", "0.0105", "0.0148", "0.0209")]
    assert tuned[5:] == [f"0.0148-seed{seed}" for seed in range(20, 25)]


def test_022_tunes_the_embedding_apart_and_then_asks_for_fresh_seeds() -> None:
    """A loss with its minimum at 2.61e-3 and 16 times that for the embedding, of Peri-LN 2 times, is found."""
    plan, known = plan_of("022-embedding-rate"), {}
    while missing := {name: words for name, words in plan(known).items() if name not in known}:
        for name, words in missing.items():
            rate, embedding = float(words[words.index("--lr") + 1]), words[words.index("--optim.rates") + 1]
            far = abs(log2(rate / 2.61e-3)) + abs(log2(float(embedding[6:]) / (2 if "peri" in name else 16)))
            known[name] = summary(lr=rate, val_loss=3.5 + 0.01 * far)
    final = [name for name in plan(known) if not name.endswith("-seed1000000")]
    assert len({name.rpartition("-e16-lr")[0] for name in final if "-e16-lr0.00261-" in name}) == 12
    assert {name for name in known if name.startswith("peri-e1-lr0.00261")}
    assert {name.rpartition("-seed")[2] for name in final} == {"20", "21", "22", "23", "24"}
    assert len(final) == 5 * (14 + 2), "every scheme at its best, two also with the embedding at the matrices' rate"


def test_024_takes_pre_norm_and_its_best_rate_to_every_width(capsys: Any) -> None:
    plan, known = plan_of("024-size-by-transfer"), {}
    for _ in range(4):
        known = finished(plan(known), lambda lr: 3 + abs(log2(lr / 4e-3)))
    assert len([name for name in known if name.startswith(("384-pre-lr0.00267-", "640-pre-lr0.0016-"))]) == 4
    main, run = runpy.run_path(str(ROOT / "programme.py"))["main"], Path("256-peri-lr0.002-seed0")
    assert main("command", ROOT / "024-size-by-transfer", run) == 0 and main("command", ROOT / "012-depth", run) == 2
    assert "--scheme peri --lr 0.002 --optim.rates embed=16 gain=1 --seed 0" in capsys.readouterr().out
