"""Where the runs of a comparison are executed: processes of this machine, tasks of a Ray cluster, a SLURM array.

A team runs configs and hands back their summaries; all teams leave the same directory, and none repeats what is
finished:

    DIR/configs/NAME.yaml  DIR/configs/NAME.log  DIR/runs/NAME/
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ...output import columns
from ...progress import NAME, shorten
from ...settings import to_dict
from ..config import Grid, TrainConfig
from ..runs.run import RunFolder, write_settings
from ..train.loop import Interrupted
from ..train.signals import stop_unheard

Say = Callable[[str], None]
LONGEST = 1000
"""Characters of a line where nobody watches: names of runs are whole."""


KINDS = {"local": ("local", "Local"), "ray": ("on_ray", "OnRay"), "slurm": ("slurm", "OnSlurm")}


class Submitted(Exception):
    """The runs are another system's work now; the message says how to go on."""


class Team:
    """Runs training processes. A subclass says how: `work` returns when every one of its configs has ended."""

    def __init__(self, out: Path, config: Grid, say: Say, live: bool) -> None:
        self.out, self.config, self.live = out, config, live
        self.unheard: list[float] = []  # times at which nobody could hear what was said
        self.say = stop_unheard(say, self.unheard)
        self.asked: list[TrainConfig] = []
        self.schemes: list[str] = []  # of this command, as they write themselves
        self.order: list[str] = []  # of all in the folder, the baseline first

    def run(self, configs: list[TrainConfig]) -> list[dict[str, Any]]:
        """Runs what is not finished yet and returns the summaries in order. A run that died has status failed."""
        self.asked += configs
        waiting = [c for c in configs if not done(c)]
        if skipped := len(configs) - len(waiting):
            self.say(f"{skipped} of {len(configs)} runs are finished already")
        if waiting:
            self.work(waiting)
        return [outcome(c) for c in configs]

    def work(self, configs: list[TrainConfig]) -> None:
        raise NotImplementedError

    def interrupted(self) -> Interrupted:
        return Interrupted(f"stopped; every run is saved in {self.out}; the same command goes on from there")

    def close(self) -> None:
        """Gives back what the team holds."""

    def variables(self) -> dict[str, str]:
        """Environment of the process of a run: its threads, and no file of the working directory, which `python -m`
        would look in first, in the place of an installed module."""
        threads = str(self.config.runtime.threads)
        return {"OMP_NUM_THREADS": threads, "TOKENIZERS_PARALLELISM": "false", "PYTHONSAFEPATH": "1"}

    def settings(self, config: TrainConfig) -> Path:
        """Writes the settings of a run where its process reads them; its output goes beside them, as `log` says."""
        path = self.out / "configs" / f"{Path(config.out).name}.yaml"
        path.parent.mkdir(exist_ok=True)
        write_settings(path, to_dict(config))
        return path

    def log(self, config: TrainConfig) -> Path:
        return self.out / "configs" / f"{Path(config.out).name}.log"

    def report(self, config: TrainConfig, place: str = "") -> None:
        """One line on a run that has ended, and on how far the others are."""
        summary, name = outcome(config), Path(config.out).name
        if summary["status"] == "finished":
            said = f": val_loss {summary['val_loss']:.4f}, {summary['wall_seconds']:.0f} s{place}"
            self.say(shorten(name, max(NAME, columns(LONGEST) - len(said))) + said)
        else:
            self.say(f"{name}: {summary['status']}: {last_line(self.log(config))}")


def make_team(out: Path, config: Grid, say: Say, live: bool) -> Team:
    """The team of `config.launcher`. ConfigError if what it needs is not here; nothing is written yet."""
    module, name = KINDS[config.launcher]
    made: Team = getattr(import_module(f".{module}", __package__), name)(out, config, say, live)
    return made


def done(config: TrainConfig) -> bool:
    """Whether a run needs no more work (a divergence is a result). CheckpointError if its directory holds another."""
    run = RunFolder(Path(config.out))
    if (run.path / "config.yaml").exists():
        run.check_same(config)
    summary = run.summary()
    return summary is not None and summary["status"] in ("finished", "diverged")


def outcome(config: TrainConfig) -> dict[str, Any]:
    """The run's summary, or that of a failed run where it left none."""
    summary = RunFolder(Path(config.out)).summary()
    if summary is not None:
        return summary
    empty = dict.fromkeys(("val_loss", "val_bpb", "train_loss", "tokens_per_second", "peak_memory_bytes"))
    known = {"status": "failed", "scheme": config.scheme, "seed": config.seed, "lr": config.lr, "phase": config.phase}
    counts = {"steps": 0, "tokens": 0, "parameters": 0, "matmul_parameters": 0, "spikes": 0, "grad_spikes": 0}
    return {**known, **empty, **counts, "wall_seconds": 0.0}


def last_line(path: Path) -> str:
    try:
        lines = [line for line in path.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no output"
    return lines[-1] if lines else "no output"
