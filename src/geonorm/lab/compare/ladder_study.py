"""`geonorm.ladder`: the ladder of the command line, from Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...results import Result, Rows
from ...settings import check_unused, from_dict
from . import ladder as ladders
from .ladder_config import LadderConfig


@dataclass(frozen=True, repr=False)
class Ladder(Result):
    """A ladder's folder and the content of its results.json. Tables: speedups (a row per scheme and size), points (a
    row per scheme, size and budget), trends, fits, runs."""

    out: Path
    results: dict[str, Any]

    def __repr__(self) -> str:
        """The speed-up of each scheme at each size, or its bound."""
        said = "; ".join(map(told, self.results["speedups"]))
        return f"Ladder({said or 'nothing to compare'}; {len(self.results['runs'])} runs in {self.out})"

    def tables(self) -> dict[str, Rows]:
        return {name: self.results[name] for name in ("speedups", "points", "trends", "fits", "runs")}

    @contextmanager
    def folder(self) -> Iterator[Path]:
        yield self.out


def told(row: Mapping[str, Any]) -> str:
    value = "-" if row["speedup"] is None else f"{row['speedup']:.2f}"
    return f"{row['scheme']} {row['size']} " + (f"{row['bound']} {row['limit']:.2f}" if row["bound"] else value)


def ladder(schemes: Sequence[str] | str = ("pre", "geonorm"), **settings: Any) -> Ladder:
    """Trains schemes at several sizes and lengths, as `geonorm ladder` does, and returns what was found.

        found = geonorm.ladder(["pre", "geonorm"], depth=[3, 4, 6], data="my.txt", out="runs/ladder")
        found.frame()                  # a row per scheme and size: effective speed-up over the first, its interval
        found.frame("points")          # loss of every scheme, size and budget
        found.plot()

    settings: those of the command line, groups as mappings. Runs that `out` holds already are kept. Raises ConfigError
    or DataError with one line before anything is written.
    """
    names = [schemes] if isinstance(schemes, str) else [str(scheme) for scheme in schemes]
    for name in {"depth", "budgets"} & settings.keys():
        given = settings[name]
        settings[name] = [str(one) for one in (given if isinstance(given, (list, tuple)) else [given])]
    config = from_dict(LadderConfig, {**settings, "schemes": names})
    check_unused(config, settings)
    return Ladder(Path(config.out), ladders.ladder(config))
