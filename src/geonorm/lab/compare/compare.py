"""A comparison: schemes x seeds under one recipe, each scheme at its best learning rate, as separate runs.

    DIR/config.yaml  DIR/configs/NAME.yaml  DIR/runs/NAME/  DIR/results.json

Finished runs are kept and skipped, so the same command goes on where it was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...devices import pick_device
from ...errors import CheckpointError, ConfigError
from ...schemes import parse, stored
from ...settings import check_unused, from_dict, to_dict
from ..config import CompareConfig, Grid, Ray, Slurm, TrainConfig
from ..distributed.ranks import ALONE
from ..load import Comparison, read_comparison
from ..resolve import check_memory, resolve
from ..runs.folder import (
    RunFolder,
    first_difference,
    is_unused,
    lock_folder,
    read_object,
    stored_settings,
    write_json,
    write_settings,
)
from ..runs.provenance import Provenance
from ..runs.records import Summary
from ..statistics.comparison import aggregate
from ..train.text import load_text
from .executors import Executor, LocalExecutor, Say, outcome
from .tune import Rates, run_config, tune, tuning_rows

GRID = {
    "schemes", "seeds", "lrs", "tune", "jobs", "launcher", "out", "depth", "rates", "log.to",
}  # fmt: skip
GRID |= {f"{group}.{f.name}" for group, kind in (("ray", Ray), ("slurm", Slurm)) for f in fields(kind)}
"""Settings that may differ when a comparison or a ladder is extended: which runs there are, not what a run is."""


def compare(schemes: Sequence[str] | str = ("pre", "geonorm"), **settings: Any) -> Comparison:
    """Train schemes side by side, as `geonorm compare` does, and return the comparison, as `geonorm.load` reads it.

        found = geonorm.compare(["pre", "geonorm"], data="my.txt", steps=400, seeds=3, out="runs/mine")
        found.rows[1].difference       # to the first scheme, paired by seed, nats a token
        found.frame()                  # a row per scheme: mean loss, difference, its interval
        found.frame("metrics")         # loss against step of every run
        found.plot("loss_curves")

    settings: those of the command line, groups as mappings (optim={"weight_decay": 0.1}). Runs that `out` holds already
    are kept. Raises ConfigError or DataError with one line before anything is written; a run that fails is a row whose
    status says so, and the same call tries it again.

    >>> geonorm.compare("pre", step=4)
    Traceback (most recent call last):
    geonorm.errors.ConfigError: unknown setting 'step': did you mean 'steps'? (valid: ...)
    """
    names = [schemes] if isinstance(schemes, str) else [str(scheme) for scheme in schemes]
    config: CompareConfig = from_dict(CompareConfig, {**settings, "schemes": names})
    check_unused(config, settings)
    run_comparison(config)
    return read_comparison(Path(config.out))


def run_comparison(
    config: CompareConfig, say: Say = print, live: bool = False, command: list[str] | None = None
) -> dict[str, Any]:
    """Run what is missing and return the content of results.json; `command` is what repeats it.

    Raises GeonormError for bad input before anything is written, and Interrupted after Ctrl-C with every run saved. A
    run that fails stops no other: its status says so, and the next call tries it again.
    """
    schemes = [str(parse(scheme)) for scheme in config.schemes]
    runs = [run_config(config, scheme, Rates(lr), 0) for lr in config.lrs for scheme in schemes]
    check_folders(runs)
    with begin_study(config, runs[: len(schemes)], say, live) as study:
        recipes = {scheme: parse(scheme).recipe() if config.recipe == "own" else {} for scheme in schemes}
        best = {scheme: Rates(recipe["lr"]) for scheme, recipe in recipes.items() if "lr" in recipe}
        others = [scheme for scheme in schemes if scheme not in best]
        if config.tune or len(config.lrs) > 1:
            best |= tune(study.executor, config, others)
        else:
            best |= dict.fromkeys(others, Rates(config.lrs[0]))
        seeds = range(config.seeds)
        study.executor.run([run_config(config, s, best[s], seed) for seed in seeds for s in schemes if s in best])
        return study.write_results(command)


@dataclass
class Study:
    """A comparison or ladder that is being made."""

    config: Grid
    executor: Executor
    schemes: list[str]
    """Those of this command, as they write themselves."""
    order: list[str]
    """All schemes of the folder, the baseline first."""

    def read_runs(self) -> list[tuple[TrainConfig, Summary]]:
        """Every run in the folder, and those asked for that left nothing: settings, and summary with the name of the
        run and whether it was asked for this time. Runs of schemes that are not come last."""
        runs = {Path(config.out).name: config for config in self.executor.requested}
        requested = set(runs)
        for folder in sorted(path.parent for path in Path(self.config.out).glob("runs/*/config.yaml")):
            runs[folder.name] = replace(RunFolder(folder).config(), out=str(folder))  # the folder may have been moved
        schemes = dict.fromkeys([*self.order, *(config.scheme for config in self.executor.requested)])
        order = {scheme: place for place, scheme in enumerate(schemes)}
        found = []
        for name, config in runs.items():
            summary = outcome(config)
            summary.run, summary.asked = name, name in requested
            found.append((config, summary))
        return sorted(found, key=lambda run: (order.get(run[1].scheme, len(order)), run[1].run))

    def write_results(self, command: list[str] | None) -> dict[str, Any]:
        """Write results.json. The first scheme of the order is the baseline."""
        runs = [summary for _, summary in self.read_runs()]
        results = {
            "command": command or self.repeat_command(),
            "order": self.order,
            "runs": [run.row() for run in runs],
            "schemes": [row.row() for row in aggregate(runs)],
            "tuning": [row.row() for row in tuning_rows(runs)],
        }
        write_json(Path(self.config.out) / "results.json", results)
        return results

    def repeat_command(self) -> list[str]:
        """The command that goes on with it, from its folder."""
        return ["geonorm", self.config.verb, "--config", str(Path(self.config.out) / "config.yaml")]


@contextmanager
def begin_study(config: Grid, samples: list[TrainConfig], say: Say, live: bool) -> Iterator[Study]:
    """Check all that can be known before anything is written, then lock the folder. `samples`: a run of each scheme,
    for each size there is."""
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
    with closing(make_executor(out, config, say, live)) as executor, lock_folder(out):
        order = order_schemes(out, schemes)
        if order[0] != schemes[0]:
            executor.say(f"differences are to {order[0]}, as before; to change that, name it behind another scheme")
        write_settings(out / "config.yaml", to_dict(config))
        yield Study(config, executor, schemes, order)


def make_executor(out: Path, config: Grid, say: Say, live: bool) -> Executor:
    """The executor of `config.launcher`. ConfigError if what it needs is not here; nothing is written yet."""
    if config.launcher == "local":
        return LocalExecutor(out, config, say, live)
    from .clusters import RayExecutor, SubmititExecutor

    return (RayExecutor if config.launcher == "ray" else SubmititExecutor)(out, config, say, live)


def order_schemes(out: Path, schemes: Sequence[str]) -> list[str]:
    """The order of tables, the baseline first. Those of this command lead, and what else has finished runs follows. But
    a command without the baseline only extends the folder: its schemes stand behind."""
    if not (out / "config.yaml").exists():
        return list(schemes)
    results, before = read_object(out / "results.json"), []
    with suppress(AttributeError, KeyError, TypeError):  # an edited file: runs are read from their own folders
        rows = results.get("schemes") or results.get("points") or []
        before = [results.get("baseline"), *(results.get("order") or [row["scheme"] for row in rows])]
    for scheme in stored_settings(out).get("schemes", ()):  # of a command that was stopped before its results, too
        with suppress(ConfigError):
            before.append(str(parse(stored(scheme, None, str(out)))))
    summaries = [RunFolder(path.parent).summary() for path in sorted((out / "runs").glob("*/summary.json"))]
    finished = {run.scheme for run in summaries if run and run.status == "finished"}
    before = [name for name in before if isinstance(name, str) and name in finished]
    extends = bool(before) and before[0] not in schemes
    return list(dict.fromkeys([*before, *schemes] if extends else [*schemes, *before]))


def check_folders(runs: Sequence[TrainConfig]) -> None:
    """ConfigError where two different runs would have one folder: rates that agree in all digits of its name."""
    known: dict[str, TrainConfig] = {}
    for run in runs:
        other = known.setdefault(run.out, run)
        if differs := first_difference(to_dict(other), to_dict(run)):
            raise ConfigError(f"two runs would be one, {Path(run.out).name}, with {differs}: name only one of the two")


def check_directory(out: Path, config: Grid) -> None:
    """CheckpointError, before anything is written, if `out` holds something else or runs with other settings."""
    if is_unused(out):
        return
    settings = stored_settings(out) if (out / "config.yaml").exists() else {}
    if "schemes" not in settings:
        raise CheckpointError(f"{out} is not empty and holds no {config.noun}; choose another --out")
    try:
        settings = to_dict(from_dict(type(config), settings))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{out / 'config.yaml'} does not hold the settings of a {config.noun}: {error}") from None
    if differs := first_difference(settings, to_dict(config), but=GRID):
        raise CheckpointError(f"{out} holds a {config.noun} with {differs}; choose another --out")
