"""Runs of plans trained at tiny size, and kept, probed as those of the plan are."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from geonorm.cli.main import main

from .made import ROOT, plan_of


def shrink(words: Sequence[str], folder: Path) -> list[str]:
    """A command of a plan at tiny size, on a text of its own."""
    text = folder / "text.txt"
    text.write_text("".join(f"line {n} of a text that is short, {n * n}\n" for n in range(2000)))
    small = {
        "--data": text, "--tokens.tokenizer": "byte", "--steps": 3, "--model.width": 16, "--model.hidden": 16,
        "--model.layers": 2, "--model.heads": 2, "--model.context": 16, "--model.vocab_size": 260,
        "--evaluation.every": 3, "--evaluation.tokens": 256, "--evaluation.trace_tokens": 32,
        "--runtime.compile": "false", "--optim.warmup_steps": 1,
    }  # fmt: skip
    pairs = zip(words[::2], words[1::2], strict=True)
    kept = [word for pair in pairs if pair[0] not in small for word in pair]
    return [*kept, *(str(word) for pair in small.items() for word in pair)]


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["plain-mhc-", "zero-nag-", "modern-geonorm-", "neox-geonorm"])
def test_a_run_of_016_trains_at_tiny_size(cell: str, tmp_path: Path) -> None:
    words = next(list(words) for name, words in plan_of("016-streams")({}).items() if name.startswith(cell))
    out = tmp_path / "runs" / "mine"
    assert main(["train", *shrink(words, tmp_path), "--out", str(out)]) == 0
    assert (out / "summary.json").exists()
    (tmp_path / "runs.py").write_text("PROBED = 'mine'\n")
    probed = runpy.run_path(str(ROOT / "probed.py"))
    for _ in range(2):  # once and no more
        probed["main"](tmp_path, tmp_path / "runs")
        head, *lines = (tmp_path / "probes.csv").read_text().splitlines()
        assert [line.split(",")[:4] for line in lines] == [
            ["mine", step, layer, kind]
            for step in ("3",) for layer, kind in [*product("01", ("attn", "mlp")), ("0", "block"), ("1", "block")]
        ]  # fmt: skip
        assert head.endswith(",worth") and float(lines[-1].rpartition(",")[2]) < 1
