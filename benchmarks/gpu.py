"""One GPU session: what is promised for a GPU, measured on it, correctness first. Needs scipy besides torch.

    python benchmarks/gpu.py ops --out DIR      the update and its peers, bf16, shapes of TARGETS     (under 10 minutes)
    python benchmarks/gpu.py dtypes --out DIR   fp32, fp16 and mixed at two shapes                    (under 5)
    python benchmarks/gpu.py train --out DIR    125m (peri too), 350m, 1.3b: geonorm and pre, compiled    (under 10)
    python benchmarks/gpu.py wide --out DIR     two layers as wide as 7b: 20 steps of training, peak memory beside the
                                                plan's; 20 GiB; needs the train extra                 (under 5)

Writes DIR/PART/summary.json as it goes, so that a session cut short keeps what it measured, and DIR/PART/verdict.json:
every target with its measured value; `wide` some 30 GB of checkpoints. From the second part on: --skip-tests. Exit
status 1 if a test fails or a result is wrong, else 0: a missed target is a finding. The minutes are estimates.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from geonorm.bench.config import OpsBench, TrainBench  # noqa: E402
from geonorm.errors import GeonormError  # noqa: E402

# (rows, dim): least share of a copy's bandwidth forward and backward, most microseconds forward + backward for one
# reader of the new stream and for two. Predictions for one H200 from the bytes moved, made before any measurement.
TARGETS: dict[tuple[int, int], tuple[float, float, float | None, float | None]] = {
    (32768, 1024): (0.88, 0.85, 145, 163),
    (32768, 768): (0.88, 0.85, None, None),
    (32768, 2048): (0.93, 0.90, 275, None),
    (16384, 4096): (0.96, 0.90, 270, None),
    (8192, 8192): (0.96, 0.90, 270, None),
    (4096, 16384): (0.92, 0.80, 300, None),
    (393216, 64): (0.80, 0.75, None, None),
    (196608, 128): (0.80, 0.75, None, None),
}
# preset: sequences of a step, least tokens per second (None: no target)
MODELS: dict[str, tuple[int, float | None]] = {"125m": (32, 450e3), "350m": (16, None), "1.3b": (8, 50e3)}
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
STEP_COST, MEMORY_COST = 1.01, 1.02
THROUGH = "geonorm, read through a norm"
Verdict = dict[str, Any]


def verdict(what: str, measured: float, limit: float, at_most: bool) -> Verdict:
    met = measured <= limit if at_most else measured >= limit
    print(f"{'met   ' if met else 'MISSED'} {what}: {measured:.4g}, wanted {'<=' if at_most else '>='} {limit:.4g}")
    return {"what": what, "measured": measured, "limit": limit, "at_most": at_most, "met": met}


def tests() -> None:
    """Those of tests/ops for a GPU, without our pytest settings, which name plug-ins. SystemExit if one fails."""
    command = [sys.executable, *f"-m pytest -q -x -m gpu -c {os.devnull} --rootdir {ROOT} -p no:cacheprovider".split()]
    begun = time.monotonic()
    done = subprocess.run([*command, "--import-mode=importlib", str(ROOT / "tests" / "ops")], env=ENVIRONMENT)
    print(f"tests/ops: {time.monotonic() - begun:.0f} s")
    if done.returncode:
        raise SystemExit(1)


def ops(out: Path) -> list[Verdict]:
    from geonorm.bench.ops import bench_ops
    from geonorm.ops.launch import MAX_NORM_DIM

    shapes = ["4096x768", *(f"{rows}x{dim}" for rows, dim in TARGETS)]
    summary = bench_ops(OpsBench(shapes=shapes, dtypes=["bf16"], device="cuda", out=str(out)))
    rows = {(row["rows"], row["dim"], row["mode"], row["name"]): row for row in summary["rows"]}
    found = []
    for (count, dim), (forward, backward, once, twice) in TARGETS.items():

        def row(mode: str, name: str = "geonorm", at: tuple[int, int] = (count, dim)) -> dict[str, Any]:
            return rows[(*at, mode, name)]

        place = f"{count} x {dim} bf16"
        found.append(verdict(f"{place}: forward, share of a copy", row("fwd")["of_copy"][0], forward, False))
        fused = ["geonorm", "geonorm, read twice"]
        if dim <= MAX_NORM_DIM:  # the norm of wider rows is a kernel of its own
            share = row("fwd", THROUGH)["of_copy"][0]
            found.append(verdict(f"{place}: forward of {THROUGH}, share of a copy", share, forward, False))
            fused.append(THROUGH)
        for name in fused:
            share = row("bwd", name)["of_copy"][0]
            found.append(verdict(f"{place}: backward of {name}, share of a copy", share, backward, False))
        for name, limit in (("geonorm", once), ("geonorm, read twice", twice)):
            if limit is not None:
                found.append(verdict(f"{place}: {name}, microseconds", 1e6 * row("both", name)["seconds"], limit, True))
        if dim >= 768:
            found.append(verdict(f"{place}: time to the best peer", row("both")["to_peer"][0], 1.15, True))
        gain, least = row("both", "geonorm textbook compiled")["seconds"], 1.2 if dim >= 2048 else 0.97
        gain /= row("both")["seconds"]
        found.append(verdict(f"{place}: speed-up over the compiled textbook", gain, least, False))
        if (count, dim) == (32768, 1024):
            gain = row("both", "geonorm textbook")["seconds"] / row("both")["seconds"]
            found.append(verdict(f"{place}: speed-up over the eager textbook", gain, 8.0, False))
    return found


def dtypes(out: Path) -> list[Verdict]:
    from geonorm.bench.ops import bench_ops

    shapes = ["32768x1024", "4096x768"]
    bench_ops(OpsBench(shapes=shapes, dtypes=["fp32", "mixed", "fp16"], device="cuda", out=str(out)))
    return []


def train(out: Path) -> list[Verdict]:
    from geonorm.bench.train import bench_train

    found = []
    for preset, (batch, wanted) in MODELS.items():
        config = TrainBench(
            schemes=["geonorm", "peri"] if preset == "125m" else ["geonorm"], preset=preset, batch_size=batch,
            modes=["compiled"], dtype="bf16", device="cuda", out=str(out / preset),
        )  # fmt: skip
        rows = {row["scheme"]: row for row in bench_train(config)["rows"]}
        ours, pre = rows["geonorm"], rows["pre"]
        found.append(verdict(f"{preset}: step time to pre", ours["ratio"][0], STEP_COST, True))
        memory = ours["peak_memory_bytes"] / pre["peak_memory_bytes"]
        found.append(verdict(f"{preset}: peak memory to pre", memory, MEMORY_COST, True))
        if wanted is not None:
            found.append(verdict(f"{preset}: tokens per second", ours["tokens_per_second"], wanted, False))
    return found


def wide(out: Path) -> list[Verdict]:
    """configs/7b.yaml with two layers, as `geonorm train` runs it, on the built-in text byte by byte."""
    import torch

    from geonorm.cli.arguments import read
    from geonorm.lab.config import TrainCommand
    from geonorm.lab.plan import plan
    from geonorm.lab.runs.folder import read_rows
    from geonorm.lab.train.loop import train as run

    changes = (
        "--model.layers 2 --steps 20 --batch-size 4 --data stdlib --tokens.tokenizer byte --evaluation.every 20 "
        "--evaluation.tokens 8192 --checkpoint.every 20 --checkpoint.keep 1 --optim.warmup 0.1 --runtime.device cuda "
        "--runtime.compile false --runtime.recompute false --runtime.parallel auto --runtime.tensorboard false"
    )
    found = []
    for scheme in ("geonorm", "pre", "deepnorm"):
        words = ["--config", str(ROOT / "configs" / "7b.yaml"), *changes.split(), "--out", str(out / scheme)]
        config = read(TrainCommand, "gpu.py wide", [*words, "--scheme", scheme])
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        summary = run(config)
        losses = [row["loss"] for row in read_rows(out / scheme / "metrics.jsonl")]
        found.append(verdict(f"{scheme}: steps", summary["steps"], 20, False))
        found.append(verdict(f"{scheme}: loss of step 20 to step 1", losses[-1] / losses[0], 1.0, True))
        # the plan is of eager operators on a CPU, which keep more: it is to be an upper bound
        share = summary["peak_memory_bytes"] / plan(config)["peak_bytes"]
        found.append(verdict(f"{scheme}: peak memory to the plan's", share, 1.05, True))
    return found


PARTS = {"ops": ops, "dtypes": dtypes, "train": train, "wide": wide}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--skip-tests", action="store_true", help="tests/ops has passed on this machine")
    args = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: PyTorch sees no GPU here; `geonorm bench` measures a CPU", file=sys.stderr)
        return 2
    from geonorm.lab.runs.folder import write_json

    if not args.skip_tests:
        tests()
    folder = args.out / args.part
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_json(folder / "verdict.json", PARTS[args.part](folder))
    except GeonormError as error:
        print(f"benchmarks/gpu.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
