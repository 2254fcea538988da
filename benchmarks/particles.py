"""The velocity of the simulator beside one that a physicist would write for one scheme, by hand: Runge-Kutta 4, in
turns, one thread, CPU time of this process.

    python benchmarks/particles.py --tokens 64 --dim 32 [--causal]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from math import pi
from statistics import median
from time import process_time

import torch
from torch import Tensor

from geonorm import dynamics
from geonorm.dynamics.recorded import RECORD_AFTER

Velocity = Callable[[Tensor, float], Tensor]
STEPS, STEP = 25, 0.02


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


UNSEEN: list[Tensor] = []
"""The causal mask, if one is asked for."""


def attention(y: Tensor) -> Tensor:
    scores = y @ y.mT
    for mask in UNSEEN:
        scores = scores.masked_fill(mask, -torch.inf)
    return torch.softmax(scores, dim=-1) @ y


def across(x: Tensor, u: Tensor) -> Tensor:
    return u - (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x


def geonorm(x: Tensor, tau: float) -> Tensor:
    v = across(x, attention(x))
    ratio = v.norm(dim=-1, keepdim=True) / x.norm(dim=-1, keepdim=True)
    return v * (pi / 4 / ratio).clamp(max=1.0) / (tau + 1)


BY_HAND: dict[str, tuple[Velocity, bool]] = {
    "pre": (lambda x, tau: attention(unit(x)), False),
    "post": (lambda x, tau: across(x, attention(x)), True),
    "peri": (lambda x, tau: unit(attention(unit(x))), False),
    "sqrt": (lambda x, tau: across(x, attention(x)) / (tau + 1) ** 0.5, True),
    "ngpt(alpha=1)": (lambda x, tau: across(x, unit(attention(x))), True),
    "geonorm": (geonorm, True),
}
"""dx/dtau, and whether the radius is restored after a step."""


@torch.no_grad()
def walk(velocity: Velocity, sphere: bool, x: Tensor) -> Tensor:
    for i in range(STEPS):
        t, h = i * STEP, STEP
        a = velocity(x, t)
        b = velocity(x + h / 2 * a, t + h / 2)
        c = velocity(x + h / 2 * b, t + h / 2)
        d = velocity(x + h * c, t + h)
        x = x + h / 6 * (a + 2 * b + 2 * c + d)
        if sphere:
            x = unit(x)
    return x


def timed(work: Callable[[], Tensor]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, value in (("--tokens", 64), ("--dim", 32), ("--rounds", 15)):
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--causal", action="store_true")
    asked = parser.parse_args()
    if asked.causal:
        UNSEEN.append(torch.ones(asked.tokens, asked.tokens, dtype=torch.bool).triu(1))
    torch.set_num_threads(1)
    system = f"{'causal' if asked.causal else 'full attention'}, n = {asked.tokens}, d = {asked.dim}, fp64"
    print(f"{system}, {asked.rounds} rounds of {STEPS} steps; milliseconds a step")
    for scheme, (velocity, sphere) in BY_HAND.items():
        flow = dynamics.Flow(scheme, dynamics.Attention(causal=asked.causal))
        x = flow.start(dynamics.uniform(asked.tokens, asked.dim))
        for _ in range(2 + RECORD_AFTER // (4 * STEPS)):
            end = walk(flow.velocity, sphere, x)
        torch.testing.assert_close(end, walk(velocity, sphere, x), rtol=0, atol=1e-8)
        both = partial(walk, flow.velocity, sphere, x), partial(walk, velocity, sphere, x)
        pairs = [(timed(both[0]), timed(both[1])) for _ in range(asked.rounds)]
        ratios = sorted(a / b for a, b in pairs)
        ours, plain = (median(side) / STEPS * 1e3 for side in zip(*pairs, strict=True))
        low, high = ratios[asked.rounds // 4], ratios[-1 - asked.rounds // 4]
        print(f"{scheme:14} {ours:.3f} beside {plain:.3f}: {median(ratios):.2f} x ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
