"""Held-out text: a spread part while a run trains, the whole at its end, document by document; averaged weights."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from geonorm import Decoder, DecoderConfig
from geonorm.lab.config import Optim
from geonorm.lab.distributed.ranks import World
from geonorm.lab.open import open_run
from geonorm.lab.resolve import resolve
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.schedule import Schedule
from geonorm.lab.train.averaging import Averaging
from geonorm.lab.train.held_out import evaluate_held_out, share_batches
from geonorm.lab.train.loop import train as train_run
from geonorm.lab.train.text import load_text
from geonorm.lab.train.validation import Validation
from geonorm.progress import Unwatched

from ..conftest import small_config, summary


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    for split in ("train", "validation"):
        (folder / split).mkdir()
    for number in range(3):
        (folder / "train" / f"{number}.txt").write_text("the cat sat on a mat.\n" * (200 + number))
        (folder / "validation" / f"{number}.txt").write_text("abc"[number] * 3 * (100 + 50 * number))
    return folder


def test_the_whole_text_at_the_end(train: Any, books: Path, tmp_path: Path) -> None:
    """A second time token by token, over the ends of documents."""
    run, context = tmp_path / "run", 16
    assert train(run, "--data", books, "--steps", 3, "--evaluation.every", 1, "--evaluation.whole", "true").status == 0
    first, _, last = read_rows(run / "metrics.jsonl")
    tokens = torch.tensor([t for path in sorted((books / "validation").iterdir()) for t in (*path.read_bytes(), 256)])
    windows = (len(tokens) - 1) // context
    ids, targets = (tokens[at : at + windows * context].view(windows, context) for at in (0, 1))
    with torch.no_grad():
        loss = torch.nn.functional.cross_entropy(open_run(run).model(ids).flatten(0, 1), targets.flatten())
    assert "val_loss_part" not in first and last["val_loss_part"] != last["val_loss"]
    assert summary(run)["val_loss"] == last["val_loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert summary(run)["val_tokens"] == last["val_tokens"] == windows * context


def test_the_whole_text_is_the_default_only_where_it_costs_little(train: Any, books: Path, tmp_path: Path) -> None:
    """1353 tokens of held-out text: an eighth of 22 steps of 32 x 16 and more."""
    for steps, whole in ((21, False), (22, True)):
        words = ["--batch_size", 32, "--evaluation.trace_tokens", 0]
        train(tmp_path / str(steps), "--data", books, "--steps", steps, *words)
        assert ("val_loss_part" in summary(tmp_path / str(steps))) == whole


def test_the_part_and_the_trace_see_all_documents(books: Path) -> None:
    config = small_config(books, evaluation={"tokens": 256, "trace_tokens": 64})
    validation = load_text(resolve(config).text).validation(config.evaluation, config.steps, torch.device("cpu"))
    part, traced = torch.cat([ids for ids, _ in validation.part]), validation.trace_ids()
    assert len(part) == 16 and len(traced) == 4
    for ids in (part, traced):
        assert {letter for letter in map(ord, "abc") if (ids == letter).any()} == set(map(ord, "abc"))


def test_evaluations_during_a_run_read_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sixteenth of the tokens between two of them; the last one an eighth of those of the run, up to 65536."""
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.txt", "validation.txt"):
        (folder / name).write_text(name[0] + "the cat sat on a mat.\n" * 4000)
    config = small_config(folder, evaluation={"whole": False})
    text, lengths = load_text(resolve(config).text), list[int]()

    def measure(self: Any, model: Any, batches: Any) -> dict[str, Any]:
        lengths.append(sum(ids.numel() for ids, _ in batches))
        return {"val_loss": float(lengths[-1]), "val_tokens": lengths[-1]}

    monkeypatch.setattr(Validation, "measure_batches", measure)
    for steps, every, sample, end in ((3000, 2000, 8000, 24000), (3000, 10, 4096, 24000), (10**5, 10**6, 65536, 65536)):
        validation = text.validation(config.evaluation, steps, torch.device("cpu"), every=every)
        assert validation.measure(None, last=False) == {"val_loss": sample} and len(validation.trace_ids()) == 64
        assert validation.measure(None, last=True)["val_loss"] == end
    lengths.clear()
    assert validation.measure(None, last=True) == {"val_loss": 65536} and lengths == [65536]  # once


def test_the_bar_says_that_the_run_evaluates(books: Path, tmp_path: Path) -> None:
    notes: list[str] = []

    class Notes(Unwatched):
        def show(self, name: str, share: float, note: str = "", left: float | None = None) -> None:
            notes.append(note)

    config = small_config(books, steps=2, out=str(tmp_path / "run"), evaluation={"every": 2, "trace_tokens": 0})
    train_run(config, say=lambda line: None, progress=Notes(tell=False))
    assert notes[1] == "2/2 evaluating" and len(notes) == 3 and "evaluating" not in notes[0] + notes[2]


@pytest.mark.parametrize("scheme", ["geonorm(learn=gain)", "ngpt"])
def test_averaged_weights_are_evaluated(train: Any, tmp_path: Path, scheme: str) -> None:
    options = ["--scheme", scheme, "--steps", 10, "--evaluation.average", 0.4]
    weights: list[dict[str, torch.Tensor]] = []
    means: list[dict[str, torch.Tensor]] = []
    with pytest.MonkeyPatch.context() as patch:
        update, apply = Averaging.update, Averaging.apply

        def note(average: Averaging, step: int) -> None:
            update(average, step)
            weights.append({name: p.detach().double().clone() for name, p in average.model.named_parameters()})

        def look(average: Averaging) -> Any:
            means.append({name: mean.clone() for name, mean in average.means.items()})
            return apply(average)

        patch.setattr(Averaging, "update", note)
        patch.setattr(Averaging, "apply", look)
        assert train(tmp_path / "whole", *options).status == 0
    for name, mean in means[0].items():
        expected = sum(step[name] for step in weights[6:]) / 4
        torch.testing.assert_close(mean.double(), expected, rtol=1e-5, atol=1e-7)
    whole = summary(tmp_path / "whole")
    assert whole["val_loss_average"] != whole["val_loss"] and whole["val_bpb_average"] > 0
    last = open_run(tmp_path / "whole").model
    assert all(torch.equal(p.double(), weights[-1][name]) for name, p in last.named_parameters()), "as before"


def test_ranks_take_turns_and_count_each_batch_once() -> None:
    """Five batches for three ranks: all make two passes, and each batch is counted once."""
    found = [list(share_batches(zip(range(5), "abcde", strict=True), World(rank, 3))) for rank in range(3)]
    assert [len(rows) for rows in found] == [2] * 3
    assert sorted(row[:2] for rows in found for row in rows if row[2]) == list(zip(range(5), "abcde", strict=True))
    assert found[2] == [(2, "c", True), (4, "e", False)]


class FirstId(torch.nn.Module):
    def loss(self, ids: torch.Tensor, targets: torch.Tensor, reduction: str) -> torch.Tensor:
        return ids[0, 0].float()


def test_losses_are_added_in_fp64() -> None:
    batches = [(torch.tensor([[number]]), torch.tensor([[0]])) for number in (2**24, 1, 1, 1)]
    found = evaluate_held_out(FirstId(), batches, np.ones(1), torch.device("cpu"))
    assert found["val_loss"] == (2**24 + 3) / 4


def averaged(scheme: str, steps: int = 2, share: float = 1.0) -> tuple[Decoder, Averaging]:
    model = Decoder(DecoderConfig(scheme, layers=1, width=16, heads=2, hidden=16, vocab_size=32, context=8))
    return model, Averaging(model, Schedule(Optim(), 1e-3, steps=steps, average=share))


@torch.no_grad()
def shake(model: Decoder, factor: float = 1.0) -> None:
    for weight in model.parameters():
        weight.mul_(factor).add_(torch.randn_like(weight))
    model.constrain()


def test_an_average_that_begins_anew_forgets_what_it_was() -> None:
    """NaN of steps that were taken back is not in the mean of those that came in their place."""
    model, average = averaged("pre", 4, 0.5)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    shake(model, math.nan)
    average.update(3)
    average.put(before)
    for step in (3, 4):
        average.update(step)
    assert all(torch.equal(mean, before[name]) for name, mean in average.means.items())


def test_an_average_is_measured_with_its_own_matrices_in_bf16() -> None:
    """Autocast keeps casts of weights until its context ends; those of the last weights are no part of the mean."""
    model, average = averaged("pre")
    average.update(1)
    shake(model)
    average.update(2)
    ids = torch.arange(8)[None]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        last = model.loss(ids, ids)
        with average.apply():
            inside = model.loss(ids, ids)
        again = model.loss(ids, ids)
    with average.apply(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        alone = model.loss(ids, ids)
    assert torch.equal(inside, alone) and torch.equal(last, again) and not torch.equal(last, alone)


def test_an_average_keeps_a_constraint() -> None:
    model, average = averaged("ngpt")
    average.update(1)
    shake(model, -1.0)
    average.update(2)
    before = model.head.weight.detach().clone()
    with average.apply():
        assert not torch.equal(model.head.weight, before)
        torch.testing.assert_close(model.head.weight.norm(dim=1), torch.ones(32))
    assert torch.equal(model.head.weight, before)
