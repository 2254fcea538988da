"""Six schemes at the paper's smallest size on one GPU, a few minutes each: prepare here, train there, table here.

    python experiments/100-paper-125m/run.py prepare                    # text and tokenizer into data/ beside this file
    python experiments/100-paper-125m/run.py train --out DIR [--schemes geonorm pre ...] [--minutes 9.5]
    python experiments/100-paper-125m/run.py table                      # results/*.json as a Markdown table

`train` runs one scheme after the other and leaves DIR/SCHEME.json for each. What has a file in DIR or in results/ is
done, and none is begun that would not end within --minutes: the same command again goes on with the next. The GPU
machine needs torch, numpy, scipy, safetensors, tokenizers and pyyaml, no network, this checkout and data/ (45 MB).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "src"))

from geonorm.errors import GeonormError  # noqa: E402
from geonorm.lab.config import TrainConfig  # noqa: E402
from geonorm.settings import from_dict  # noqa: E402

CORPUS, TOKENIZER = "books", "gpt2.tokenizer.json.xz"
SCHEMES = ["geonorm", "pre", "post", "peri", "deepnorm", "ngpt"]
TOKENS = 100e6
GUESS = 350e3
"""Tokens per second before the first run has been timed."""
OVERHEAD = 90.0
"""Seconds of a run besides training: compilation, evaluations. The first run also tokenizes the corpus."""
KEPT_ROWS = 200


def prepare() -> None:
    """Copies the corpus as it is (xz; text packs tighter than token ids) and the tokenizer."""
    home = Path(os.environ["GEONORM_DATA"]) if "GEONORM_DATA" in os.environ else None
    if home is None or not (home / CORPUS).is_dir():
        raise GeonormError(
            f"the corpus {CORPUS} is needed: set GEONORM_DATA to the folder that holds it (docs/data.md)"
        )
    (HERE / "data" / CORPUS).mkdir(parents=True, exist_ok=True)
    wanted = [f"{CORPUS}/train.jsonl.xz", f"{CORPUS}/validation.jsonl.xz", f"tokenizers/{TOKENIZER}"]
    for name in wanted:
        target = HERE / "data" / (name if name.startswith(CORPUS) else TOKENIZER)
        shutil.copyfile(home / name, target)
        print(f"{target.relative_to(ROOT)}  {target.stat().st_size / 1e6:.1f} MB")


def settings(args: argparse.Namespace, scheme: str, out: Path) -> TrainConfig:
    """configs/paper-125m.yaml, as many steps as the tokens make, larger micro-batches for a large GPU."""
    import yaml

    values: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "paper-125m.yaml").read_text(encoding="utf-8"))
    values |= {
        "data": args.data,
        "scheme": scheme,
        "seed": args.seed,
        "out": str(out),
        "lr": args.lr or float(values["lr"]),
    }
    values["tokens"] = {"tokenizer": "bpe" if args.preset else str(HERE / "data" / TOKENIZER)}
    values["evaluation"] = {"tokens": args.held_out}
    values["runtime"] |= {"tensorboard": False, "accumulate": 4}
    if args.preset:
        values |= {"preset": args.preset, "model": {}, "batch_size": 4}
        values["runtime"] = {"tensorboard": False}
    config: TrainConfig = from_dict(TrainConfig, values)
    steps = args.steps or max(1, round(args.tokens / (config.batch_size * config.decoder(scheme).context)))
    config = replace(config, steps=steps)
    # weights stay on the machine that trained them: one checkpoint, at the end
    return replace(
        config,
        evaluation=replace(config.evaluation, every=max(1, steps // 5)),
        checkpoint=replace(config.checkpoint, every=steps, keep=1),
    )


def train(args: argparse.Namespace) -> None:
    os.environ["GEONORM_DATA"] = str(HERE / "data")
    args.out.mkdir(parents=True, exist_ok=True)
    begun, speed, done = time.monotonic(), GUESS, 0
    for scheme in args.schemes:
        name = f"{''.join(c if c.isalnum() or c in '._-' else '-' for c in scheme)}.json"
        if any((folder / name).exists() for folder in (args.out, HERE / "results")):
            print(f"{scheme}: done before")
            continue
        config = settings(args, scheme, args.work / name.removesuffix(".json"))
        tokens = config.steps * config.batch_size * config.decoder(scheme).context
        left = 60 * args.minutes - (time.monotonic() - begun)
        expected = tokens / speed + OVERHEAD
        print(f"{scheme}: {tokens / 1e6:.1f}M tokens, about {expected:.0f} s, {left:.0f} s left", flush=True)
        if done and expected > left:
            print("the same command goes on from here")
            return
        result = run(config)
        (args.out / name).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        summary = result["summary"]
        speed, done = summary["tokens_per_second"] or speed, done + 1
        print(
            f"{scheme}: {summary['status']}, validation loss {summary['val_loss']}, {speed:,.0f} tokens/s", flush=True
        )


def run(config: TrainConfig) -> dict[str, Any]:
    """One run and what is kept of it: summary, settings, machine, a thinned curve, the last trace."""
    from geonorm.lab.runs.run import read_rows
    from geonorm.lab.train.loop import Diverged
    from geonorm.lab.train.loop import train as train_one
    from geonorm.settings import to_dict

    fresh_start()
    folder = Path(config.out)
    try:
        train_one(config)
    except Diverged as diagnosis:  # a result like another
        print(diagnosis)
    rows = list(read_rows(folder / "metrics.jsonl"))
    every = max(1, len(rows) // KEPT_ROWS)
    trace = list(read_rows(folder / "trace.jsonl"))
    return {
        "summary": json.loads((folder / "summary.json").read_text(encoding="utf-8")),
        "config": {key: value for key, value in to_dict(config).items() if key != "out"},
        "environment": json.loads((folder / "environment.json").read_text(encoding="utf-8")),
        "metrics": [row for row in rows if row["step"] % every == 0 or "val_loss" in row],
        "trace": [row for row in trace if row["step"] == trace[-1]["step"]],
    }


def fresh_start() -> None:
    """Nothing of an earlier run in this process: its memory, its compiled graphs, its peak."""
    import gc

    import torch

    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def table(folder: Path) -> None:
    """Markdown; differences are to pre, one seed each, so no interval."""
    found = [json.loads(path.read_text(encoding="utf-8"))["summary"] for path in sorted(folder.glob("*.json"))]
    if not found:
        raise GeonormError(f"no results in {folder} yet; run.py train --out DIR writes them")
    base = next((row["val_loss"] for row in found if row["scheme"] == "pre"), None)
    head = "| scheme | tokens | validation loss | to `pre` | tokens/s | peak memory | spikes | status |"
    print(f"{head}\n{'|---' * (head.count('|') - 1)}|")
    for row in sorted(found, key=lambda row: row["val_loss"] if row["val_loss"] is not None else float("inf")):
        loss = row["val_loss"]
        gap = "–" if base is None or loss is None else f"{loss - base:+.4f}".replace("-", "−")
        cells = [f"`{row['scheme']}`", f"{row['tokens'] / 1e6:.1f}M", "–" if loss is None else f"{loss:.4f}", gap]
        cells += [f"{row['tokens_per_second'] or 0:,.0f}", f"{row['peak_memory_bytes'] / 2**30:.1f} GiB"]
        print(f"| {' | '.join([*cells, str(row['spikes']), row['status']])} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["prepare", "train", "table"])
    parser.add_argument("--schemes", nargs="+", default=SCHEMES)
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of the small results")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / HERE.name, help="folder of the run directories")
    parser.add_argument("--minutes", type=float, default=9.5, help="that the training of all may take")
    parser.add_argument("--tokens", type=float, default=TOKENS, help="of a run")
    parser.add_argument("--steps", type=int, help="of a run, instead of --tokens")
    parser.add_argument("--lr", type=float, help="instead of the config's 6e-4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", type=int, default=524288, help="validation tokens of an evaluation")
    parser.add_argument("--data", default=CORPUS)
    parser.add_argument("--preset", help="a small size in fp32, to try the whole path on a CPU")
    args = parser.parse_args()
    try:
        {"prepare": prepare, "train": lambda: train(args), "table": lambda: table(args.out)}[args.part]()
    except GeonormError as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
