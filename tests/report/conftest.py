"""Synthetic run directories with the shape of real ones, written without training anything."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

STEPS, TOKENS_PER_STEP, LAYERS, EVALUATIONS = 400, 2048, 4, 8
BEST = {"pre": (3.31, 3e-3), "geonorm": (3.285, 3e-3), "post": (3.352, 1e-3), "peri": (3.306, 3e-3)}
GROWTH = {"pre": 0.55, "peri": 0.5}  # how the radius grows with depth; the others stay on the sphere
ANGLES = {"pre": (0.8, 1.0), "geonorm": (0.7, 1.1), "post": (0.5, 0.1), "peri": (0.65, 0.8)}  # first, decay with depth


def run_summary(scheme: str, seed: int, lr: float = 3e-3, **extra: Any) -> dict[str, Any]:
    """A finished run's summary: the noise of the seed is shared by the schemes, as it is in training."""
    best, best_lr = BEST.get(scheme, (3.32, 3e-3))
    shared, own = np.random.default_rng([7, seed]), np.random.default_rng([sum(map(ord, scheme)), seed])
    loss = best + 0.05 * math.log10(lr / best_lr) ** 2 + shared.normal(0, 0.012) + own.normal(0, 0.004)
    speed = {"pre": 21300.0, "geonorm": 20100.0}.get(scheme, 20800.0) * (1 + own.normal(0, 0.01))
    return {
        "status": "finished", "scheme": scheme, "seed": seed, "steps": STEPS,
        "tokens": STEPS * TOKENS_PER_STEP,
        "parameters": 1_050_000, "matmul_parameters": 787_000, "lr": lr,
        "train_loss": loss - 0.03, "val_loss": loss,
        "val_bpb": loss / 2.1, "spikes": int(own.integers(0, 2)), "grad_spikes": int(own.integers(0, 4)),
        "paper_recipe": {"warmup": 0.0} if scheme == "post" else {}, "own_recipe": {},
        "tokens_per_second": speed, "peak_memory_bytes": 312_000_000,
        "wall_seconds": STEPS * TOKENS_PER_STEP / speed,
    } | extra  # fmt: skip


def metrics_rows(summary: dict[str, Any], steps: int = STEPS) -> list[dict[str, Any]]:
    """A loss curve that ends at the summary's loss, with one spike of the gradient norm."""
    noise = np.random.default_rng([3, summary["seed"]])
    final = summary["val_loss"] or 6.0
    rows = []
    for step in range(1, steps + 1, 2):
        clean = final + (6.93 - final) * math.exp(-((step / (0.16 * STEPS)) ** 0.75))
        row = {
            "step": step, "tokens": step * TOKENS_PER_STEP, "loss": clean + noise.normal(0, 0.04) - 0.02,
            "lr": summary["lr"], "grad_norm": 0.4 + 2 / math.sqrt(step) + abs(noise.normal(0, 0.03))
            + 0.05 * (len(summary["scheme"]) % 4),
        }  # fmt: skip
        if step == 251 and summary["seed"] == 1:
            row["grad_norm"] = 4.0
        if step == 151 and summary["seed"] == 2 and summary["scheme"] == "post":
            row["loss"] += 2.0
        if (step % (STEPS // EVALUATIONS) == 1 and step > 1) or step == steps - 1:
            row["val_loss"] = final if step == steps - 1 else clean
        rows.append(row)
    return rows


def trace_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    scheme, noise = summary["scheme"], np.random.default_rng([5, summary["seed"]])
    first, power = ANGLES.get(scheme, (0.6, 0.5))
    rows = []
    for step, layer, kind in product(range(0, STEPS + 1, STEPS // EVALUATIONS), range(LAYERS), ("attn", "mlp")):
        learned, depth = step / STEPS, layer + 0.5 * (kind == "mlp")
        grown = math.exp(GROWTH.get(scheme, 0.0) * depth * (0.5 + 1.6 * learned))
        angle = first * (1 - 0.4 * learned) / (1 + depth) ** power * (1.1 if kind == "attn" else 0.9)
        rows.append({
            "step": step, "scheme": scheme, "layer": layer, "kind": kind, "t": layer + 1, "radius": 11.3 * grown,
            "angle": angle * (1 + noise.normal(0, 0.03)), "off_plane": None, "radius_after": 11.5 * grown,
            "clamped": 0.4 * learned / (1 + layer) if scheme.startswith("geonorm") else None,
            "law_angle": angle,
            "cos_pair": 0.1 + 0.1 * power * depth, "grad_norm": 0.2 * first / (1 + depth) ** power,
        })  # fmt: skip
    return rows


CONFIG = """\
scheme: {scheme}
preset: nano
seed: {seed}
steps: 400
lr: {lr}
data: books-small
tokens: {{tokenizer: bpe}}
model: {{layers: null, width: 128, heads: 4, norm: rms}}
optim: {{warmup: {warmup}, weight_decay: 0.1, clip: 1.0}}
"""


def write_run(
    path: Path, summary: dict[str, Any], *, metrics: bool = True, trace: bool = True, cut: bool = False
) -> Path:
    """One run directory; `cut` leaves the last line of metrics.jsonl half-written."""
    path.mkdir(parents=True)
    warmup = 80 if summary["scheme"] == "post" else 40
    quoted = json.dumps(summary["scheme"])
    config = CONFIG.format(scheme=quoted, seed=summary["seed"], lr=summary["lr"], warmup=warmup)
    (path / "config.yaml").write_text(config)
    environment = {"versions": {"geonorm": "0.1.0", "torch": "2.13.0"}, "device": "cpu", "threads": 1,
                   "data_sha256": "9f2c" * 16}  # fmt: skip
    (path / "environment.json").write_text(json.dumps(environment))
    if summary["status"] != "interrupted":
        (path / "summary.json").write_text(json.dumps(summary))
    if metrics:
        steps = STEPS if summary["status"] == "finished" else STEPS // 3
        text = "".join(json.dumps(row) + "\n" for row in metrics_rows(summary, steps))
        (path / "metrics.jsonl").write_text(text[:-25] if cut else text)
    if trace:
        (path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in trace_rows(summary)))
    return path


def write_comparison(root: Path, seeds: int = 5) -> Path:
    """A comparison with tuning runs, final runs, a diverged one and an interrupted one."""
    for scheme, (_, best_lr) in BEST.items():
        for lr in (3e-4, 1e-3, 3e-3, 1e-2) if scheme != "post" else (1e-3, 3e-3):
            tuned = run_summary(scheme, 100, lr, phase="tune")
            if scheme == "pre" and lr == 1e-2:
                tuned |= {"status": "diverged", "val_loss": None}
            write_run(root / "runs" / f"tune-{scheme}-{lr:g}", tuned, trace=False)
        for seed in range(seeds):
            write_run(root / "runs" / f"{scheme}-seed{seed}", run_summary(scheme, seed, best_lr, phase="final"))
    broken = run_summary("peri", seeds, 3e-3, phase="final", status="interrupted", val_loss=None)
    write_run(root / "runs" / f"peri-seed{seeds}", broken, cut=True, trace=False)
    command = "geonorm compare --schemes pre geonorm post peri --data books-small --steps 400 --seeds 5"
    (root / "results.json").write_text(json.dumps({"order": list(BEST), "command": command.split()}))
    return root


@pytest.fixture(scope="session")
def comparison_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_comparison(tmp_path_factory.mktemp("compare"))


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """Write a run under tmp_path/runs from (scheme, seed) and overrides of its summary."""

    def make(scheme: str, seed: int = 0, *, parts: dict[str, bool] | None = None, **extra: Any) -> Path:
        name = f"{len(list(tmp_path.glob('runs/*'))):03d}"
        return write_run(tmp_path / "runs" / name, run_summary(scheme, seed, **extra), **(parts or {}))

    return make
