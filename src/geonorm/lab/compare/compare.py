"""A comparison: schemes x seeds under one recipe, each scheme at its best learning rate, as separate runs.

    DIR/config.yaml  DIR/configs/NAME.yaml  DIR/runs/NAME/  DIR/results.json

Finished runs are kept and skipped, so the same command goes on where it was stopped.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from ...devices import pick_device
from ...elsewhere import MAIN, digest, forget_changed, place_of, run_text, source_of
from ...errors import CheckpointError, ConfigError, require
from ...output import columns
from ...schemes import Scheme, parse, schemes_in, sources_of
from ...schemes.registry import REGISTRY
from ...settings import check_unused, from_dict, to_dict
from ..config import TrainConfig
from ..distributed.ranks import ALONE, World
from ..load import Comparison, read_comparison
from ..plan import fit_to_device
from ..resolve import Resolved, resolve
from ..runs.folder import (
    RunFolder,
    first_difference,
    is_unused,
    lock_folder,
    read_object,
    stored_settings,
    write_atomic,
    write_json,
    write_settings,
)
from ..runs.provenance import check_made_from, sources_in
from ..runs.records import Summary
from ..statistics.comparison import aggregate
from ..train.text import load_text
from .config import CompareConfig, Grid, Ray, Slurm
from .executors import Executor, LocalExecutor, Say, StackedExecutor, outcome
from .tune import Rates, run_config, tune

MAY_DIFFER = {
    "schemes", "seeds", "lrs", "tune", "jobs", "launcher", "out", "depth", "rates", "log.to",
    *(f"{group}.{f.name}" for group, kind in (("ray", Ray), ("slurm", Slurm)) for f in fields(kind)),
}  # fmt: skip
"""Settings that may differ when a comparison or a ladder is extended: they say which runs there are, not what a run
is."""


def compare(schemes: Sequence[str | Scheme] | str | Scheme = ("pre", "geonorm"), **settings: Any) -> Comparison:
    """Train schemes side by side, as `geonorm compare` does, and return the comparison, as `geonorm.load` reads it.

        found = geonorm.compare(["pre", "geonorm"], data="my.txt", steps=400, seeds=3, out="runs/mine")
        found.rows[1].difference       # to the first scheme, paired by seed, nats a token
        found.frame()                  # a row per scheme: mean loss, difference, its interval
        found.frame("metrics")         # loss against step of every run
        found.plot("loss_curves")

    schemes: texts or objects, also of a class of a notebook or a script, whose source is saved with the comparison.
    settings: those of the command line, groups as mappings (optim={"weight_decay": 0.1}). Runs that `out` holds already
    are kept. Without `out`, the folder is runs/compare-ID, another one for other settings, schemes or their sources.
    Raises ConfigError or DataError with one line before anything is written; a run that fails is a row whose status
    says so, and the same call tries it again.

    >>> geonorm.compare("pre", step=4)
    Traceback (most recent call last):
    geonorm.errors.ConfigError: unknown setting 'step': did you mean 'steps'? (valid: ...)
    """
    rules = read_schemes(schemes)
    config: CompareConfig = from_dict(CompareConfig, {**settings, "schemes": [str(rule) for rule in rules]})
    check_unused(config, settings)
    if "out" not in settings:
        sources = {place: about["source"] for rule in rules for place, about in sources_of(rule).items()}
        identity = json.dumps([to_dict(config), sources], sort_keys=True)
        config = replace(config, out=f"{config.out}-{digest(identity)[:8]}")
    runs = run_comparison(config)["runs"]
    failed = [run["run"] for run in runs if run["status"] not in ("finished", "diverged")]
    if len(failed) < len(runs):  # the report stands above the laboratory
        print("\n".join(import_module("geonorm.report").summarize(Path(config.out), columns(100))))
    if failed:
        print(f"runs that did not finish: {', '.join(failed)}; the same call tries them again")
    print(f"results: geonorm.load({config.out!r})")
    return read_comparison(Path(config.out))


def read_schemes(schemes: Sequence[str | Scheme] | str | Scheme) -> list[Scheme]:
    """Schemes that were given in Python, with their sources as they are now. ConfigError for a class of a notebook or a
    script that another process could not import: every run is a process of its own."""
    forget_changed()
    rules = [parse(scheme) for scheme in ([schemes] if isinstance(schemes, (str, Scheme)) else schemes)]
    for kind in (kind for rule in rules for kind in schemes_in(rule) if kind.__module__ == "__main__"):
        source, name = source_of(kind), kind.__qualname__
        if source is None or kind in REGISTRY.values():
            why = "leave out its @register" if source else "its source cannot be read here"
            raise ConfigError(f"runs cannot import {name}: {why}; or write it to a file and give './file.py:{name}'")
        run_text(place_of(kind), source)
    return rules


def run_comparison(
    config: CompareConfig, say: Say = print, live: bool = False, command: list[str] | None = None
) -> dict[str, Any]:
    """Run what is missing and return the content of results.json; `command` is what repeats it.

    Raises GeonormError for bad input before anything is written, and Interrupted after Ctrl-C with every run saved. A
    run that fails stops no other: its status says so, and the next call tries it again.
    """
    schemes, config = [str(parse(scheme)) for scheme in config.schemes], config.on_device(device_of_runs(config))
    make_run = partial(run_config, config)
    samples = [make_run(scheme, Rates(config.lrs[0]), 0) for scheme in schemes]
    with begin_study(config, samples, say, live) as study:
        recipes = {scheme: parse(scheme).recipe() if config.recipe == "own" else {} for scheme in schemes}
        best = {scheme: Rates(recipe["lr"]) for scheme, recipe in recipes.items() if "lr" in recipe}
        others = [scheme for scheme in schemes if scheme not in best]
        if config.tune:
            best |= tune(study.executor, make_run, others, config.lrs, config.optim.multipliers.get("embed"))
        elif len(config.lrs) > 1:
            best |= tune(study.executor, make_run, others, config.lrs, extend=False)
        else:
            best |= dict.fromkeys(others, Rates(config.lrs[0]))
        study.executor.run([make_run(s, best[s], seed) for seed in range(config.seeds) for s in schemes if s in best])
        runs = [summary for _, summary in study.read_runs()]
        return study.write_results(runs, {"schemes": [row.row() for row in aggregate(runs)]}, command)


@dataclass
class StudyFolder:
    """The folder of a comparison or ladder that is being made."""

    out: Path
    verb: str
    executor: Executor
    order: list[str]
    """All schemes of the folder, the baseline first."""

    def read_runs(self) -> list[tuple[TrainConfig, Summary]]:
        """Every run in the folder, and requested ones that left nothing: settings, and a summary with the run's name
        and whether it was requested this time. In the order of schemes; runs of schemes outside of it come last."""
        configs = {Path(config.out).name: config for config in self.executor.requested}
        requested = set(configs)
        for folder in sorted(path.parent for path in self.out.glob("runs/*/config.yaml")):
            configs[folder.name] = replace(RunFolder(folder).config(), out=str(folder))  # the folder may have moved
        schemes = list(dict.fromkeys([*self.order, *(config.scheme for config in self.executor.requested)]))
        runs = []
        for name, config in configs.items():
            summary = outcome(config)
            summary.run, summary.requested = name, name in requested
            place = schemes.index(summary.scheme) if summary.scheme in schemes else len(schemes)
            runs.append((place, name, config, summary))
        return [(config, summary) for *_, config, summary in sorted(runs, key=lambda run: run[:2])]

    def write_results(
        self, runs: Sequence[Summary], tables: Mapping[str, Any], command: list[str] | None
    ) -> dict[str, Any]:
        """Write results.json and return its content. Without a command, the one that goes on from the folder."""
        command = command or ["geonorm", self.verb, "--config", str(self.out / "config.yaml")]
        results = {"command": command, "order": self.order, "runs": [run.row() for run in runs], **tables}
        write_json(self.out / "results.json", results)
        return results


@contextmanager
def begin_study(config: Grid, samples: list[TrainConfig], say: Say, live: bool) -> Iterator[StudyFolder]:
    """Check all that can be checked before anything is written, then lock the folder. `samples`: one run of each scheme
    at each size."""
    out, settings = Path(config.out), to_dict(config)
    setups = resolve_samples(samples, config)
    schemes = [str(parse(scheme)) for scheme in settings["schemes"]]
    if repeated := [scheme for scheme in schemes if schemes.count(scheme) > 1]:
        raise ConfigError(f"--schemes names {repeated[0]} twice")
    check_study_folder(out, settings, type(config))
    # once, here: the runs find the tokens in the cache
    text = load_text(max((setup.text for setup in setups), key=lambda part: part.batch_size))
    sources = sources_in(dict.fromkeys(run.scheme for run in samples))
    for folder in sorted((out / "runs").glob("*/config.yaml")):
        check_made_from(folder.parent, text.identity(settings, sources))
    with closing(make_executor(config, say, live)) as executor, lock_folder(out):
        order = order_schemes(out, schemes)
        if order[0] != schemes[0]:
            executor.say(f"differences are to {order[0]}, as before; to change that, name another scheme before it")
        write_settings(out / "config.yaml", settings)
        for place, about in sources.items():
            if place.startswith(MAIN) and about["source"] is not None:
                (out / "schemes").mkdir(exist_ok=True)
                write_atomic(out / "schemes" / f"{place}.py", about["source"])
        yield StudyFolder(out, config.verb, executor, order)


def resolve_samples(samples: Sequence[TrainConfig], config: Grid) -> list[Resolved]:
    """GeonormError where a run could not begin: its device is not there, its memory too small, its settings wrong."""
    launcher, device = config.launcher, config.runtime.device
    here = launcher in ("local", "stacked")
    # elsewhere there may be GPUs
    kind = "cuda" if device.startswith("cuda") and not here else pick_device(device).type
    ranks = config.slurm.gpus or 1 if launcher == "submitit" else 1
    world = None if config.slurm.options else World(size=ranks, local_size=ranks)  # options may ask for nodes and tasks
    setups = [resolve(sample, world, on_cpu=here and kind == "cpu") for sample in samples]
    for setup in setups if launcher == "stacked" else ():
        shape = setup.shape
        # a transformed function may not draw, count or compute again, and trackers know one run of a process
        if getattr(shape, "attn_dropout", 0) or shape.norm == "taper" or setup.runtime.recompute or setup.log.to:
            raise ConfigError(
                "--launcher stacked cannot train with dropout, recomputation, --model.norm taper or --log.to: "
                "use --launcher local"
            )
        fit_to_device(setup, ALONE, pick_device(device))  # on this thread: on another one PyTorch 2.11 may crash
    return setups


def device_of_runs(config: Grid) -> str:
    """The kind of device, cpu or cuda, of a study's runs: by its setting, else by the GPUs that it requests, else by
    those of this machine."""
    kind = config.runtime.device.partition(":")[0]
    on_request = config.launcher != "local" and (config.slurm.gpus or config.ray.gpus)
    if kind in ("cpu", "cuda"):
        return kind
    return "cuda" if on_request or torch.cuda.is_available() else "cpu"


def make_executor(config: Grid, say: Say, live: bool) -> Executor:
    """The executor of `config.launcher`. ConfigError if what it needs is not here; nothing is written yet."""
    shared = Path(config.out), config.runtime, config.jobs, say, live
    if config.launcher in ("local", "stacked"):
        return (LocalExecutor if config.launcher == "local" else StackedExecutor)(*shared)
    from .clusters import RayExecutor, SubmititExecutor

    if config.launcher == "submitit":
        return SubmititExecutor(*shared, config.slurm)
    return RayExecutor(*shared, config.ray, device_of_runs(config))


def order_schemes(out: Path, schemes: Sequence[str]) -> list[str]:
    """The order of schemes in tables, the baseline first: the schemes of this command, then the others in the folder.
    But a command without the folder's baseline only extends the folder, so that its schemes come last."""
    listed = read_object(out / "results.json").get("order")
    before = listed if isinstance(listed, list) else []
    return list(dict.fromkeys([*before, *schemes] if before and before[0] not in schemes else [*schemes, *before]))


def check_study_folder(out: Path, settings: dict[str, Any], kind: type[Grid]) -> None:
    """CheckpointError, before anything is written, if `out` holds something else or runs with other settings."""
    if is_unused(out):
        return
    before = stored_settings(out) if (out / "config.yaml").exists() else {}
    require("schemes" in before, f"{out} is not empty and holds no {kind.noun}; choose another --out", CheckpointError)
    try:
        before = to_dict(from_dict(kind, before))
    except (ConfigError, TypeError) as error:
        raise CheckpointError(f"{out / 'config.yaml'} does not hold the settings of a {kind.noun}: {error}") from None
    if differs := first_difference(before, settings, ignored=MAY_DIFFER):
        raise CheckpointError(f"{out} holds a {kind.noun} with {differs}; choose another --out")
