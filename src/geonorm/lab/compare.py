"""A comparison: schemes x learning rates x seeds under one recipe, as separate processes that fill the machine.

    DIR/config.yaml  DIR/configs/NAME.yaml  DIR/runs/NAME/  DIR/results.json

Finished runs are kept and skipped, so the same command goes on where it was stopped. With several learning rates, every
scheme first gets short runs on a seed that no final run uses; `tune` extends the grid until the best is not at an end.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from math import inf
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError
from ..schemes import parse
from .config import TUNING_SEED, CompareConfig, Recipe, TrainConfig, to_dict
from .parallel import pick_device
from .run import LOCK, Run, difference, locked, rows_of, stored_settings, write_atomic, write_json
from .statistics import aggregate
from .train import Interrupted, load_text

Say = Callable[[str], None]
EXTENSIONS = 6
"""How often --tune may extend a grid at one end before it gives up and says so."""


def compare(
    config: CompareConfig, say: Say = print, live: bool = False, command: list[str] | None = None
) -> dict[str, Any]:
    """Runs what is missing and returns the content of results.json; `command` is what repeats it.

    Raises GeonormError for bad input before anything is written, Interrupted after Ctrl-C with every run saved. A run
    that fails stops no other: its status says so, and the next call tries it again.
    """
    import yaml

    out = Path(config.out)
    schemes = [str(parse(scheme)) for scheme in config.schemes]
    for scheme in schemes:
        config.decoder(scheme)
        if schemes.count(scheme) > 1:
            raise ConfigError(f"--schemes names {scheme} twice")
    pick_device(config.runtime.device)
    check_directory(out, config)
    load_text(config)  # once, here: the runs find the tokens in the cache
    with locked(out):
        write_atomic(out / "config.yaml", yaml.safe_dump(to_dict(config), sort_keys=False))
        team = Team(out, config, say, live)
        best = tune(team, config, schemes) if len(config.lrs) > 1 else dict.fromkeys(schemes, config.lrs[0])
        final = [run_config(config, s, best[s], seed) for seed in range(config.seeds) for s in schemes if s in best]
        team.run(final)
        return collect(
            out, schemes, team.asked, command or ["geonorm", "compare", "--config", str(out / "config.yaml")]
        )


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
                grids[scheme].append(significant(ranked[0] * ratio))
            elif ranked[0] == min(grids[scheme]):
                grids[scheme].append(significant(ranked[0] / ratio))
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


def significant(value: float) -> float:
    """Three digits: what a person would type, and the same number in file names, YAML and tables."""
    return float(f"{value:.3g}")


def run_config(config: CompareConfig, scheme: str, lr: float, seed: int, tuning: bool = False) -> TrainConfig:
    """One run of the grid."""
    shared = {f.name: getattr(config, f.name) for f in fields(Recipe)}
    if tuning:
        shared["steps"] = config.tune_steps or max(1, config.steps // 2)
    name = f"{slug(scheme)}-lr{lr:g}-seed{seed}" + ("-tune" if tuning else "")
    out = str(Path(config.out) / "runs" / name)
    return TrainConfig(**shared, scheme=scheme, lr=lr, seed=seed, out=out, phase="tune" if tuning else "final")


def slug(scheme: str) -> str:
    """A file name for a scheme: readable, and unique by a short hash where characters were lost."""
    plain = re.sub(r"[^A-Za-z0-9._]+", "-", scheme).strip("-")
    return plain if plain == scheme else f"{plain[:60]}-{hashlib.sha256(scheme.encode()).hexdigest()[:6]}"


GRID = ("schemes", "seeds", "lrs", "tune", "jobs", "launcher", "out")
"""What may differ when a comparison is extended: which runs there are, not what a run is."""


def check_directory(out: Path, config: CompareConfig) -> None:
    """CheckpointError, before anything is written, if `out` holds something else or runs with other settings."""
    if out.exists() and not out.is_dir():
        raise CheckpointError(f"{out} is a file; choose another --out")
    if not out.exists() or all(entry.name == LOCK for entry in out.iterdir()):
        return
    stored = stored_settings(out) if (out / "config.yaml").exists() else {}
    if "schemes" not in stored:
        raise CheckpointError(f"{out} is not empty and holds no comparison; choose another --out")
    if differs := difference(stored, to_dict(config), but=GRID):
        raise CheckpointError(f"{out} holds a comparison with {differs}; choose another --out")


@dataclass
class Worker:
    config: TrainConfig
    process: subprocess.Popen[bytes]
    device: int


class Team:
    """Runs training processes, as many at a time as the machine has room for."""

    def __init__(self, out: Path, config: CompareConfig, say: Say, live: bool) -> None:
        self.out, self.say, self.live = out, say, live
        self.gpus = gpu_count() if config.runtime.device in ("auto", "cuda") else 0
        self.jobs = config.jobs or self.gpus or max(1, cores() // config.runtime.threads)
        self.stopped = False
        self.asked: list[TrainConfig] = []

    def run(self, configs: list[TrainConfig]) -> list[dict[str, Any]]:
        """Runs what is not finished yet and returns the summaries in order. A run that died has status failed."""
        self.asked += configs
        waiting = [c for c in configs if not done(c)]
        if skipped := len(configs) - len(waiting):
            self.say(f"{skipped} of {len(configs)} runs are finished already")
        workers: list[Worker] = []
        with self.watch(workers) as refresh, self.interruptible(workers):
            while waiting or workers:
                while waiting and len(workers) < self.jobs and not self.stopped:
                    taken = {worker.device for worker in workers}
                    device = next(i for i in range(self.jobs) if i not in taken)
                    workers.append(self.start(waiting.pop(0), device))
                    if self.stopped:  # the signal came while the process was being made
                        workers[-1].process.send_signal(signal.SIGINT)
                if self.stopped and not workers:
                    break
                time.sleep(0.2)
                for worker in [w for w in workers if w.process.poll() is not None]:
                    workers.remove(worker)
                    self.report(worker)
                refresh(len(waiting))
        if self.stopped:
            raise Interrupted(f"stopped; every run is saved in {self.out}; the same command goes on from there")
        return [outcome(c) for c in configs]

    def start(self, config: TrainConfig, device: int) -> Worker:
        import yaml

        path = self.out / "configs" / f"{Path(config.out).name}.yaml"
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, yaml.safe_dump(to_dict(config), sort_keys=False))
        log = self.out / "configs" / f"{Path(config.out).name}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": str(config.runtime.threads), "TOKENIZERS_PARALLELISM": "false"}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = visible_device(device % self.gpus)
        with open(log, "ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "geonorm", "train", "--config", str(path)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches us first; we pass it on
            )
        return Worker(config, process, device)

    def report(self, worker: Worker) -> None:
        summary = outcome(worker.config)
        name = Path(worker.config.out).name
        if summary["status"] == "finished":
            self.say(f"{name}: val_loss {summary['val_loss']:.4f}, {summary['wall_seconds']:.0f} s")
        elif not self.stopped:
            self.say(f"{name}: {summary['status']}: {last_line(self.out / 'configs' / f'{name}.log')}")

    @contextmanager
    def interruptible(self, workers: list[Worker]) -> Iterator[None]:
        """Passes Ctrl-C and SIGTERM on to the runs, which save and end; a second one kills them."""

        def stop(number: int, _: Any) -> None:
            for worker in workers:
                worker.process.send_signal(signal.SIGKILL if self.stopped else signal.SIGINT)
            self.stopped = True

        try:
            old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread
            old = {}
        try:
            yield
        finally:
            for worker in workers:
                worker.process.kill()
            for number, handler in old.items():
                signal.signal(number, handler)

    @contextmanager
    def watch(self, workers: list[Worker]) -> Iterator[Callable[[int], None]]:
        """A live table of the runs in progress, on a terminal; otherwise lines from `report` only."""
        if not self.live:
            yield lambda waiting: None
            return
        from rich.live import Live

        with Live(refresh_per_second=2, transient=True) as live:
            say, self.say = self.say, live.console.print
            shown = 0.0

            def refresh(waiting: int) -> None:
                nonlocal shown
                if time.monotonic() - shown > 1:
                    live.update(progress_table(workers, waiting))
                    shown = time.monotonic()

            try:
                yield refresh
            finally:
                self.say = say


def progress_table(workers: list[Worker], waiting: int) -> Any:
    from rich.table import Table

    table = Table(title=f"{waiting} runs waiting", title_justify="left")
    for name in ("run", "step", "loss", "val loss", "tokens/s"):
        table.add_column(name, justify="left" if name == "run" else "right")
    for worker in workers:
        rows = last_rows(Run(Path(worker.config.out)).metrics)
        last = rows[-1] if rows else {"step": 0}
        val = next((row["val_loss"] for row in reversed(rows) if "val_loss" in row), None)
        table.add_row(
            Path(worker.config.out).name,
            f"{last['step']}/{worker.config.steps}",
            shown(last.get("loss"), ".4f"),
            shown(val, ".4f"),
            shown(last.get("tokens_per_second"), ",.0f"),
        )
    return table


def shown(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def done(config: TrainConfig) -> bool:
    """Whether a run needs no more work (a divergence is a result). CheckpointError if its directory holds another."""
    run = Run(Path(config.out))
    if (run.path / "config.yaml").exists():
        run.check_same(config)
    summary = run.summary()
    return summary is not None and summary["status"] in ("finished", "diverged")


def outcome(config: TrainConfig) -> dict[str, Any]:
    """The run's summary, or that of a failed run where it left none."""
    summary = Run(Path(config.out)).summary()
    if summary is not None:
        return summary
    empty = dict.fromkeys(("val_loss", "val_bpb", "train_loss", "tokens_per_second", "peak_memory_bytes"))
    known = {"status": "failed", "scheme": config.scheme, "seed": config.seed, "lr": config.lr, "phase": config.phase}
    counts = {"steps": 0, "tokens": 0, "parameters": 0, "matmul_parameters": 0, "spikes": 0, "grad_spikes": 0}
    return {**known, **empty, **counts, "wall_seconds": 0.0}


def collect(out: Path, schemes: list[str], wanted: list[TrainConfig], command: list[str]) -> dict[str, Any]:
    """Reads every run of a comparison, those that left nothing included, and writes results.json. The first scheme is
    the baseline; runs of schemes that are not asked for this time come last."""
    runs = {Path(config.out).name: config for config in wanted}
    for folder in sorted(path.parent for path in (out / "runs").glob("*/config.yaml")):
        runs[folder.name] = replace(Run(folder).config(), out=str(folder))  # the comparison may have been moved
    order = {scheme: place for place, scheme in enumerate(schemes)}
    found = [{**outcome(config), "run": name} for name, config in runs.items()]
    found.sort(key=lambda run: (order.get(run["scheme"], len(order)), run["run"]))
    baseline = schemes[0] if any(run["scheme"] == schemes[0] for run in found) else None
    results = {"command": command, "runs": found, "schemes": aggregate(found, baseline)}
    write_json(out / "results.json", results)
    return results


def last_rows(path: Path, size: int = 1 << 16) -> list[dict[str, Any]]:
    """The rows in the last `size` bytes of a file of metrics."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - size))
            return list(rows_of(file.read().decode(errors="replace").splitlines()))
    except OSError:
        return []


def last_line(path: Path) -> str:
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "no output"


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def gpu_count() -> int:
    import torch

    return torch.cuda.device_count()


def visible_device(index: int) -> str:
    """The index-th of the devices that this process may use."""
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return allowed.split(",")[index] if allowed else str(index)
