"""`geonorm.compare`: the comparison of the command line, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...results import Result, Rows
from ...settings import check_unused, from_dict
from ..config import CompareConfig
from ..runs.folder import read_rows
from . import compare as comparison


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """A comparison's folder and the content of its results.json. Tables: schemes (a row each, as on the page), runs,
    and metrics, trace and norms of all runs, with the columns run, scheme, lr and seed."""

    out: Path
    results: dict[str, Any]

    def __repr__(self) -> str:
        """A line: the mean loss of each scheme, and its difference to the first where there is one."""
        said = []
        for row in self.results["schemes"]:
            apart = f" ({row['difference']:+.4f})" if row["difference"] else ""
            loss = "-" if row["val_loss_mean"] is None else f"{row['val_loss_mean']:.4f}{apart}"
            said.append(f"{row['scheme']} {loss}")
        runs = f"{len(self.results['runs'])} runs in {self.out}"
        return f"Comparison({', '.join(said) or 'no finished run'}; {runs})"

    def tables(self) -> dict[str, Rows]:
        tables: dict[str, Rows] = {"schemes": self.results["schemes"], "runs": self.results["runs"]}
        for name in ("metrics", "trace", "norms"):
            tables[name] = [
                {**keep_own(row), "run": run["run"], "lr": run["lr"], "seed": run["seed"], "scheme": run["scheme"]}
                for run in self.results["runs"]
                for row in read_rows(self.out / "runs" / run["run"] / f"{name}.jsonl")
            ]
        return tables

    @contextmanager
    def folder(self) -> Iterator[Path]:
        yield self.out


def keep_own(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a run's file, with what its run has by the same name called otherwise: the rate of a step, and the
    scheme of a site, which of a combinator is a part."""
    own = {"lr": "step_lr", "scheme": "site_scheme"}
    return {own.get(name, name): value for name, value in row.items()}


def compare(schemes: Sequence[str] | str = ("pre", "geonorm"), **settings: Any) -> Comparison:
    """Trains schemes side by side, as `geonorm compare` does, and returns what was found.

        found = geonorm.compare(["pre", "geonorm"], data="my.txt", steps=400, seeds=3, out="runs/mine")
        found.frame()                  # a row per scheme: mean loss, paired difference to the first, its interval
        found.frame("metrics")         # loss against step of every run
        found.plot("loss_curves")

    settings: those of the command line, groups as mappings (optim={"weight_decay": 0.1}). Runs that `out` holds already
    are kept. Raises ConfigError or DataError with one line before anything is written; a run that fails is a row whose
    status says so, and the same call tries it again.
    """
    names = [schemes] if isinstance(schemes, str) else [str(scheme) for scheme in schemes]
    config = from_dict(CompareConfig, {**settings, "schemes": names})
    check_unused(config, settings)
    return Comparison(Path(config.out), comparison.compare(config))
