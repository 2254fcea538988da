"""How the stream of each family moves: rotations, the uniform direction, gradients over depth, depth use.

    python experiments/014-beyond-decoders/geometry.py OUT

Probes on held-out data the runs of OUT, the folder of them, that results.jsonl has at the best rate of each scheme, and
of encoder-decoders at every rate. Writes geometry.jsonl (a line a stack of a run), geometry.md (means over seeds) and
figures/use.svg beside itself; what geometry.jsonl has already is not probed again.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import degrees, exp, log
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from table import FAMILIES, read_families

import geonorm
from geonorm.lab.runs.run import RunFolder
from geonorm.lab.runs.statistics import aggregate, usable
from geonorm.report.columns import markdown_lines
from geonorm.report.style import looks, rate
from geonorm.report.vega import Axis, Chart, Figure, figure

HERE = Path(__file__).parent
TOKENS, TINY = 8192, 1e-30
Facts = dict[str, Any]
Sites = Sequence[Mapping[str, Any]]
COLUMNS: dict[str, Callable[[Facts], float | None]] = {
    "angle of a step, first block": lambda row: degrees(row["angle"][0]),
    "last": lambda row: degrees(row["angle"][-1]),
    "turned by norms": lambda row: None if row["turned"] is None else degrees(row["turned"]),
    "without gains": lambda row: None if row["turned_plain"] is None else degrees(row["turned_plain"]),
    "cos to ones over null": lambda row: row["ones"],
    "cos of two tokens, first site": lambda row: row["pair"][0],
    "last ": lambda row: row["pair"][-1],
    "gradient, last third over first": lambda row: row["gradient"],
    "a block is worth, first half": lambda row: fmean(row["use"][: len(row["use"]) // 2]),
    "second half": lambda row: fmean(row["use"][len(row["use"]) // 2 :]),
}
"""Of a stack, by heading: angles in degrees, blocks in nats."""


def facts(run: Path, family: str) -> list[Facts]:
    """A row for each stack of a run."""
    config = RunFolder(run).config()
    found = geonorm.probe(str(run), config.data, tokens=TOKENS, gradients=True, ablate_blocks=True)
    rows = []
    for stack in dict.fromkeys(site["stack"] for site in found.sites):
        sites = [site for site in found.sites if site["stack"] == stack]
        norms = [norm for norm in found.norms if norm["stack"] == stack and norm["layer"] is not None]
        behind = sites[1:]  # before the first sub-layer stands the embedding alone
        single = [row for row in found.ablation if row["stack"] == stack and row["blocks"] == 1]
        use = [row["increase"] for row in sorted(single, key=lambda row: int(row["first"]))]
        rows.append(
            {
                "run": run.name, "family": family, "stack": stack, "scheme": config.scheme, "lr": config.lr,
                "loss": found.loss,
                "angle": by_block(sites, "angle", fmean), "pair": [site["cos_pair"] for site in sites],
                "ones": fmean(site["cos_ones"] for site in behind) / fmean(site["cos_null"] for site in behind),
                "turned": average(norm["rotation"] for norm in norms),
                "turned_plain": average(norm["rotation_plain"] for norm in norms),
                "gradient": compare_thirds(by_block(sites, "grad_norm", geometric)),
                "use": use,
            }
        )  # fmt: skip
    return rows


def by_block(sites: Sites, key: str, mean: Callable[[list[float]], float]) -> list[float]:
    layers: dict[int, list[float]] = {}
    for site in sites:
        layers.setdefault(site["layer"], []).append(site[key])
    return [mean(values) for _, values in sorted(layers.items())]


def geometric(values: Iterable[float]) -> float:
    return exp(fmean(log(max(value, TINY)) for value in values))


def compare_thirds(blocks: Sequence[float]) -> float:
    """Geometric mean over the last third of the blocks, over that of the first."""
    third = max(1, len(blocks) // 3)
    return geometric(blocks[-third:]) / geometric(blocks[:third])


def average(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def tabulate(rows: Sequence[Facts]) -> str:
    """Means over seeds, with their standard deviation, by scheme and rate; one table a family."""
    parts = []
    for family in FAMILIES:
        groups: dict[tuple[str, float, str], list[Facts]] = {}
        for row in rows:
            if row["family"] == family:
                groups.setdefault((row["scheme"], row["lr"], row["stack"]), []).append(row)
        cells = [
            [scheme, rate(lr), stack, str(len(own)), *(spread([read(row) for row in own]) for read in COLUMNS.values())]
            for (scheme, lr, stack), own in groups.items()
        ]
        if cells:
            lines = markdown_lines(("scheme", "rate", "stack", "n", *(name.strip() for name in COLUMNS)), cells)
            parts.append(f"## {family}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return f"{fmean(known):.3g}" + (f" ± {stdev(known):.1g}" if len(known) > 1 else "")


def draw_use(rows: Sequence[Facts]) -> Chart:
    """Of vision transformers, the loss that each block is worth; means over seeds."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for scheme in dict.fromkeys(row["scheme"] for row in rows):
        uses = zip(*(row["use"] for row in rows if row["scheme"] == scheme), strict=True)
        lines[scheme] = [(block, fmean(values)) for block, values in enumerate(uses, start=1)]
    points = [point for line in lines.values() for point in line]
    y = Axis.around([value for _, value in points], title="nats per image")
    x = Axis.around([block for block, _ in points], title="block left out")
    chart = Chart("What a block is worth", x, y, looks(list(lines)), "Loss without it, less the loss with it.")
    for scheme, line in lines.items():
        chart.line(scheme, line)
    return chart


def wanted_runs(experiment: Path) -> list[tuple[str, str]]:
    """Family and name of finished runs, text first: at the best rate of a scheme, and of two stacks the first seed at
    any."""
    found = []
    for family, runs in read_families(experiment).items():
        best = {row["scheme"]: row["lr"] for row in aggregate(runs) if row["n"]}
        for run in filter(usable, runs):
            if run["lr"] == best[run["scheme"]] or (family == "denoise" and run["seed"] == 0):
                found.append((family == "vision", int(run["seed"]), family, str(run["run"])))
    return [(family, name) for *_, family, name in sorted(found, key=lambda row: row[:2])]


def main(out: Path) -> None:
    known = HERE / "geometry.jsonl"
    rows = [json.loads(line) for line in known.read_text(encoding="utf-8").splitlines()] if known.exists() else []
    wanted = wanted_runs(HERE)
    rows = [row for row in rows if (row["family"], row["run"]) in wanted]
    done = {row["run"] for row in rows}
    for family, name in wanted:
        if name not in done and (out / name / "summary.json").exists():
            rows += facts(out / name, family)
            known.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            print(name, flush=True)
    schemes = list(dict.fromkeys(run["scheme"] for runs in read_families(HERE).values() for run in runs))
    rows.sort(key=lambda row: (list(FAMILIES).index(row["family"]), schemes.index(row["scheme"]), row["lr"]))
    (HERE / "geometry.md").write_text(tabulate(rows), encoding="utf-8")
    seen = [row for row in rows if row["family"] == "vision"]
    if seen:
        Figure(figure([draw_use(seen)], HERE.name)).save(HERE / "figures" / "use.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the runs")
    out: Path = parser.parse_args().out
    if not any((out / name / "summary.json").exists() for _, name in wanted_runs(HERE)):
        parser.error(f"{out} holds none of the runs at the best rates: train them with experiments/programme.py")
    main(out)
