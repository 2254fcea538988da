"""Carries out the runs of an experiment, one after the other, and keeps what they found.

An experiment is a file runs.py beside its README with a function `plan(known)`: from the summaries that are there, by
name of run, to the runs that are wanted, {name: arguments of `geonorm train`}, the most wanted first. So a plan may
look at results: extend the rates of a scheme until its best is interior, then ask for seeds there. A run that branches
from another of the plan says its name: it waits for that one, and begins anew where its folder is gone.

    python experiments/programme.py run  experiments/017-paper-recipe OUT      trains what is missing, under OUT
    python experiments/programme.py keep experiments/017-paper-recipe OUT      adds what has finished to the experiment
    python experiments/programme.py list experiments/017-paper-recipe OUT      says what is wanted and what is there
    python experiments/programme.py table experiments/017-paper-recipe [OUT]   the results at every rate
    python experiments/programme.py command experiments/017-paper-recipe RUN   what trains one run, on record or not

Stopped at any moment, the same command goes on, from the last checkpoint of each run. A run that results.jsonl has is
not trained again. Started twice, two runs are trained at a time: each takes what the other leaves.
"""

import argparse
import csv
import fcntl
import hashlib
import json
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import geonorm
from geonorm.lab.load import Comparison
from geonorm.lab.runs.folder import read_objects, read_text
from geonorm.lab.runs.records import Summary

Summaries = dict[str, Summary]
Grid = Mapping[str, Sequence[str]]
Plan = Callable[[Summaries], Grid]
TRACED = (
    "step", "stack", "layer", "kind", "clamped", "proposal_p05", "proposal_p50", "proposal_p95", "radius", "angle",
    "grad_norm",
)  # fmt: skip
"""What is kept of a trace; an experiment whose traces.csv has begun with fewer columns goes on with those."""
MEAN = 500
"""Steps whose mean training loss is kept."""
EQUAL_SHARES = "retraction=projection, decay=sqrt, decay_on=update, index=sublayer"
"""Fields by which a unit tangent gives all sub-layers one share of the last state (docs/theory-depth.md)."""


def shorten(scheme: str) -> str:
    """A scheme's name in a legend."""
    short = scheme.replace(f"update=unit, {EQUAL_SHARES}", "equal shares")
    return short.replace("retraction=0.5, max_angle=pi", "smooth")


def settings(**values: object) -> list[str]:
    """--model.norm layer of model__norm="layer"; a tuple is a list."""
    words: list[str] = []
    for key, value in values.items():
        words += [f"--{key.replace('__', '.')}", *map(str, value if isinstance(value, tuple) else [value])]
    return words


def change(words: Sequence[str], **values: object) -> list[str]:
    """The same options with other values for some, which must be there."""
    flat = settings(**values)
    new = dict(zip(flat[::2], flat[1::2], strict=True))
    assert new.keys() <= set(words), f"not among the options: {new.keys() - set(words)}"
    return [new.get(option, word) for option, word in zip(["", *words], words, strict=False)]


ALWAYS = settings(checkpoint__keep=1, runtime__compile="true", runtime__tensorboard="false")
"""Of every run, beside what its plan says."""


def load_definitions(experiment: str | Path) -> dict[str, Any]:
    """What the runs.py of an experiment defines; a name alone is a folder beside this file."""
    return runpy.run_path(str(Path(__file__).parent / experiment / "runs.py"))


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    if file.exists():
        yield from (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())


def read_kept(experiment: Path) -> Summaries:
    """What the experiment has on record, by name of run, in its order."""
    saved = geonorm.load(experiment) if (experiment / "results.jsonl").is_file() else None
    runs = saved.runs if isinstance(saved, Comparison) else []
    return {str(run.summary.run): run.summary for run in runs}


def read_finished(out: Path) -> Summaries:
    """What has come to an end under OUT, a run that diverged included: trained again, it would diverge again."""
    found = {file.parent.name: json.loads(file.read_text(encoding="utf-8")) for file in out.glob("*/summary.json")}
    runs = {name: Summary.read({"run": name, **row}) for name, row in sorted(found.items())}
    return {name: run for name, run in runs.items() if run.status in ("finished", "diverged")}


def in_use(folder: Path) -> bool:
    """Whether another process trains the run."""
    try:
        with open(folder / ".lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def prefix_of(words: Sequence[str]) -> str | None:
    """The run that these words branch from."""
    return words[words.index("--branch") + 1] if "--branch" in words else None


def place(words: Sequence[str], out: Path) -> list[str]:
    """The words of a run under OUT: --branch names a folder there, and goes where that is not."""
    if (prefix := prefix_of(words)) is None:
        return list(words)
    at = words.index("--branch")
    there = ["--branch", str(out / prefix)] if (out / prefix / "config.yaml").is_file() else []
    return [*words[:at], *there, *words[at + 2 :]]


def carry_out(experiment: Path, plan: Plan, out: Path, minutes: float = inf) -> int:
    """Trains what the plan wants and nobody has: 0, 1 if a run failed, 130 if it was interrupted."""
    failed: set[str] = set()
    start, longest = time.monotonic(), 0.0
    while True:
        known = read_kept(experiment) | read_finished(out)
        missing = {name: words for name, words in plan(known).items() if name not in known and name not in failed}
        free = (name for name, words in missing.items() if prefix_of(words) not in missing)
        name = next((name for name in free if not in_use(out / name)), None)
        if name is None and missing:
            time.sleep(20)  # the other process is at it, and what it finds may ask for more
            continue
        if name is None:
            return 1 if failed else 0
        begun = time.monotonic()
        if begun + longest > start + 60 * minutes:
            print(f"{len(missing)} missing: the same command goes on")
            return 1 if failed else 0
        words = [*place(missing[name], out), *ALWAYS]
        print(f"[{len(known)} known, {len(missing)} missing] geonorm train {shlex.join(words)}", flush=True)
        command = [sys.executable, "-m", "geonorm", "train", *words, "--out", str(out / name)]
        status = subprocess.run(command, check=False).returncode
        longest = max(longest, time.monotonic() - begun)
        if status in (130, -2, -15):
            return 130
        if status and name not in read_finished(out) and not in_use(out / name):
            print(f"{name}: status {status}", file=sys.stderr, flush=True)
            failed.add(name)


def keep(experiment: Path, out: Path) -> None:
    """Adds what has finished to results.jsonl and traces.csv (experiments/README.md says what a row has)."""
    known: dict[str, Any] = {row["run"]: row for row in read_lines(experiment / "results.jsonl")}
    fresh = read_finished(out)
    for name in fresh:
        row = json.loads((out / name / "summary.json").read_text(encoding="utf-8"))
        metrics = {row["step"]: row for row in read_lines(out / name / "metrics.jsonl")}  # of a repeated step the last
        evaluated = {step: row for step, row in metrics.items() if "val_loss" in row}
        course = [[step, row.get("val_loss_part", row["val_loss"])] for step, row in evaluated.items()]
        losses: list[Any] = [row.get("loss") for _, row in sorted(metrics.items())]
        parts = [(end, losses[end - MEAN : end]) for end in range(MEAN, len(losses) + 1, MEAN)]
        train = [[end, round(mean(part), 5)] for end, part in parts if None not in part]
        known[name] = {"run": name, **row, **read_origin(out / name), "course": course, "train": train}
    text = "".join(json.dumps(known[name]) + "\n" for name in sorted(known))
    (experiment / "results.jsonl").write_text(text, encoding="utf-8")
    traces = experiment / "traces.csv"
    rows = list(csv.reader(traces.read_text(encoding="utf-8").splitlines())) if traces.exists() else [["run", *TRACED]]
    rows = [row for row in rows if row[0] not in fresh]
    for name in fresh:
        sites = read_lines(out / name / "trace.jsonl")
        rows += ([name, *(show(site.get(key)) for key in rows[0][1:])] for site in sites)
    with traces.open("w", encoding="utf-8", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows([rows[0], *sorted(rows[1:], key=lambda row: row[0])])
    seen: list[dict[str, Any]] = []
    for file in (experiment / "environment.json", *(out / name / "environment.json" for name in fresh)):
        for each in read_objects(file):
            where = {key: value for key, value in each.items() if key not in ("step", "identity")}
            seen += [where] if where not in seen else []
    (experiment / "environment.json").write_text(json.dumps(seen, indent=1) + "\n", encoding="utf-8")
    print(f"{experiment}: {len(known)} runs on record, {len(fresh)} of them from {out}")


def read_origin(run: Path) -> dict[str, Any]:
    """Where a run's numbers come from: the commit and the machine of its last part, and a digest of its settings."""
    last = (read_objects(run / "environment.json") or [{}])[-1]
    lines = read_text(run / "config.yaml").splitlines()
    settings = "\n".join(line for line in lines if not line.startswith("out:"))
    digest = hashlib.sha256(settings.encode()).hexdigest()
    return {"commit": last.get("commit"), "machine": last.get("device"), "settings_sha256": digest}


def print_table(experiment: Path, out: Path | None) -> None:
    """Validation losses by kind of run and learning rate, of the last weights and the averaged ones; spikes."""
    known = read_kept(experiment) | (read_finished(out) if out else {})
    groups: dict[tuple[str, float], list[Summary]] = {}
    for name, run in known.items():
        groups.setdefault((name.rsplit("-lr", 1)[0], run.lr or 0.0), []).append(run)
    print("| runs | rate | n | validation loss | averaged weights | spikes |\n|---|---|---|---|---|---|")
    for (label, rate), rows in sorted(groups.items()):
        ends = [run for run in rows if run.status == "finished"]
        cells = [average([getattr(run, key) for run in ends]) for key in ("val_loss", "val_loss_average")]
        lost = f" ({len(rows) - len(ends)} diverged)" if len(ends) < len(rows) else ""
        spikes = sum(run.spikes or 0 for run in ends)
        print(f"| {label} | {rate:g} | {len(ends)}{lost} | {' | '.join(cells)} | {spikes} |")


def average(losses: Sequence[float | None]) -> str:
    values = [loss for loss in losses if loss is not None]
    spread = f" ± {stdev(values):.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{spread}" if values else "–"


def show(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def folder_with(*files: str) -> Callable[[str], Path]:
    """Reads a word of the command line as a folder that has all of these files, or refuses it in a line."""

    def read(word: str) -> Path:
        if missing := [name for name in files if not (Path(word) / name).is_file()]:
            raise argparse.ArgumentTypeError(f"{word} has no {' and no '.join(missing)}: name an experiment's folder")
        return Path(word)

    return read


def read_words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("run", "keep", "list", "table", "command"))
    parser.add_argument("experiment", type=folder_with("runs.py"), help="folder with a plan, runs.py")
    parser.add_argument("out", type=Path, nargs="?", metavar="OUT", help="folder of the runs, or name of one")
    parser.add_argument("--minutes", type=float, default=inf, help="none begins that would end later")
    words = parser.parse_args()
    if words.out is None and words.verb != "table":
        parser.error(f"{words.verb} needs OUT, the folder of the runs")
    return words


def main(verb: str, experiment: Path, out: Path | None, minutes: float = inf) -> int:
    if verb == "table":
        print_table(experiment, out)
        return 0
    assert out is not None
    plan: Plan = load_definitions(experiment.resolve())["plan"]
    if verb == "command":
        words = plan(read_kept(experiment)).get(str(out))
        print(shlex.join(["geonorm", "train", *words, *ALWAYS]) if words else f"{experiment} has no run {out}")
        return 0 if words else 2
    if verb == "run":
        out.mkdir(parents=True, exist_ok=True)
        return carry_out(experiment, plan, out, minutes)
    if verb == "keep":
        keep(experiment, out)
        return 0
    known = read_kept(experiment) | read_finished(out)
    for name in plan(known):
        run = known.get(name)
        print(f"{'' if run is None else run.val_loss if run.status == 'finished' else run.status:<20} {name}")
    return 0


if __name__ == "__main__":
    words = read_words()
    try:
        sys.exit(main(words.verb, words.experiment, words.out, words.minutes))
    except KeyboardInterrupt:
        sys.exit(130)
