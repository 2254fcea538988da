"""A run that begins with the weights of another one, also under another scheme."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm.lab.runs.provenance import seen_data

from ..test_checkpoint import weights


@pytest.fixture
def source(train: Any, tmp_path: Path) -> Path:
    assert train(tmp_path / "source", "--scheme", "pre", "--steps", 3).status == 0
    return tmp_path / "source"


def test_it_begins_with_the_weights_and_at_step_0(source: Path, train: Any, tmp_path: Path) -> None:
    """At a rate of 0 its weights stay; its optimizer has counted one step."""
    run = tmp_path / "run"
    begun = train(run, "--scheme", "pre", "--steps", 1, "--lr", 0, "--init-from", source)
    assert begun.status == 0
    assert "at step 3 (pre): " in begun.out and "at their initial values: nothing; left out: nothing" in begun.out
    before, after = weights(source / "checkpoints/step-3"), weights(run / "checkpoints/step-1")
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    optimizer = weights(run / "checkpoints/step-1", "optimizer")
    assert {int(t) for name, t in optimizer.items() if name.endswith(".step")} == {1}


@pytest.mark.parametrize(
    ("scheme", "missing", "left"),
    [
        ("peri", "blocks.*.attn.own.output.weight (1), blocks.*.mlp.own.output.weight (1)", "nothing"),
        ("geonorm", "nothing", "blocks.*.attn.own.input.weight (1), blocks.*.mlp.own.input.weight (1)"),
    ],
)
def test_under_another_scheme_names_that_match_are_loaded(
    scheme: str, missing: str, left: str, source: Path, train: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    begun = train(run, "--scheme", scheme, "--steps", 1, "--lr", 0, "--init-from", source)
    assert begun.status == 0 and f"at their initial values: {missing}; left out: {left}\n" in begun.out
    before, after = weights(source / "checkpoints/step-3"), weights(run / "checkpoints/step-1")
    assert all(torch.equal(before[name], after[name]) for name in before.keys() & after.keys())
    assert all(bool((after[name] == 1).all()) for name in after.keys() - before.keys())


def test_constraints_of_the_new_scheme_hold_from_the_start(source: Path, train: Any, tmp_path: Path) -> None:
    options = "--scheme ngpt --steps 1 --guard rewind --init-from".split()
    assert train(tmp_path / "run", *options, source).status == 0
    rows = weights(tmp_path / "run/checkpoints/step-0")["model.embed.weight"].norm(dim=-1)
    torch.testing.assert_close(rows, torch.ones_like(rows))


def test_only_its_beginning_needs_the_source(source: Path, train: Any, losses: Any, after: Any, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    options = ["--scheme", "geonorm", "--steps", 6, "--init-from", source]
    train(whole, *options)
    with after(3):
        assert train(cut, *options).status == 130
    source.rename(tmp_path / "moved")
    assert train(cut, *options).status == 0
    assert losses(cut) == losses(whole)
    recorded = json.loads((cut / "environment.json").read_text())
    assert recorded[0]["init_from"]["step"] == 3 and "init_from" not in recorded[1]


def test_what_the_source_was_trained_on_was_seen(source: Path, train: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("spheres keep their radius while residual streams grow.\n" * 300)
    assert train(tmp_path / "run", "--steps", 1, "--data", other, "--init-from", source).status == 0
    assert len(seen_data(tmp_path / "run")) == 2 and seen_data(source) < seen_data(tmp_path / "run")
