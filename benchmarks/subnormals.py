"""A training step on a CPU whose moments have decayed below the smallest normal number, with these counted as zero, as
training does, and without.

    python benchmarks/subnormals.py [--rounds 41] [--out benchmarks/results/subnormals.json]

The model is that of experiment 017 (width 64, four blocks, 2 x 128 tokens a step). A share of its parameters gets no
gradient, like units that are dead, and has moments of 1e-40, in every tensor evenly. Both ways take turns in one
process on one thread, by its CPU time; a ratio is the median of the ratios within rounds with the distribution-free
95 % interval of that median.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from geonorm.bench.timing import Clock, ratio, take_turns
from geonorm.devices import subnormals_as_zero
from geonorm.lab.config import Optim
from geonorm.lab.runs import environment
from geonorm.lab.train.optim import build_optimizers
from geonorm.models import Decoder, DecoderConfig

SHAPE = DecoderConfig(
    scheme="pre(entry=embedding)", layers=4, width=64, heads=4, hidden=256, vocab_size=1024, context=128, mlp="gelu",
    norm="layer", bias=True,
)  # fmt: skip
SHARES = (0.0, 0.02, 0.1, 0.2)
CPU = torch.device("cpu")


def build_step(share: float) -> Callable[[], None]:
    """A step of a model of its own, the same each time."""
    torch.manual_seed(0)
    model = Decoder(SHAPE)
    (optimizer,) = build_optimizers(model, Optim(), 1e-3)
    ids = torch.randint(0, 1024, (2, 129))
    alive = {parameter: (torch.rand_like(parameter) >= share).float() for parameter in model.parameters()}

    def step() -> None:
        logits = model(ids[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        for parameter, mask in alive.items():
            assert parameter.grad is not None
            parameter.grad.mul_(mask)
        optimizer.step()
        optimizer.zero_grad()

    step()
    for parameter, mask in alive.items():
        for name in ("exp_avg", "exp_avg_sq"):
            optimizer.state[parameter][name][mask == 0] = 1e-40
    return step


def time_step(step: Callable[[], None], zeros: bool = False) -> float:
    """CPU seconds of a step."""
    with subnormals_as_zero(CPU) if zeros else nullcontext():
        return Clock(CPU).seconds(step, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.rounds < 6:
        parser.error("--rounds: 6 at least, for an interval")
    torch.set_num_threads(1)

    samplers: dict[str, Callable[[], float]] = {}
    for share in SHARES:
        samplers[f"{share:g} plain"] = partial(time_step, build_step(share))
        samplers[f"{share:g} zeros"] = partial(time_step, build_step(share), zeros=True)
    times = take_turns(samplers, options.rounds)
    found: dict[str, Any] = {"rounds": options.rounds, "ratios": {}, "environment": environment.collect(CPU)}
    for share in SHARES:
        plain, zeros = times[f"{share:g} plain"], times[f"{share:g} zeros"]
        slower = ratio(plain, zeros)
        alone = ratio(plain, times[f"{0:g} plain"])
        found["ratios"][f"{share:g}"] = {"over zeros": slower, "over no subnormals": alone}
        print(
            f"{share:.0%} subnormal: {slower.median:.2f} ({slower.low:.2f} to {slower.high:.2f}) times the step that "
            f"counts them as zero, {alone.median:.2f} times the one without any"
        )
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
