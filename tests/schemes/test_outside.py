"""A residual scheme in a file of its own, outside the package, is a scheme like any other."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from geonorm import Decoder, DecoderConfig, Site, dynamics, parse

RULE = """
from dataclasses import dataclass
from geonorm.schemes import Placement

@dataclass(frozen=True)
class Damped(Placement):
    keep: float = 0.9

    def norms(self, site, norm):
        return {"input": norm()}

    def read(self, x, p, site):
        return p["input"](x), None

    def write(self, x, u, carry, p, site, h=1.0):
        return x + h * (u - (1 - self.keep) * x)
"""
NAME = "damped_rule:Damped"


@pytest.fixture
def rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    assert len(RULE.strip().splitlines()) < 16
    (tmp_path / "damped_rule.py").write_text(RULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield NAME
    del sys.modules["damped_rule"]


def test_it_trains(rule: str) -> None:
    torch.manual_seed(0)
    config = DecoderConfig(f"{rule}(keep=0.8)", layers=2, width=32, heads=4, hidden=48, vocab_size=61, context=16)
    model = Decoder(config)
    text = torch.randint(61, (4, 17))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = model.loss(text[:, :-1], text[:, 1:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1
    assert all(p.grad is not None for p in model.parameters())
    assert str(model.scheme) == f"{rule}(keep=0.8)" and parse(str(model.scheme)) == model.scheme


def test_it_mixes_and_has_rates(rule: str) -> None:
    mixed = parse(f"mix(a={rule}, b=geonorm, share=0.5)")
    assert str(mixed.resolve(Site(0, "attn", 2))) == rule
    x, u = torch.randn(2, 3, 8, dtype=torch.float64)
    site = Site(0, "attn", 2)
    r = x.norm(dim=-1)
    torch.testing.assert_close(dynamics.speed(rule, x, u, site), r, rtol=1e-10, atol=0)
    torch.testing.assert_close(dynamics.radial_rate(rule, x, u, site), (x * u).sum(-1) / r - 0.1 * r)
