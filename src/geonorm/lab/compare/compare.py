"""A comparison: schemes x learning rates x seeds under one recipe, as separate runs (team.py says where).

    DIR/config.yaml  DIR/configs/NAME.yaml  DIR/runs/NAME/  DIR/results.json

Finished runs are kept and skipped, so the same command goes on where it was stopped. With several learning rates, every
scheme first gets short runs on a seed that no final run uses; `tune` extends the grid until the best is not at an end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import Any

from ...devices import pick_device
from ...errors import CheckpointError, ConfigError
from ...schemes import parse, stored
from ...settings import from_dict, to_dict
from ..config import TUNING_SEED, CompareConfig, Grid, Ray, Recipe, Slurm, TrainConfig
from ..distributed.ranks import ALONE
from ..resolve import check_memory, resolve
from ..runs.folder import (
    RunFolder,
    first_difference,
    is_unused,
    lock_folder,
    read_object,
    slug,
    stored_settings,
    write_json,
    write_settings,
)
from ..runs.provenance import Provenance
from ..statistics.comparison import aggregate
from ..train.text import load_text
from .executors import Say, Team, make_team, outcome

EXTENSIONS = 6
"""How often --tune may extend a grid at one end before it gives up and says so."""


def compare(
    config: CompareConfig, say: Say = print, live: bool = False, command: list[str] | None = None
) -> dict[str, Any]:
    """Runs what is missing and returns the content of results.json; `command` is what repeats it.

    Raises GeonormError for bad input before anything is written, and Interrupted after Ctrl-C with every run saved. A
    run that fails stops no other: its status says so, and the next call tries it again.
    """
    schemes = [str(parse(scheme)) for scheme in config.schemes]
    runs = [run_config(config, scheme, lr, 0) for lr in config.lrs for scheme in schemes]
    check_folders(runs)
    with begin_study(config, runs[: len(schemes)], say, live) as team:
        best = own_rates(config)
        left = [scheme for scheme in schemes if scheme not in best]
        best |= tune(team, config, left) if len(config.lrs) > 1 else dict.fromkeys(left, config.lrs[0])
        team.run([run_config(config, s, best[s], seed) for seed in range(config.seeds) for s in schemes if s in best])
        return write_results(team, command or repeat_command(config))


@contextmanager
def begin_study(config: Grid, samples: list[TrainConfig], say: Say, live: bool) -> Iterator[Team]:
    """Checks all that can be known before anything is written, then locks the folder and hands out the team.
    `samples`: a run of each scheme, for each size there is."""
    out = Path(config.out)
    if config.launcher == "local" or not config.runtime.device.startswith("cuda"):  # elsewhere there may be GPUs
        device = pick_device(config.runtime.device)
        for sample in samples if config.launcher == "local" and device.type == "cpu" else ():
            check_memory(sample.shape(sample.scheme))
    for sample in samples:
        resolve(sample, None if config.launcher == "submitit" else ALONE)  # a job of Slurm may have several ranks
    schemes = [str(parse(scheme)) for scheme in config.schemes]
    for scheme in schemes:
        if schemes.count(scheme) > 1:
            raise ConfigError(f"--schemes names {scheme} twice")
    check_directory(out, config)
    # once, here: the runs find the tokens in the cache
    text = load_text(max(samples, key=lambda sample: sample.batch_size))
    provenance = Provenance.of(config, text.sha256, text.fingerprint, dict.fromkeys(run.scheme for run in samples))
    for settings in sorted((out / "runs").glob("*/config.yaml")):
        provenance.check(settings.parent)
    with closing(make_team(out, config, say, live)) as team, lock_folder(out):
        team.schemes, team.order = schemes, order_schemes(out, schemes)
        if team.order[0] != schemes[0]:
            team.say(f"differences are to {team.order[0]}, as before; to change that, name it behind another scheme")
        write_settings(out / "config.yaml", to_dict(config))
        yield team


def order_schemes(out: Path, schemes: Sequence[str]) -> list[str]:
    """The order of tables, the baseline first. Those of this command lead, and what else has finished runs follows. But
    a command without the baseline only extends the folder: its schemes stand behind."""
    if not (out / "config.yaml").exists():
        return list(schemes)
    found, before = read_object(out / "results.json"), []
    with suppress(AttributeError, KeyError, TypeError):  # an edited file: runs are read from their own folders
        rows = found.get("schemes") or found.get("points") or []
        before = [found.get("baseline"), *(found.get("order") or [row["scheme"] for row in rows])]
    for scheme in stored_settings(out).get("schemes", ()):  # of a command that was stopped before its results, too
        with suppress(ConfigError):
            before.append(str(parse(stored(scheme, None, str(out)))))
    ended = [RunFolder(path.parent).summary() or {} for path in sorted((out / "runs").glob("*/summary.json"))]
    finished = {run["scheme"] for run in ended if run.get("status") == "finished"}
    before = [name for name in before if isinstance(name, str) and name in finished]
    kept = bool(before) and before[0] not in schemes
    return list(dict.fromkeys([*before, *schemes] if kept else [*schemes, *before]))


def repeat_command(config: Grid) -> list[str]:
    """The command that goes on with a study, from its folder."""
    return ["geonorm", config.verb, "--config", str(Path(config.out) / "config.yaml")]


def own_rates(config: CompareConfig) -> dict[str, float]:
    """Learning rates that recipes of schemes set: under `--recipe own` there is nothing to tune about them."""
    found = {str(s): s.recipe().get("lr") for s in map(parse, config.schemes) if config.recipe == "own"}
    return {scheme: lr for scheme, lr in found.items() if lr is not None}


def tune(team: Team, config: CompareConfig, schemes: list[str]) -> dict[str, float]:
    """The best learning rate of each scheme by validation loss of the tuning runs. Schemes that never finish one are
    left out and said so."""
    lrs = sorted(config.lrs)
    ratio = (lrs[-1] / lrs[0]) ** (1 / (len(lrs) - 1))
    grids = {scheme: list(lrs) for scheme in schemes}
    losses: dict[tuple[str, float], float] = {}
    for _ in range(EXTENSIONS + 1):
        wanted = [(s, lr) for s in schemes for lr in grids[s] if (s, lr) not in losses]
        if not wanted:
            break
        runs = [run_config(config, s, lr, TUNING_SEED, tuning=True) for s, lr in wanted]
        for (scheme, lr), summary in zip(wanted, team.run(runs), strict=True):
            usable = summary["status"] == "finished" and summary["val_loss"] is not None
            losses[scheme, lr] = summary["val_loss"] if usable else inf
        for scheme in schemes if config.tune else ():
            ranked = sorted(grids[scheme], key=lambda lr: (losses[scheme, lr], lr))  # the lowest, if all diverge
            if ranked[0] == max(grids[scheme]):
                grids[scheme].append(round_rate(ranked[0] * ratio))
            elif ranked[0] == min(grids[scheme]):
                grids[scheme].append(round_rate(ranked[0] / ratio))
    best = {}
    for scheme in schemes:
        tried = {lr: losses[scheme, lr] for lr in grids[scheme] if (scheme, lr) in losses}
        if min(tried.values()) == inf:
            team.say(f"{scheme}: no learning rate finished; it gets no final runs")
            continue
        best[scheme] = min(tried, key=tried.__getitem__)
        edge = "" if min(tried) < best[scheme] < max(tried) else " (at the end of the grid)"
        team.say(f"{scheme}: best learning rate {best[scheme]:g}{edge}")
    return best


def round_rate(value: float) -> float:
    """Three digits: what a person would type, and the same number in file names, YAML and tables."""
    return float(f"{value:.3g}")


def run_config(config: CompareConfig, scheme: str, lr: float, seed: int, tuning: bool = False) -> TrainConfig:
    """One run of a comparison."""
    shared = {f.name: getattr(config, f.name) for f in fields(Recipe)}
    if tuning:
        shared["steps"] = config.steps_of_tuning
    name = f"{slug(scheme)}-lr{lr:g}-seed{seed}" + ("-tune" if tuning else "")
    out = str(Path(config.out) / "runs" / name)
    return TrainConfig(**shared, scheme=scheme, lr=lr, seed=seed, out=out)


def check_folders(runs: Sequence[TrainConfig]) -> None:
    """ConfigError where two different runs would have one folder: rates that agree in all digits of its name."""
    made: dict[str, TrainConfig] = {}
    for run in runs:
        other = made.setdefault(run.out, run)
        if differs := first_difference(to_dict(other), to_dict(run)):
            raise ConfigError(f"two runs would be one, {Path(run.out).name}, with {differs}: name only one of the two")


GRID = {
    "schemes", "seeds", "lrs", "tune", "jobs", "launcher", "out", "depth", "rates", "log.to",
}  # fmt: skip
GRID |= {f"{group}.{f.name}" for group, kind in (("ray", Ray), ("slurm", Slurm)) for f in fields(kind)}
"""What may differ when a comparison or a ladder is extended: which runs there are, not what a run is."""


def check_directory(out: Path, config: Grid) -> None:
    """CheckpointError, before anything is written, if `out` holds something else or runs with other settings."""
    if is_unused(out):
        return
    stored = stored_settings(out) if (out / "config.yaml").exists() else {}
    if "schemes" not in stored:
        raise CheckpointError(f"{out} is not empty and holds no {config.noun}; choose another --out")
    try:
        stored = to_dict(from_dict(type(config), stored))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{out / 'config.yaml'} does not hold the settings of a {config.noun}: {error}") from None
    if differs := first_difference(stored, to_dict(config), but=GRID):
        raise CheckpointError(f"{out} holds a {config.noun} with {differs}; choose another --out")


def write_results(team: Team, command: list[str]) -> dict[str, Any]:
    """Reads every run of a comparison and writes results.json. The first scheme of the order is the baseline."""
    runs = [summary for _, summary in read_runs(team)]
    results = {"command": command, "order": team.order, "runs": runs, "schemes": aggregate(runs)}
    write_json(team.out / "results.json", results)
    return results


def read_runs(team: Team) -> list[tuple[TrainConfig, dict[str, Any]]]:
    """Every run in the folder of a study, and those asked for that left nothing: settings, and summary with the name of
    the run and whether it was asked for this time. Runs of schemes that are not come last."""
    runs = {Path(config.out).name: config for config in team.asked}
    asked = set(runs)
    for folder in sorted(path.parent for path in (team.out / "runs").glob("*/config.yaml")):
        runs[folder.name] = replace(RunFolder(folder).config(), out=str(folder))  # the folder may have been moved
    schemes = dict.fromkeys([*team.order, *(config.scheme for config in team.asked)])
    order = {scheme: place for place, scheme in enumerate(schemes)}
    found = [(config, {**outcome(config), "run": name, "asked": name in asked}) for name, config in runs.items()]
    return sorted(found, key=lambda run: (order.get(run[1]["scheme"], len(order)), run[1]["run"]))
