"""Attention against plain loops, and what its weights are drawn from."""

from math import exp, sqrt
from typing import Any

import torch
from torch import Tensor

from geonorm.dynamics import Attention, Fresh, random_attention, uniform

from ..rows import each

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def slow_attention(field: Attention, y: Tensor) -> Tensor:
    """One system (n, dim), one pair at a time."""
    n = len(y)
    q, k, v = (y if w is None else y @ w for w in (field.q, field.k, field.v))
    rows = []
    for j in range(n):
        seen = range(j + 1) if field.causal else range(n)
        weights = [exp(field.beta * float(q[j] @ k[i])) for i in seen]
        rows.append(sum(w * v[i] for w, i in zip(weights, seen, strict=True)) / sum(weights))
    return torch.stack(rows)


@each("causal", [False, True])
@each(
    "settings",
    [
        {},
        {"beta": -0.7},
        {name: normal(6, 6, seed=i) for i, name in enumerate("qkv")},
        {"q": normal(6, 4, seed=5), "k": normal(6, 4, seed=6)},
    ],
)
def test_attention_is_what_two_loops_give(settings: dict[str, Any], causal: bool) -> None:
    y = uniform(7, 6)
    field = Attention(**{"beta": 1.3, **settings}, causal=causal)
    torch.testing.assert_close(field(y)[0], slow_attention(field, y[0]), rtol=1e-12, atol=1e-14)


@each("causal", [False, True])
@each("dtype", [torch.float32, F64])
def test_a_batch_is_a_loop_over_its_systems(dtype: torch.dtype, causal: bool) -> None:
    y = uniform(33, 8, seeds=range(3), dtype=dtype)
    weights = {name: normal(3, 8, 8, seed=i).to(dtype) for i, name in enumerate("qkv")}
    whole = Attention(2.0, causal, **weights)(y)
    for i in range(3):
        one = Attention(2.0, causal, **{name: w[i] for name, w in weights.items()})(y[i])
        torch.testing.assert_close(one, whole[i], rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-13)


def test_random_weights_are_a_function_of_seed_and_layer() -> None:
    def draw(seed: int, layer: int, which: str = "q") -> Any:
        return getattr(random_attention(64, seed=seed, layer=layer), which)

    assert torch.equal(draw(1, 2), draw(1, 2))
    for other in (draw(1, 3), draw(2, 2), draw(1, 2, "k"), draw(1, 2, "v")):
        assert not torch.allclose(draw(1, 2), other)
    for init, gain in (("kaiming", sqrt(2)), ("gaussian", 1.0)):
        field = random_attention(512, init=init)
        assert field.q is not None and field.beta == sqrt(512)
        assert abs(field.q.std().item() * sqrt(512) / gain - 1) < 0.01


def test_fresh_weights_change_at_whole_layers_only() -> None:
    layers: list[int] = []

    def make(layer: int) -> Attention:
        layers.append(layer)
        return random_attention(6, layer=layer)

    field, y = Fresh(make), uniform(5, 6)
    out = [field(y, tau) for tau in (0.0, 0.9, 1.0, 1.5, 2.0)]
    assert layers == [0, 1, 2]
    assert torch.equal(out[0], out[1]) and torch.equal(out[2], out[3]) and not torch.equal(out[1], out[2])
    assert torch.equal(out[4], random_attention(6, layer=2)(y))
