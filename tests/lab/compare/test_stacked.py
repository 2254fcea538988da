"""Runs of one scheme as one stacked model: what they would be alone."""

import shutil
import signal
from dataclasses import replace
from pathlib import Path
from threading import Condition, Thread
from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig, parse, report
from geonorm.lab.compare.executors import StackedExecutor, steps_made
from geonorm.lab.train.stack import StackedModels, split_scheme
from geonorm.schemes.registry import REGISTRY

from ...rows import each

STACKED = "--launcher stacked --lrs 3e-3 1e-2 --seeds 1 --steps 4".split()


@pytest.fixture(autouse=True)
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "build", lambda dirs, out, figures: out)


@pytest.fixture
def same_alone(call: Any, losses: Any) -> Any:
    """The first and the last run of a comparison have the losses and gradients that their settings give alone."""

    def check(out: Path, tolerance: float) -> None:
        for folder in sorted((out / "runs").iterdir())[:: len(list((out / "runs").iterdir())) - 1]:
            alone = out.parent / "alone" / folder.name
            words = ["--config", out / "configs" / f"{folder.name}.yaml", "--runtime.compile", "false"]
            assert call("train", *words, "--out", alone).status == 0
            for row, single in zip(losses(folder), losses(alone), strict=True):
                assert row[2:5] == pytest.approx(single[2:5], rel=tolerance), row[0]

    return check


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Of the stacks that are computed."""
    seen, compute = set[int](), StackedModels.compute
    monkeypatch.setattr(StackedModels, "compute", lambda stack: (compute(stack), seen.add(stack.size)))
    return seen


@each(
    "words, within, size",
    [
        ("--schemes geonorm prores", 1e-4, 2),
        ("--schemes peri --optim.rates embed=4 --micro-batch 2 --batch-size 4", 1e-4, 2),
        ("--schemes geonorm geonorm(max_angle=0.2) --runtime.dtype bf16", 2e-2, 4),
    ],
)
def test_losses_are_those_of_runs_alone(
    call: Any, tiny: list[str], same_alone: Any, sizes: set[int], tmp_path: Path, words: str, within: float, size: int
) -> None:
    sizes.clear()
    assert call("compare", *tiny, *STACKED, "--out", tmp_path / "stacked", *words.split()).status == 0
    assert max(sizes) == size
    same_alone(tmp_path / "stacked", within)


@each("text", [*(name for name, kind in REGISTRY.items() if "stackable" in vars(kind)), "peri(max_step=0.5)",
               "geonorm(update=unit)", "geonorm(learn=step)", "siamese(decay=sqrt)"])  # fmt: skip
def test_numbers_of_a_scheme_are_mapped(text: str) -> None:
    """What a scheme calls stackable may differ between the models of a stack."""
    scheme = parse(text)
    _, numbers = split_scheme(scheme)
    stack = StackedModels(Condition(), compiled=False, fields=list(numbers))
    for member in (scheme, replace(scheme, **{name: 0.5 * value for name, value in numbers.items()})):
        model = Decoder(DecoderConfig(str(member), layers=2, width=16, heads=2, hidden=24, vocab_size=32))
        stack.waiting[Thread()] = model, list(model.parameters()), *torch.randint(32, (2, 2, 8))
    waiting = dict(stack.waiting)
    stack.compute()
    for thread, (model, parameters, ids, targets) in waiting.items():
        loss = model.loss(ids, targets)
        gradients = torch.autograd.grad(loss, parameters, materialize_grads=True)
        torch.testing.assert_close(stack.results[thread], (loss.detach(), gradients), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated")  # the compiler loads mkldnn.py
def test_a_compiled_stack(call: Any, tiny: list[str], same_alone: Any, tmp_path: Path) -> None:
    words = ["--schemes", "geonorm", "geonorm(alpha=0.5)", "--runtime.compile", "true", "--out", tmp_path / "stacked"]
    assert call("compare", *tiny, *STACKED, *words).status == 0
    same_alone(tmp_path / "stacked", 1e-4)


def test_it_stops_and_goes_on(
    call: Any, tiny: list[str], same_alone: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C saves every run, and the same command goes on; also where one begins anew, whose scheme counts steps."""
    out, ended = tmp_path / "stacked", StackedExecutor.ended

    def interrupt(executor: StackedExecutor, job: Any) -> bool:
        if steps_made(job.config) > 5 and not executor.stopped:
            signal.raise_signal(signal.SIGINT)
        return ended(executor, job)

    words = "--launcher stacked --schemes prores --seeds 2 --steps 60 --out".split()
    with monkeypatch.context() as patched:
        patched.setattr(StackedExecutor, "wait", 0.01)
        patched.setattr(StackedExecutor, "ended", interrupt)
        stopped = call("compare", *tiny, *words, out)
    assert stopped.status == 130 and "every run is saved" in stopped.err, stopped
    shutil.rmtree(out / "runs" / "prores-lr0.005-seed0")
    assert call("compare", *tiny, *words, out).status == 0
    assert "resuming" in (out / "configs" / "prores-lr0.005-seed1.log").read_text()
    same_alone(out, 1e-3)


def test_what_cannot_be_stacked_is_one_line(call: Any, tiny: list[str], tmp_path: Path) -> None:
    out = tmp_path / "stacked"
    refused = call("compare", *tiny, *STACKED, "--model.norm", "taper", "--out", out)
    assert refused.status == 2 and "use --launcher local" in refused.err and not out.exists()
