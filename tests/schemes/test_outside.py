"""A residual scheme in a file of its own, outside the package, is a scheme like any other: it trains, saves, reloads,
writes text, mixes, has rates, and stands in a comparison's report, by `geonorm compare --schemes pre module:Name`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from geonorm import Decoder, DecoderConfig, Site, dynamics, parse
from geonorm.cli import main
from geonorm.lab.train import load_run
from geonorm.nn import generate

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
    assert len([line for line in RULE.splitlines() if line.strip()]) < 15
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


def test_the_whole_way_from_a_file_to_a_report(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run of the comparison is a process of its own, which finds the rule on its path."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("".join(f"{i} times {i % 7} makes {i * (i % 7)}.\n" for i in range(900)))
    name, out = f"{rule}(keep=0.5)", tmp_path / "out"
    shape = (
        "--model.layers 2 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 257"
    )
    arguments = [
        "compare", "--schemes", "pre", name, "--data", str(tmp_path / "text.txt"), "--out", str(out),
        "--steps", "4", "--seeds", "1", "--tokens.tokenizer", "byte", "--evaluation.tokens", "128",
        "--evaluation.trace_tokens", "32", "--runtime.tensorboard", "false", "--runtime.device", "cpu", *shape.split(),
    ]  # fmt: skip
    assert main(arguments) == 0
    found = json.loads((out / "results.json").read_text())
    assert [row["scheme"] for row in found["schemes"]] == ["pre", name]
    assert all(run["status"] == "finished" and 2 < run["val_loss"] < 9 for run in found["runs"])
    assert name in (out / "report.html").read_text()
    path = out / "runs" / found["runs"][1]["run"]
    model, config, _ = load_run(path, torch.device("cpu"))
    assert config.scheme == name and str(model.scheme) == name
    prompt = torch.tensor([[49, 32, 116]])
    texts = [torch.cat(list(generate(model, prompt, 6, temperature=0, cached=cached)), 1) for cached in (True, False)]
    assert torch.equal(*texts)
    rows = [json.loads(line) for line in (path / "trace.jsonl").read_text().splitlines()]
    assert {row["scheme"] for row in rows} == {name} and len(rows) % 4 == 0
