"""Which conversions experiment 015 wants.

    python experiments/015-conversion/runs.py run SOURCES OUT      converts and trains what is missing, under OUT
    python experiments/015-conversion/runs.py keep SOURCES OUT     adds what has finished to results.jsonl
    python experiments/015-conversion/runs.py figure               results.jsonl as figures/course.svg

SOURCES is the folder of the runs of experiment 017. Stopped at any moment, the same command goes on. Started twice, two
are made at a time.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from programme import in_use, read_finished, read_kept, read_lines, settings

HERE = Path(__file__).parent
SOURCES = {
    "raw": "books-pre-entry-embedding-bb08ee-lr0.0036-seed0",
    "sphere": "books-pre-lr0.0036-seed0",
}
"""The Pre-Norm runs of 017 at the lower rate, whose losses are the lower ones."""
TARGETS = {"raw": "geonorm(entry=embedding)", "sphere": "geonorm"}
WAYS = {
    "abrupt": settings(way="abrupt"),
    "match": settings(way="match"),
    "global": settings(way="gradual", course="global"),
    "layers": settings(way="gradual", course="layers"),
    "baseline": settings(way="abrupt"),
}
"""baseline: Pre-Norm trained on for as many tokens, what any way is compared with."""
RATE, STEPS, SEEDS = 1.8e-3, 4000, 3
BATCH = 2 * 128
MEASURED = settings(
    evaluation__every=400, evaluation__whole="true", evaluation__trace_tokens=2048, checkpoint__keep=1,
    runtime__tensorboard="false",
)  # fmt: skip


def plan(sources: Path) -> dict[str, list[str]]:
    """Words of geonorm by name of the result, seed after seed, the most wanted first."""
    grid: dict[str, list[str]] = {}
    for seed in range(SEEDS):
        for start, folder in SOURCES.items():
            source = sources / folder
            for way, words in WAYS.items():
                own = read_scheme(start) if way == "baseline" else TARGETS[start]
                grid[f"{start}-{way}-seed{seed}"] = [
                    "convert", str(source), *settings(to=own, tokens=STEPS * BATCH, lr=f"{RATE:g}", seed=seed),
                    *words, *MEASURED,
                ]  # fmt: skip
            grid[f"{start}-scratch-seed{seed}"] = [
                "train", *from_scratch(TARGETS[start]), *settings(seed=seed, lr="0.0072"), *MEASURED,
            ]  # fmt: skip
    return grid


def read_scheme(start: str) -> str:
    return {"raw": "pre(entry=embedding)", "sphere": "pre"}[start]


def from_scratch(scheme: str) -> list[str]:
    """The recipe of 017 for as many tokens as a conversion spends."""
    return settings(
        preset="nano", model__width=64, model__hidden=256, model__mlp="gelu", model__norm="layer", model__bias="true",
        model__init="neox", model__init_depth=12, data="books", batch_size=2, steps=STEPS, optim__warmup=0.05,
        optim__weight_decay=6e-5, optim__independent="true", scheme=scheme,
    )  # fmt: skip


def carry_out(sources: Path, out: Path) -> int:
    """Makes what is missing: 0, 1 if one failed, 130 if it was interrupted."""
    failed = False
    out.mkdir(parents=True, exist_ok=True)
    for name, words in plan(sources).items():
        if name in read_kept(HERE) | read_finished(out) or in_use(out / name) or in_use(out / name / "way"):
            continue
        print(f"geonorm {' '.join(words)} --out {out / name}", flush=True)
        status = subprocess.run([sys.executable, "-m", "geonorm", *words, "--out", str(out / name)], check=False)
        if status.returncode in (130, -2, -15):
            return 130
        failed |= status.returncode != 0
    return int(failed)


def keep(out: Path) -> None:
    """Adds what has finished to results.jsonl, each with the course of its validation loss."""
    known = read_kept(HERE)
    for name, row in read_finished(out).items():
        metrics = {each["step"]: each for each in read_lines(out / name / "metrics.jsonl")}
        known[name] = {
            "run": name,
            **row,
            "course": [[s, r["val_loss"]] for s, r in metrics.items() if "val_loss" in r],
        }
    text = "".join(json.dumps(known[name]) + "\n" for name in sorted(known))
    (HERE / "results.jsonl").write_text(text, encoding="utf-8")
    print(f"{len(known)} on record")


def figure() -> None:
    """Validation loss against tokens, a line for each result; a conversion's begins with the loss before its first
    step."""
    from geonorm.report.vega import Figure

    rows: list[dict[str, Any]] = []
    for name, row in read_kept(HERE).items():
        start, way, seed = name.split("-")
        begin = row.get("conversion", {}).get("loss_at_start")
        course = [*([[0, begin]] if begin is not None else []), *row["course"]]
        rows += [{"start": start, "way": way, "seed": seed, "Mtokens": s * BATCH / 1e6, "loss": v} for s, v in course]
    spec = {
        "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
        "data": {"values": rows},
        "mark": {"type": "line", "clip": True},
        "encoding": {
            "x": {"field": "Mtokens", "type": "quantitative", "title": "million tokens"},
            "y": {"field": "loss", "type": "quantitative", "title": "validation loss", "scale": {"zero": False}},
            "color": {"field": "way", "type": "nominal"},
            "detail": {"field": "seed"},
            "column": {"field": "start", "type": "nominal"},
        },
    }
    (HERE / "figures").mkdir(exist_ok=True)
    print(Figure(spec).save(HERE / "figures" / "course.svg"))


def main(verb: str, *where: str) -> int:
    if verb == "figure":
        figure()
    elif verb == "keep":
        keep(Path(where[1]))
    else:
        return carry_out(Path(where[0]), Path(where[1]))
    return 0


if __name__ == "__main__":
    if len(sys.argv) != {"run": 4, "keep": 4, "figure": 2}.get(sys.argv[1] if len(sys.argv) > 1 else ""):
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
