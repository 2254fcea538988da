"""A grid: a comparison for each combination of values of some settings, all in one folder, with one table and curves.

    --grid model.width=64,128 optim.weight_decay=0,0.1 "scheme.alpha=0.5,1,2"

`scheme.FIELD` is a field of every scheme that is compared, any other name a setting of the runs. A cell of the grid is
the comparison with one value of each; its own settings say so (`grid`, one value each), and so do those of its runs
(`cell`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, get_origin

from ...errors import ConfigError, unknown
from ...nn.config import DecoderConfig
from ...schemes import parse, stored
from ...schemes.grammar import read_number, set_field
from ...schemes.registry import format_scheme
from ...settings import convert_value, flag, from_dict, options, to_dict
from ..config import TRAINED_WITH, CompareConfig, Recipe, TrainConfig
from ..needs import NEEDS
from ..runs.run import VOLATILE

OWN = "scheme."
"""What settings begin with that are fields of the schemes."""
FIXED = ("data", "objective", "tokens.tokenizer", "tokens.cache", "model.vocab_size")
"""What all runs of a comparison have in common: the text, and what is learned of it."""

SPEED = tuple(f"runtime.{name}" for name in ("device", "threads", "compile", "recompute", "tensorboard"))
"""Settings under which a run ends with the same loss but for the order of sums."""
LENGTH = {"steps", "batch_size", "preset"}
"""Settings by which a run is long enough to be judged on the whole held-out text, or is not."""
BY_ITSELF = {"lr": "--lrs", "lrs": "--lrs", "seed": "--seeds", "seeds": "--seeds", "scheme": "--schemes"}
"""What options of the comparison say."""


def make_cells(config: CompareConfig) -> list[CompareConfig]:
    """The comparisons that a grid is made of, schemes as they write themselves; without a grid the comparison alone.
    ConfigError, in one line, for what is no setting, has no such field, or makes more runs than --max-runs."""
    if config.max_runs != CompareConfig.max_runs and not config.grid:
        raise ConfigError("--max-runs is of a grid, and there is none: give --grid, or leave it out")
    axes = split_axes(config.grid)
    if len(axes) < len(config.grid):
        raise ConfigError("--grid names a setting twice; its values stand together, with commas between")
    values = {name: read_values(name, text) for name, text in axes.items()}
    cells = [make_cell(config, dict(zip(values, chosen, strict=True))) for chosen in product(*values.values())]
    for name, (what, there) in ((name, NEEDS[name]) for name in values if name in NEEDS):
        if not all(map(there, cells)):
            raise ConfigError(f"--grid over {name} compares a run with itself: it needs {what}")
    check_recipes(config, cells, values)
    runs = count_runs(config, cells)
    if config.grid and runs > config.max_runs:
        raise ConfigError(
            f"--grid makes {runs} runs, more than --max-runs {config.max_runs}: name fewer values, or more runs"
        )
    return judge_alike(config, cells)


def check_recipes(config: CompareConfig, cells: Sequence[CompareConfig], names: Iterable[str]) -> None:
    """ConfigError where the recipe of a scheme sets what the grid varies: its cells would be one run."""
    for scheme in dict.fromkeys(scheme for cell in cells for scheme in cell.schemes) if config.recipe == "own" else ():
        recipe = parse(scheme).recipe()
        sets = {f"optim.{name}" for name in recipe} | ({"optim.warmup_steps"} if "warmup" in recipe else set())
        if name := next((name for name in names if name in sets), None):
            raise ConfigError(
                f"--grid over {name} compares {scheme} with itself: its recipe sets it; take --recipe shared"
            )


def split_axes(grid: Sequence[str]) -> dict[str, str]:
    """The values of each setting of a grid, as they were typed."""
    return {name: values for name, _, values in (text.partition("=") for text in grid)}


def list_values(text: str) -> list[str]:
    return [value.strip() for value in text.split(",")] if text else []


def count_runs(config: CompareConfig, cells: Sequence[CompareConfig]) -> int:
    """Runs of all cells, those that --tune may add left out."""
    each = config.seeds + (len(config.lrs) if len(config.lrs) > 1 else 0)
    return sum(len(cell.schemes) * each for cell in cells)


def describe_grid(config: CompareConfig, cells: Sequence[CompareConfig]) -> str:
    """What a grid comes to, in a line."""
    runs = count_runs(config, cells)
    more = " and those that --tune adds" if config.tune else ""
    return f"grid: {len(cells)} cells x {len(config.schemes)} schemes, {runs} runs{more} (--max-runs {config.max_runs})"


def read_values(name: str, text: str) -> list[str]:
    """The values of a setting as they were typed."""
    known = options(Recipe)
    if name not in known and not name.startswith(OWN):
        if option := BY_ITSELF.get(name.rpartition(".")[2]):
            raise ConfigError(f"--grid cannot hold {name}: every cell has those that {option} names")
        listed = [*known, f"{OWN}FIELD"]
        raise ConfigError(unknown("setting of --grid", name, listed).split(" (valid:")[0] + " (see --help-all)")
    if name in FIXED:
        raise ConfigError(f"--grid cannot change {name}: runs of a comparison learn one text, in the same tokens")
    if name.startswith("evaluation."):
        raise ConfigError(f"--grid cannot change {name}: cells are compared on one held-out text, measured alike")
    if name in (*VOLATILE, *SPEED) or name.startswith(("log.", "checkpoint.")):
        raise ConfigError(f"--grid over {name} compares a run with itself: it changes no number")
    if name in known and get_origin(known[name].hint) in (list, tuple):
        raise ConfigError(f"--grid cannot hold {name}, whose values are lists: make a comparison for each")
    found = list_values(text)
    if not all(found) or not found:
        raise ConfigError(f"--grid {name} needs values with commas between: {name}=1,2")
    if len({str(read_value(name, value)) for value in found}) < len(found):
        raise ConfigError(f"--grid {name} has a value twice")
    return found


def read_value(name: str, text: str) -> Any:
    """What a value stands for; of a field of schemes its number, else its text, `post()` being `post`."""
    if name.startswith(OWN):
        number = read_number(text)
        return text.removesuffix("()") if number is None else number
    return convert_value(flag(name), text, options(Recipe)[name].hint, typed=True)


def make_cell(config: CompareConfig, chosen: Mapping[str, str]) -> CompareConfig:
    """The comparison at one value of each setting."""
    tree, schemes = to_dict(config), [parse(scheme) for scheme in config.schemes]
    for name, text in chosen.items():
        if name.startswith(OWN):
            schemes = [set_field(scheme, name.removeprefix(OWN), text) for scheme in schemes]
            continue
        *groups, leaf = name.split(".")
        place = tree
        for group in groups:
            place = place[group]
        place[leaf] = read_value(name, text)
    cell = [f"{name}={text}" for name, text in chosen.items()]
    names = [str(scheme) for scheme in schemes]
    if cell and len(set(names)) < len(names):
        raise ConfigError(f"two --schemes are the same with {', '.join(cell)}")
    made: CompareConfig = from_dict(CompareConfig, {**tree, "schemes": names, "grid": cell})
    check_optimizer(config, made, chosen)
    return made


def judge_alike(config: CompareConfig, cells: list[CompareConfig]) -> list[CompareConfig]:
    """The cells, judged on the same text. The part that is spread over it is other text for windows of another length:
    where contexts differ, all of it. ConfigError where that is not wanted."""
    axes, whole = split_axes(config.grid), config.evaluation.whole
    if "model.context" in axes or len({cell.shape("pre").context for cell in cells}) > 1:
        if whole is False:
            raise ConfigError(
                "--evaluation.whole false would judge cells of several contexts on different text: leave it out, and "
                "the whole held-out text judges them"
            )
        whole = True
    elif whole is None and not LENGTH.isdisjoint(axes):
        whole = False
    return [replace(cell, evaluation=replace(cell.evaluation, whole=whole)) for cell in cells]


def check_same_text(runs: Sequence[TrainConfig]) -> str | None:
    """What differs, in words, where runs of a grid, those in its folder first, are judged on other parts of the text:
    a command may name presets of one context, an earlier one those of others."""
    parts = [
        "all of it" if run.evaluation.whole else f"a part in windows of {run.shape('pre').context} tokens"
        for run in runs
    ]
    other = next((part for part in parts if part != parts[0]), None)
    return f"runs judged on other held-out text ({parts[0]}, not {other})" if other else None


def check_optimizer(config: CompareConfig, cell: CompareConfig, chosen: Mapping[str, str]) -> None:
    """ConfigError for a preset on the grid that comes with another optimizer than the comparison has from its own:
    whether that one was asked for is not known."""
    before, own = (TRAINED_WITH.get(preset, "adamw") for preset in (config.preset, cell.preset))
    if own != before == config.optim.name and "optim.name" not in chosen:
        raise ConfigError(
            f"--grid preset={cell.preset} comes with {own}, this comparison with {before}: put the optimizer on the "
            f"grid, too (optim.name={before})"
        )


def check_same_axes(before: Sequence[str], runs: Sequence[TrainConfig], now: Sequence[str]) -> str | None:
    """What differs, in words, where a folder's grid is over other settings than the one asked for, in another order, or
    spells a value in another way: its runs would all be made again, under other names. The folder's settings are those
    of its last command; the values of earlier ones are known by its runs."""
    old, new = split_axes(before), split_axes(now)
    if list(old) != list(new):
        return f"{f'a grid over {chr(32).join(old)}' if old else 'no grid'}, not {' '.join(new) or 'without'}"
    known: dict[tuple[str, str], str] = {}
    for name, values in (axis for grid in (before, *(run.cell for run in runs)) for axis in split_axes(grid).items()):
        for text in list_values(values) if name in new else ():
            known.setdefault((name, str(read_value(name, text))), text)
    for name, values in new.items():
        for text in list_values(values):
            if (spelled := known.get((name, str(read_value(name, text))), text)) != text:
                return f"{name}={spelled} on its grid, not {text}"
    return None


def check_one_text(samples: Sequence[TrainConfig]) -> None:
    """ConfigError where cells would have tokenizers of different size (a preset says so, too)."""
    shapes = [sample.shape(sample.scheme) for sample in samples]
    sizes = {shape.vocab_size for shape in shapes if isinstance(shape, DecoderConfig)}
    if len(sizes) > 1:
        raise ConfigError(
            f"--grid makes vocabularies of {' and '.join(map(str, sorted(sizes)))} tokens: give --model.vocab_size"
        )


def curve_of(scheme: str, cell: Sequence[str]) -> str:
    """The scheme without the fields that its cell sets: what one curve is of. It may be that of a run in the folder,
    which runs no code that is not trusted: itself, then, or where its source is gone."""
    own = [text.partition("=")[0].removeprefix(OWN) for text in cell if text.startswith(OWN)]
    if not own:
        return scheme
    try:
        found = parse(stored(scheme, None, "a run"))
    except ConfigError:
        return scheme
    return format_scheme(found, but=own)
