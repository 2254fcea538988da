"""Makes the folders of tests/kept with the code as it is: runs of each kind of scheme, a comparison, simulation, probe,
exports, and what the commands say of them. Later code must open, resume, evaluate, probe, export and report them.

    python tests/kept/make.py FOLDER

The folders that are committed were made once, by the version that VERSION names; they are never made anew.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from geonorm.cli.main import main

SCHEMES = {
    "pre": "pre",
    "scaled": "pre(form=scaled)",
    "post": "post",
    "geonorm": "geonorm",
    "affine": "geonorm(decay=sqrt, learn=affine)",
    "ngpt": "ngpt",
    "rezero": "rezero",
    "layerscale": "layerscale",
    "siamese": "siamese",
    "hyper": "hyper",
    "mix": "mix(post, geonorm)",
    "per_kind": "per_kind(orthogonal, peri)",
}
SHAPE = (
    "--model.width 8 --model.layers 2 --model.heads 2 --model.hidden 16 --model.vocab_size 257 --model.context 16 "
    "--tokens.tokenizer byte --runtime.tensorboard false --evaluation.tokens 512 --evaluation.trace_tokens 64 "
    "--batch-size 2"
).split()
TRAIN = [*SHAPE, "--steps", "8", "--evaluation.every", "4", "--checkpoint.every", "4"]
WORDS = (
    "the sphere a token moves norm layer small step angle of depth and radius stream reads writes every head"
).split()


def text() -> str:
    """Sentences of a few words, drawn once."""
    draw = random.Random(2026)
    return "".join(" ".join(draw.choices(WORDS, k=9)).capitalize() + ".\n" for _ in range(400))


def say(*arguments: str) -> None:
    if status := main(list(arguments)):
        raise SystemExit(f"geonorm {' '.join(arguments)}: status {status}")


def make() -> None:
    Path("text.txt").write_text(text(), encoding="utf-8")
    for name, scheme in SCHEMES.items():
        say("train", "--scheme", scheme, "--data", "text.txt", *TRAIN, "--seed", "3", "--out", f"runs/{name}")
        say("eval", f"runs/{name}", "--data", "text.txt", "--out", f"evaluations/{name}")
    quick = ["--steps", "4", "--seeds", "2", "--jobs", "1"]
    say("compare", "--schemes", "pre", "geonorm", "--data", "text.txt", *SHAPE, *quick, "--out", "comparison")
    times = ["--tokens", "4", "--dim", "4", "--time", "4", "--seeds", "2"]
    say("simulate", "--schemes", "pre", "post", "geonorm", *times, "--out", "simulation")
    say("probe", "runs/geonorm", "--data", "text.txt", "--tokens", "256", "--out", "probe")
    say("export", "runs/geonorm", "--to", "exports/geonorm", "--remote-code")
    say("export", "runs/ngpt", "--to", "exports/ngpt")
    say("export", "runs/siamese", "--to", "exports/siamese")
    for pattern in ("*/report.html", "*/figures"):
        for path in Path(".").glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (*Path(".").glob("*/*/checkpoints/step-8/opt*"), *Path(".").glob("*/*/*/checkpoints/step-4/opt*")):
        path.unlink()  # nothing goes on from there
    for path in Path(".").glob("comparison/runs/*/checkpoints/step-3"):
        shutil.rmtree(path)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent)
    Path("VERSION").write_text(commit.stdout, encoding="utf-8")
    for settings in Path(".").rglob("config.yaml"):
        assert str(Path.cwd()) not in settings.read_text(encoding="utf-8")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    os.chdir(folder)
    make()
