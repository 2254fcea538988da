"""Fields against plain loops, and the choices that must not change a result: blocks, batches, kernels."""

from __future__ import annotations

from math import exp, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import dynamics
from geonorm.dynamics import Attention, Fresh, Mlp, fields, random_attention, random_mlp, uniform
from geonorm.errors import ConfigError

from ..rows import each

F64 = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def slow_attention(field: Attention, y: Tensor) -> Tensor:
    """One system (n, dim), one head at a time, one pair at a time."""
    n, dim = y.shape
    heads, head = field.heads, dim // field.heads
    cut = torch.eye(dim, dtype=F64).reshape(dim, heads, head).permute(1, 0, 2)
    q, k, v = (cut if w is None else w for w in (field.q, field.k, field.v))
    out = torch.zeros(n, dim, dtype=F64)
    for h in range(heads):
        rows = torch.zeros(n, v.shape[-1], dtype=F64)
        for j in range(n):
            seen = range(j + 1) if field.causal else range(n)
            weights = [exp(field.beta * float((y[j] @ q[h]) @ (y[i] @ k[h]))) for i in seen]
            rows[j] = sum(w * (y[i] @ v[h]) for w, i in zip(weights, seen, strict=True)) / sum(weights)
        if field.o is not None:
            out += rows @ field.o[h]
        else:
            out[:, h * head : (h + 1) * head] = rows
    return out


def weights(heads: int, head: int, dim: int, with_o: bool) -> dict[str, Tensor]:
    found = {name: normal(heads, dim, head, seed=i) for i, name in enumerate("qkv")}
    return {**found, "o": normal(heads, head, dim, seed=9)} if with_o else found


def take_blocks(patch: pytest.MonkeyPatch, rows: int) -> None:
    """Attention without PyTorch's kernel, so many queries at a time."""
    patch.setattr(fields, "has_kernel", lambda *_: False)
    patch.setattr(fields, "block_rows", lambda *_: rows)


@each("causal", [False, True])
@each(
    "settings",
    [
        {},
        {"heads": 3},
        {"beta": -0.7},
        weights(1, 6, 6, False),
        weights(2, 3, 6, False),
        weights(2, 5, 6, True),
        {"q": normal(2, 6, 4, seed=5), "k": normal(2, 6, 4, seed=6)},
    ],
)
def test_attention_is_what_two_loops_give(settings: dict[str, Any], causal: bool) -> None:
    y = uniform(7, 6)
    field = Attention(**{"beta": 1.3, **settings}, causal=causal)
    expected = slow_attention(field, y[0])
    torch.testing.assert_close(field(y)[0], expected, rtol=1e-12, atol=1e-14)
    with pytest.MonkeyPatch.context() as patch:
        take_blocks(patch, 3)
        torch.testing.assert_close(field(y)[0], expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_blocks_and_batches_do_not_change_the_result(dtype: torch.dtype, causal: bool) -> None:
    y = uniform(33, 8, seeds=range(3), dtype=dtype)
    own = {name: normal(3, 2, 8, 4, seed=i).to(dtype) for i, name in enumerate("qkv")}
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    whole = Attention(beta=2.0, causal=causal, **own)(y)
    for chunk in (1, 5, 33, 100):
        with pytest.MonkeyPatch.context() as patch:
            take_blocks(patch, chunk)
            blocks = Attention(beta=2.0, causal=causal, **own)(y)
        torch.testing.assert_close(blocks, whole, rtol=0, atol=10 * tolerance)
    for i in range(3):
        one = Attention(beta=2.0, causal=causal, **{name: w[i] for name, w in own.items()})(y[i])
        torch.testing.assert_close(one, whole[i], rtol=0, atol=tolerance)


def test_the_automatic_block_size_bounds_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    y = uniform(40, 4, seeds=range(2))
    monkeypatch.setattr(fields, "has_kernel", lambda *_: False)
    expected = Attention()(y)
    monkeypatch.setattr(fields, "BLOCK_BYTES", 2 * 40 * 8 * 18)
    assert fields.block_rows(y.unsqueeze(1), y.unsqueeze(1)) == 18
    torch.testing.assert_close(Attention()(y), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("chunk", [None, 4])
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_huge_beta_selects_the_nearest_key(
    dtype: torch.dtype, chunk: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At beta = 1e4 a unit vector sees itself alone; with k = -I its antipode's nearest."""
    if chunk:
        take_blocks(monkeypatch, chunk)
    y = uniform(12, 8, dtype=dtype)
    torch.testing.assert_close(Attention(beta=1e4)(y), y)
    away = Attention(beta=1e4, k=-torch.eye(8, dtype=dtype)[None])(y)
    nearest = (y @ y.mT).argmin(-1)
    torch.testing.assert_close(away[0], y[0][nearest[0]])


@each(
    "make, message",
    [
        (lambda: Attention(beta=float("nan")), "finite"),
        (lambda: Attention(beta=float("inf")), "finite"),
        (lambda: Attention(q=torch.zeros(4, 4)), "heads"),
        (lambda: Attention(q=torch.zeros(2, 4, 2), k=torch.zeros(3, 4, 2)), "3 heads, expected 2"),
        (lambda: Attention(heads=3)(torch.zeros(1, 2, 4)), "not divisible"),
        (lambda: random_attention(10, heads=3), "not divisible"),
        (lambda: random_attention(8, init="kayming"), "did you mean 'kaiming'"),
        (lambda: Mlp(torch.zeros(4, 8), torch.zeros(7, 4)), "do not fit"),
        (lambda: Mlp(torch.zeros(4, 8), torch.zeros(8, 4), "gellu"), "did you mean 'gelu'"),
    ],
)
def test_bad_settings_are_one_line(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_random_weights_are_a_function_of_seed_and_layer() -> None:
    def drawn(seed: int, layer: int) -> Tensor:
        q = random_attention(64, seed=seed, layer=layer, heads=4).q
        assert q is not None
        return q

    assert torch.equal(drawn(1, 2), drawn(1, 2))
    assert not torch.equal(drawn(1, 2), drawn(1, 3)) and not torch.equal(drawn(1, 2), drawn(2, 2))
    for init, gain in (("kaiming", sqrt(2)), ("gaussian", 1.0)):
        field = random_attention(512, init=init)
        assert field.q is not None and field.o is None and field.beta == sqrt(512)
        assert abs(field.q.std().item() * sqrt(512) / gain - 1) < 0.01
    mlp = random_mlp(16, seed=3)
    y = normal(2, 5, 16)
    expected = torch.nn.functional.gelu(y @ mlp.up) @ mlp.down
    assert mlp.up.shape == (16, 64) and torch.equal(mlp(y), expected)


def test_fresh_weights_change_at_whole_layers_only() -> None:
    made: list[int] = []

    def make(layer: int) -> Attention:
        made.append(layer)
        return random_attention(6, layer=layer)

    field, y = Fresh(make), uniform(5, 6)
    out = [field(y, tau) for tau in (0.0, 0.9, 1.0, 1.5, 2.0)]
    assert made == [0, 1, 2]
    assert torch.equal(out[0], out[1]) and torch.equal(out[2], out[3]) and not torch.equal(out[1], out[2])
    assert torch.equal(out[4], random_attention(6, layer=2)(y))


def test_public_names_exist() -> None:
    assert len(set(dynamics.__all__)) == len(dynamics.__all__)
    for name in dynamics.__all__:
        assert hasattr(dynamics, name)
