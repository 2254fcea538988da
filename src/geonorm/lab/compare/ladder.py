"""A ladder: schemes x sizes x token budgets x seeds, as separate runs by the executors of comparisons.

    DIR/config.yaml  DIR/configs/NAME.yaml  DIR/runs/NAME/  DIR/results.json

The run of each budget branches from that of the next smaller one, at the step where this begins to cool down: all
budgets of one size, scheme, rate and seed share a prefix of training.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from ...errors import ConfigError
from ...models.config import DecoderConfig, preset
from ...models.decoder import Decoder
from ...schemes import Scheme, parse
from ...schemes.origin import stored
from ...settings import check_unused, from_dict
from ..config import Shared, TrainConfig
from ..load import Ladder
from ..plan import count_looked_up
from ..runs.folder import slug
from ..statistics.speedup import judge_ladder
from ..train.validation import FINAL_TOKENS
from .compare import begin_study, device_of_runs, order_schemes, read_schemes
from .executors import Say
from .ladder_config import LadderConfig, Size
from .tune import round_rate


def ladder(schemes: Sequence[str | Scheme] | str | Scheme = ("pre", "geonorm"), **settings: Any) -> Ladder:
    """Train schemes at several sizes and lengths, as `geonorm ladder` does, and return the ladder, as `geonorm.load`
    reads it.

        found = geonorm.ladder(["pre", "geonorm"], depth=[3, 4, 6], data="my.txt", out="runs/ladder")
        found.frame()                  # a row per scheme and size: effective speed-up over the first, its interval
        found.frame("points")          # loss of every scheme, size and budget
        found.plot()

    settings: those of the command line, groups as mappings. Runs that `out` holds already are kept. Raises ConfigError
    or DataError with one line before anything is written.

    >>> geonorm.ladder("pre", depth=[4, 6], budgets=["many"])
    Traceback (most recent call last):
    geonorm.errors.ConfigError: --budgets takes tokens for each parameter (20) or in all (500k, 4M), got 'many'
    """
    names = [str(rule) for rule in read_schemes(schemes)]
    if "budgets" in settings:
        budgets = settings["budgets"] if isinstance(settings["budgets"], (list, tuple)) else [settings["budgets"]]
        settings["budgets"] = [str(budget) for budget in budgets]
    config: LadderConfig = from_dict(LadderConfig, {**settings, "schemes": names})
    check_unused(config, settings)
    return Ladder(Path(config.out), train_ladder(config))


def train_ladder(
    config: LadderConfig, say: Say = print, live: bool = False, command: list[str] | None = None
) -> dict[str, Any]:
    """Run what is missing and return the content of results.json; `command` is what repeats it. Raises what a
    comparison raises."""
    schemes, config = [str(parse(scheme)) for scheme in config.schemes], config.on_device(device_of_runs(config))
    shape = config.shape(find_baseline(Path(config.out), schemes))
    sizes = [
        config.size(depth, lambda size: outline(replace(shape, **size)).parameter_count()) for depth in config.depth
    ]
    if ruled := [scheme for scheme in schemes if config.recipe == "own" and "lr" in parse(scheme).recipe()]:
        raise ConfigError(f"the recipe of {ruled[0]} sets lr, which a ladder's rule does: take --recipe shared")
    make_run = partial(ladder_run, config)
    samples = [make_run(size, scheme, 1.0, 0, 0) for scheme in config.schemes for size in sizes]
    with begin_study(config, samples, say, live) as study:
        for budget in range(len(config.budgets)):
            grid = product(sizes, range(config.seeds), config.rates, schemes)
            runs = [make_run(size, scheme, rate, seed, budget) for size, seed, rate, scheme in grid]
            study.executor.run(list({run.out: run for run in runs}.values()))
        summaries = [replace(summary, **about(run, summary.parameters)) for run, summary in study.read_runs()]
        tables = {"data": config.data} | judge_ladder(summaries, study.order[0])
        return study.write_results(summaries, tables, command)


def ladder_run(config: LadderConfig, size: Size, scheme: str, rate: float, seed: int, budget: int) -> TrainConfig:
    """One run; `budget` counts from the shortest."""
    shared = {f.name: getattr(config, f.name) for f in fields(Shared)}
    shape = {"layers": size.depth, "width": size.width, "heads": size.heads, "hidden": size.hidden}
    shared["model"] = replace(config.model, **shape)
    if config.evaluation.whole is None:  # of all runs the same text, however long they are
        shared["evaluation"] = replace(config.evaluation, whole=False, tokens=config.evaluation.tokens or FINAL_TOKENS)
    if len(size.steps) > 1 and config.optim.warmup_steps is None:
        shared["optim"] = replace(config.optim, warmup_steps=round(config.optim.warmup * size.steps[0]))
    if config.optim.rates:
        shared["optim"] = shared["optim"].at_width(size.width / preset(config.preset).width)
    lr = round_rate(rate * size.lr)
    folders = [
        str(Path(config.out) / "runs" / f"{size.name}-{steps}-{slug(scheme)}-lr{lr:g}-seed{seed}")
        for steps in size.steps[: budget + 1]
    ]
    return TrainConfig(
        **shared, steps=size.steps[budget], batch_size=size.batch_size, scheme=scheme, lr=lr, seed=seed,
        out=folders[-1], branch=folders[-2] if budget else None,
    )  # fmt: skip


def find_baseline(out: Path, schemes: Sequence[str]) -> str:
    """The baseline: its parameters decide how many tokens a size gets. A folder that is extended keeps its own, whose
    code runs only where that is allowed."""
    first = order_schemes(out, schemes)[0]
    return first if first in schemes else str(parse(stored(first, None, str(out))))


def outline(shape: DecoderConfig) -> Any:
    """The model of a shape on the meta device."""
    with torch.device("meta"):
        return Decoder(shape)


def about(config: TrainConfig, parameters: int | None = None) -> dict[str, Any]:
    """Where a run stands on the ladder, by its settings. Its scheme is not built, because the folder may name one of
    which the code is not here. parameters: as the run counted them; if it never did, those under Pre-Norm."""
    shape = config.shape("pre")
    model = outline(shape)
    return {
        "size": f"d{shape.layers}w{shape.width}",
        "depth": shape.layers,
        "width": shape.width,
        "batch_size": config.batch_size,
        "planned_tokens": config.steps * (config.batch_size or 0) * shape.context,
        "parameters": parameters or model.parameter_count(),
        "embedding": count_looked_up(model),
    }
