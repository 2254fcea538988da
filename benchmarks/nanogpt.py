"""A training step of this library's decoder beside one of nanoGPT's own model, at one shape, in turns.

    python benchmarks/nanogpt.py PATH/TO/nanoGPT [--compiled] [--schemes pre geonorm] [--rounds 41] [--out FILE]

PATH holds model.py of karpathy/nanoGPT, which is run as it is. Both have 4 layers of width 128, LayerNorm, GELU, biases
and a tied head, and take 8 x 128 random tokens in fp32 and the fused AdamW. A ratio is the median of those within
rounds, with its 95 % interval by order statistics, of the CPU time of one thread. Then each operator by itself, its
calls at their fastest, against nanoGPT's, in percent of its step.
"""

import argparse
import importlib.util
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch
from torch import Tensor, nn

import geonorm
from geonorm.bench.timing import Clock, ratio, take_turns
from geonorm.lab.runs.environment import processor
from geonorm.models import preset

BATCH, WARM_UP, PROFILES = 8, 3, 15


def make_step(model: nn.Module, loss_of: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward, backward, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        loss_of().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def profile_step(step: Callable[[], None]) -> dict[str, list[float]]:
    """Microseconds of the calls of a step by operator, in their order, each without those that it makes itself."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        step()
    calls: dict[str, list[float]] = {}
    for event in sorted(recorded.events(), key=lambda event: event.time_range.start):
        calls.setdefault(event.key, []).append(event.self_cpu_time_total)
    return calls


def load_nanogpt(path: Path, shape: geonorm.DecoderConfig) -> nn.Module:
    spec: Any = importlib.util.spec_from_file_location("nanogpt_model", path / "model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        block_size=shape.context, vocab_size=shape.vocab_size, n_layer=shape.layers, n_head=shape.heads,
        n_embd=shape.width, dropout=0.0, bias=shape.bias,
    )  # fmt: skip
    model: nn.Module = module.GPT(config)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--schemes", nargs="+", default=["pre(entry=embedding)", "geonorm(entry=embedding)"])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = preset("nano-gpt2", mlp="gelu")
    ids, targets = torch.randint(shape.vocab_size, (2, BATCH, shape.context))
    steps = {}
    for scheme in args.schemes:
        ours = geonorm.Decoder(preset("nano-gpt2", mlp="gelu", scheme=scheme))
        loss = torch.compile(ours.loss) if args.compiled else ours.loss
        steps[scheme] = make_step(ours, lambda loss=loss: loss(ids, targets))
    theirs = load_nanogpt(args.path, shape)
    forward = torch.compile(theirs) if args.compiled else theirs
    steps["nanoGPT"] = make_step(theirs, lambda: forward(ids, targets)[1])
    clock, turns = Clock(torch.device("cpu")), cast(Any, take_turns)
    turns(steps, WARM_UP)
    times = turns({name: partial(clock.seconds, step) for name, step in steps.items()}, args.rounds)
    rows: list[dict[str, Any]] = []
    for name, taken in times.items():
        within = ratio(taken, times["nanoGPT"])
        rows.append({"scheme": name, "seconds": median(taken), "ratio": within})
        print(name, f"{1e3 * median(taken):.1f} ms a step,", "{:.2f} ({:.2f} to {:.2f}) of nanoGPT's".format(*within))
    profiles = turns({name: partial(profile_step, step) for name, step in steps.items()}, PROFILES)
    fastest = {
        name: {key: sum(map(min, zip(*(one[key] for one in every), strict=True))) for key in every[0]}
        for name, every in profiles.items()
    }
    for row in rows:
        own, peer = fastest[row["scheme"]], fastest["nanoGPT"]
        one_percent = sum(peer.values()) / 100
        apart = {key: round((own.get(key, 0) - peer.get(key, 0)) / one_percent, 2) for key in {*own, *peer}}
        row["profile"] = sum(own.values()) / one_percent
        row["apart"] = dict(sorted(apart.items(), key=lambda item: -abs(item[1]))[:20])
        print(row["scheme"], f"{row['profile']:.1f} %:", row["apart"])
    if args.out:
        about = {"torch": torch.__version__, "cpu": processor(), "compiled": args.compiled, "rows": rows}
        args.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
