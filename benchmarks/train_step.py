"""Ratios of training-step times, interleaved in one process.

    python benchmarks/train_step.py [--pairs 60] [--preset nano] [--batch 16]
                                    [--only NAME ... | --schemes S ...] [--out FILE]

Each row times two programs A and B in turn, A B B A A B ..., and reports time(A) / time(B): the median of the paired
ratios with its 95 % interval. Losses must be finite; that `pre` and Llama are the same function is a test.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from geonorm.lab import environment, optim, parallel
from geonorm.lab.config import Optim, Runtime
from geonorm.lab.statistics import ratio_interval
from geonorm.nn import Decoder, preset

Step = Callable[[], float]
Maker = Callable[[argparse.Namespace], Step]


def ours(scheme: str, args: argparse.Namespace, dtype: str = "fp32", compiled: bool = False) -> Step:
    """A training step of our decoder: forward, backward, clipping, AdamW."""
    torch.manual_seed(0)
    runtime = Runtime(dtype=dtype, compile=compiled)
    device = torch.device("cpu")
    model = parallel.prepare(Decoder(preset(args.preset, scheme=scheme)), runtime, device)
    optimizers = optim.build(model, Optim(), 1e-3)

    def step() -> float:
        with parallel.precision(runtime, device):
            loss = model.loss(args.ids, args.targets)
        return finish(loss, model, optimizers)

    return step


def llama(args: argparse.Namespace) -> Step:
    """The same step for transformers' Llama of the same shape, in a plain loop: one AdamW over all parameters."""
    model = build_llama(args)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    ]

    def step() -> float:
        logits = model(input_ids=args.ids, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), args.targets.flatten())
        return finish(loss, model, optimizers)

    return step


def build_llama(args: argparse.Namespace) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    c = preset(args.preset)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=c.vocab_size,
        hidden_size=c.width,
        intermediate_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        max_position_embeddings=c.context,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).train()


def finish(loss: torch.Tensor, model: nn.Module, optimizers: list[torch.optim.Optimizer]) -> float:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def measure(a: Step, b: Step, pairs: int) -> dict[str, float]:
    """Alternating steps; who goes first alternates, too."""
    for step in (a, b):
        for _ in range(3):
            value = step()
            assert value == value, "loss is not finite"
    ratios, times_a, times_b = [], [], []
    for index in range(pairs):
        elapsed = {}
        for name, step in (("a", a), ("b", b)) if index % 2 else (("b", b), ("a", a)):
            begun = time.perf_counter()
            step()
            elapsed[name] = time.perf_counter() - begun
        ratios.append(elapsed["a"] / elapsed["b"])
        times_a.append(elapsed["a"])
        times_b.append(elapsed["b"])
    middle, low, high = ratio_interval(ratios)
    return {
        "ratio": middle,
        "low": low,
        "high": high,
        "pairs": pairs,
        "a_ms": 1e3 * sorted(times_a)[pairs // 2],
        "b_ms": 1e3 * sorted(times_b)[pairs // 2],
    }


ROWS: dict[str, tuple[Maker, Maker]] = {
    "llama eager / pre eager": (llama, lambda args: ours("pre", args)),
    "llama eager / pre compiled": (llama, lambda args: ours("pre", args, compiled=True)),
    "geonorm / pre eager fp32": (lambda args: ours("geonorm", args), lambda args: ours("pre", args)),
    "geonorm / pre eager bf16": (lambda args: ours("geonorm", args, "bf16"), lambda args: ours("pre", args, "bf16")),
    "geonorm / pre compiled fp32": (
        lambda args: ours("geonorm", args, compiled=True),
        lambda args: ours("pre", args, compiled=True),
    ),
}


def cost_rows(schemes: list[str]) -> dict[str, tuple[Maker, Maker]]:
    """What a step costs under each scheme, relative to pre."""
    return {
        f"{scheme} / pre eager fp32": (lambda args, scheme=scheme: ours(scheme, args), lambda args: ours("pre", args))
        for scheme in schemes
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--preset", default="nano")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--only", nargs="*", default=[], help="rows whose name contains one of these words")
    parser.add_argument("--schemes", nargs="*", default=[], help="time these against pre instead, eager fp32")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    shape = preset(args.preset)
    torch.manual_seed(1)
    tokens = torch.randint(0, shape.vocab_size, (args.batch, shape.context + 1))
    args.ids, args.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    results = {}
    for name, (a, b) in (cost_rows(args.schemes) if args.schemes else ROWS).items():
        if args.only and not any(word in name for word in args.only):
            continue
        torch.compiler.reset()
        results[name] = measure(a(args), b(args), args.pairs)
        row = results[name]
        print(
            f"{name:30} {row['ratio']:.3f}  ({row['low']:.3f} to {row['high']:.3f})   "
            f"{row['a_ms']:.1f} / {row['b_ms']:.1f} ms",
            flush=True,
        )
    if args.out:
        about = environment.describe(torch.device("cpu"), 1, "")
        setting = {"preset": args.preset, "batch": args.batch, "context": shape.context, "vocabulary": shape.vocab_size}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"setting": setting, "environment": about, "rows": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
