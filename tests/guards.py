"""Does a change of the code leave its numbers alone? Runs the same work in two checkouts and compares every number.

    python tests/guards.py BEFORE AFTER      two folders, each a checkout of this repository

The work: initial weights, logits and gradients of every scheme; a comparison; a probe of one of its runs; a simulation.
Equal code gives equal bits: one machine, one thread. Exit status 1 if a number differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CHANGING = """state_sha256 seconds per_second memory commit version created started path folder command""".split()

SCHEMES = """
import hashlib, json, torch, geonorm
def digest(tensors): return hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()[:16]
found = {}
for scheme in [*geonorm.names(), "geonorm(learn=affine, alpha=0.5)", "mix(ngpt, geonorm, share=0.5)", "mhc(n=3)"]:
    torch.manual_seed(0)
    config = geonorm.DecoderConfig(scheme, layers=2, width=32, heads=4, hidden=48, vocab_size=61, context=16)
    model = geonorm.Decoder(config)
    ids = torch.randint(0, 61, (2, 9))
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    found[scheme] = {
        "keys": " ".join(model.state_dict()),
        "weights": digest(model.state_dict().values()),
        "logits": digest([model(ids)]),
        "gradients": digest(p.grad for p in model.parameters() if p.grad is not None),
    }
print(json.dumps(found))
"""
COMPARE = "compare --schemes pre geonorm post peri --steps 30 --seeds 2 --evaluation.tokens 8192 --out compare"
PROBE = "probe compare/runs/geonorm-lr0.005-seed0 --data stdlib --tokens 512 --out probe"
SIMULATE = "simulate --schemes pre post geonorm ngpt --tokens 16 --dim 32 --time 4 --seeds 2 --out simulate"


def run(checkout: Path, folder: Path, *words: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(checkout / "src"),
        "GEONORM_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{checkout}: {' '.join(words)[:80]} ends with status {done.returncode}: {done.stderr[-800:]}")
    return done.stdout


def flatten(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        parts = {f"{name}/{key}": part for key, part in value.items() if not any(word in key for word in CHANGING)}
    elif isinstance(value, list):
        parts = {f"{name}/{place}": part for place, part in enumerate(value)}
    else:
        return {name: value}
    return {leaf: number for key, part in parts.items() for leaf, number in flatten(part, key).items()}


def read(path: Path) -> Any:
    text = path.read_text("utf-8")
    if path.suffix == ".json":
        return json.loads(text)
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in text.splitlines()]
    return hashlib.sha256(text.encode()).hexdigest()


def numbers(checkout: Path, folder: Path) -> dict[str, Any]:
    leaves = flatten(json.loads(run(checkout, folder, "-c", SCHEMES).splitlines()[-1]), "schemes")
    for command in (COMPARE, PROBE, SIMULATE):
        run(checkout, folder, "-m", "geonorm", *command.split())
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.suffix in (".json", ".jsonl", ".csv") and inside.parts[0] != "cache" and path.stem != "environment":
            leaves |= flatten(read(path), str(inside))
    return leaves


def main() -> int:
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    before, after = (Path(word).resolve() for word in sys.argv[1:])
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        old, new = numbers(before, Path(one)), numbers(after, Path(other))
    shared = sorted(old.keys() & new.keys())
    different = [name for name in shared if old[name] != new[name] and old[name] == old[name]]  # NaN is not itself
    for title, names in (("only before", old.keys() - new.keys()), ("only after", new.keys() - old.keys())):
        groups = sorted({name.rpartition("/")[2] if "schemes/" not in name else name for name in names})
        print(f"{title}: {len(names)} {' '.join(groups[:40])}")
    for name in different[:40]:
        print(f"{name}: {old[name]} became {new[name]}")
    print(f"{len(shared)} shared numbers, {len(different)} differ")
    return int(bool(different) or not shared)


if __name__ == "__main__":
    sys.exit(main())
