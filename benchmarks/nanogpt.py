"""A training step of this library's decoder beside one of nanoGPT's own model, at one shape, in turns.

    python benchmarks/nanogpt.py PATH/TO/nanoGPT [--compiled] [--schemes pre geonorm] [--rounds 41]

PATH holds model.py of karpathy/nanoGPT, which is run as it is. Both have 4 layers of width 128, LayerNorm, GELU, biases
and a tied head, and take 8 x 128 random tokens in fp32 and the fused AdamW. A ratio is the median of those within
rounds, with its 95 % interval by order statistics, of the CPU time of one thread.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
from collections.abc import Callable
from math import sqrt
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor, nn

import geonorm
from geonorm.models import preset

BATCH, WARM_UP = 8, 3


def make_step(model: nn.Module, loss_of: Callable[[], Tensor]) -> Callable[[], None]:
    """Forward, backward, clipping, AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step() -> None:
        loss_of().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


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
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = preset("nano-gpt2", mlp="gelu")
    tokens = torch.randint(shape.vocab_size, (BATCH, shape.context + 1))
    ids, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    steps = {}
    for scheme in args.schemes:
        ours = geonorm.Decoder(preset("nano-gpt2", mlp="gelu", scheme=scheme))
        loss = torch.compile(ours.loss) if args.compiled else ours.loss
        steps[scheme] = make_step(ours, lambda loss=loss: loss(ids, targets))
    theirs = load_nanogpt(args.path, shape)
    forward = torch.compile(theirs) if args.compiled else theirs
    steps["nanoGPT"] = make_step(theirs, lambda: forward(ids, targets)[1])
    times: dict[str, list[float]] = {name: [] for name in steps}
    names, order = list(steps), random.Random(0)
    for turn in range(WARM_UP + args.rounds):
        order.shuffle(names)
        for name in names:
            begun = process_time()
            steps[name]()
            if turn >= WARM_UP:
                times[name].append(process_time() - begun)
    place = int(args.rounds / 2 - 0.98 * sqrt(args.rounds))
    for name, taken in times.items():
        ratios = sorted(a / b for a, b in zip(taken, times["nanoGPT"], strict=True))
        within = f"({ratios[place]:.2f} to {ratios[-1 - place]:.2f})"
        print(f"{name:28} {1e3 * median(taken):7.1f} ms a step, {median(ratios):.2f} {within} of nanoGPT's")


if __name__ == "__main__":
    main()
