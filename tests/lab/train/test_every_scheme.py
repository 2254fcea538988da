"""Whatever a scheme touches works for all of them: steps, precision, saving, resuming, text, traces, pages.

Rows are every name and some variants that take other paths through the code; those with streams, slots or weights of
their own in parallel blocks too. One run of four steps is trained for each kind of scheme, for several tests.
"""

from __future__ import annotations

import dataclasses
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geonorm import Decoder, DecoderConfig, names
from geonorm.lab.config import Checkpoint, Evaluation, Model, Runtime, Tokens, TrainConfig
from geonorm.lab.distributed import parallel
from geonorm.lab.open import open_run
from geonorm.lab.runs.folder import read_rows
from geonorm.lab.train.loop import train
from geonorm.models import generate, preset
from geonorm.schemes import advance

from ...rows import each

VARIANTS = [
    "pre(entry=embedding)",
    "post(decay=sqrt, final=norm)",
    "geonorm(learn=affine)",
    "geonorm(input=norm, update=norm, index=sublayer)",
    "geonorm(decay_on=update, retraction=cayley, learn=step)",
    "first(hybrid(input=norm), hybrid)",
    "per_kind(geonorm, peri)",
    "mix(ngpt, geonorm, share=0.5)",
    "siamese(sum=norm, decay=sqrt, alpha=0.7071067811865476)",
    "hyper(n=2, dynamic=none)",
]
SCHEMES = [*names(), *VARIANTS]
PARALLEL = "geonorm deepnorm hybrid ngpt residual_dual siamese hyper mhc attnres lambdas nag".split()
LAYOUTS = [*((scheme, "sequential") for scheme in SCHEMES), *((scheme, "parallel") for scheme in PARALLEL)]
TRAINED = [
    "geonorm(learn=affine)",
    "ngpt",
    "residual_dual",
    "hyper",
    "attnres",
    "nag",
    "prores",
    "first(hybrid(input=norm), hybrid)",
]
SHAPE: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4, "hidden": 48, "vocab_size": 257, "context": 16}
STEPS = 4
CPU = torch.device("cpu")

# a scheme's parameters beside norms and a few scalars, as parts of their names: they come on top of the shared budget
DECLARED = {"ngpt": ("slot",), "angpt": ("slot",), "hyper": (".connection.",), "siamese(sum=norm": (".sum.",),
            "nag": (".modulator.",), "mhc": (".mapping.",), "attnres": (".recall.",),
            "affine": ("update_",)}  # fmt: skip


def decoder(scheme: str, block: str = "sequential", **changes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(scheme, block=block, **(SHAPE | changes)))


def ids(seed: int = 0, rows: int = 2, tokens: int = 12) -> torch.Tensor:
    return torch.randint(257, (rows, tokens), generator=torch.Generator().manual_seed(seed))


@each("scheme, block", LAYOUTS)
def test_three_steps(scheme: str, block: str) -> None:
    """Losses stay finite and every parameter moves: those that multiply a 0 at the start do so by the third step."""
    model = decoder(scheme, block)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model.loss(ids(), ids(1))
        loss.backward()
        assert 2 < loss.item() < 9  # about log 257 = 5.5
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        model.constrain()
        advance(model)
    assert not [name for name, p in model.named_parameters() if not p.grad.any()]


@each("scheme", SCHEMES)
def test_a_step_in_bf16_is_the_step_in_fp32(scheme: str) -> None:
    """Losses within 1 %, and the direction of the whole gradient within 0.1 rad: bf16 keeps 8 bits."""

    def step(dtype: torch.dtype | None) -> tuple[float, torch.Tensor]:
        model = decoder(scheme)
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            loss = model.loss(ids(), ids(1))
        loss.backward()
        assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in model.parameters())
        return loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])

    (exact, gradient), (rounded, turned) = step(None), step(torch.bfloat16)
    assert exact != rounded and rounded == pytest.approx(exact, rel=0.01)
    assert torch.cosine_similarity(gradient, turned, dim=0) > math.cos(0.1)


def declaring(scheme: str) -> list[str]:
    """The names of DECLARED that a scheme is or contains; `affine` is also a value of a field."""
    return [name for name in DECLARED if name in scheme and f"={name}" not in scheme]


def test_parameters_are_those_of_pre_but_for_declared_ones() -> None:
    def count(scheme: str) -> tuple[int, int, int]:
        with torch.device("meta"):
            model = Decoder(preset("nano", scheme=scheme))
        wanted = [part for name in declaring(scheme) for part in DECLARED[name]]
        declared = sum(p.numel() for name, p in model.named_parameters() if any(part in name for part in wanted))
        return model.matmul_parameter_count(), model.parameter_count() - declared, declared

    matrices, everything, _ = count("pre")
    for scheme in SCHEMES:
        found, plain, declared = count(scheme)
        assert found == matrices, scheme
        assert abs(plain - everything) < 0.002 * everything, scheme
        assert (declared > 0) == bool(declaring(scheme)), scheme


class Runs:
    """Trains a scheme on first use: settings and directory."""

    def __init__(self, folder: Path, text: Path, compiled: bool = False) -> None:
        self.folder, self.text, self.compiled = folder, text, compiled

    def settings(self, scheme: str, out: Path) -> TrainConfig:
        return TrainConfig(
            scheme=scheme, out=str(out), data=str(self.text), steps=STEPS, batch_size=2, lr=2e-3, model=Model(**SHAPE),
            tokens=Tokens(tokenizer="byte"), evaluation=Evaluation(every=2, tokens=256, trace_tokens=64),
            checkpoint=Checkpoint(every=2), runtime=Runtime(device="cpu", tensorboard=False, compile=self.compiled),
        )  # fmt: skip

    def __call__(self, scheme: str) -> Path:
        out = self.folder / str(TRAINED.index(scheme))
        if not out.exists():
            with torch.enable_grad():  # the first to ask may be a test without gradients
                train(self.settings(scheme, out), say=lambda line: None)
        return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"), text)


@each("scheme", TRAINED)
def test_resumed_is_uninterrupted_bit_for_bit(scheme: str, run: Runs, tmp_path: Path) -> None:
    check_resumed(scheme, run, tmp_path)


def check_resumed(scheme: str, run: Runs, tmp_path: Path) -> None:
    """From the checkpoint in the middle to the end again: weights, optimizer, losses and trace."""
    whole, again = run(scheme), tmp_path / "run"
    shutil.copytree(whole, again)
    shutil.rmtree(again / "checkpoints" / f"step-{STEPS}")
    (again / "summary.json").unlink()
    said: list[str] = []
    train(run.settings(scheme, again), said.append)
    assert any("at step 2 of 4" in line for line in said)
    for name in ("model.safetensors", "optimizer.safetensors"):
        first, second = (load_file(each / "checkpoints" / f"step-{STEPS}" / name) for each in (whole, again))
        assert first.keys() == second.keys() and first
        assert all(torch.equal(first[key], second[key]) for key in first), name
    assert (whole / "trace.jsonl").read_text() == (again / "trace.jsonl").read_text()
    losses = [[(row["step"], row["loss"]) for row in read_rows(each / "metrics.jsonl")] for each in (whole, again)]
    assert losses[0] == losses[1] and len(losses[0]) == STEPS
    start = load_file(whole / "checkpoints" / "step-2" / "model.safetensors")
    end = load_file(whole / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
    assert not [key for key in start if not key.endswith("layer") and torch.equal(start[key], end[key])], "not trained"


def test_dropout_goes_on_where_it_stood(run: Runs, tmp_path: Path) -> None:
    """Its draws are part of a checkpoint."""
    settings = run.settings(TRAINED[0], tmp_path / "run")
    settings = dataclasses.replace(settings, model=Model(**SHAPE, attn_dropout=0.3, window=8))
    train(settings, say=lambda line: None)
    end = tmp_path / "run" / "checkpoints" / f"step-{STEPS}"
    whole = load_file(end.rename(tmp_path / "whole") / "model.safetensors")
    (tmp_path / "run" / "summary.json").unlink()
    train(settings, say=lambda line: None)
    again = load_file(end / "model.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in whole.items())
    without = load_file(run(TRAINED[0]) / "checkpoints" / f"step-{STEPS}" / "model.safetensors")
    assert not all(torch.equal(value, again[name]) for name, value in without.items())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
def test_a_compiled_run_resumed_is_uninterrupted_bit_for_bit(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel, "PAYS", 0)  # whole
    run = Runs(tmp_path / "whole", text, compiled=True)
    check_resumed(TRAINED[0], run, tmp_path)


@each("scheme", SCHEMES)
@torch.no_grad()
def test_texts_are_the_same_with_and_without_a_cache(scheme: str, run: Runs) -> None:
    model = decoder(scheme).eval()
    if scheme in TRAINED:
        opened = open_run(run(scheme), CPU)
        model = opened.model
        assert opened.config.scheme == scheme
    prompt = ids(rows=1, tokens=5)
    texts = [torch.cat(list(generate(model, prompt, 8, temperature=0, cached=cached)), 1) for cached in (True, False)]
    assert torch.equal(*texts)
    cache = model.new_cache(12)
    parts = [model(ids()[:, a:b], cache) for a, b in ((0, 5), (5, 6), (6, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids()), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "whole"),  # or block by block, where one graph serves all layers
    [("geonorm(learn=affine)", False), ("siamese", False), ("hyper", False), ("ngpt", True)],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_equals_eager(scheme: str, whole: bool) -> None:
    """Loss and gradients."""
    results: list[tuple[Callable[..., Any], Decoder]] = []
    for compiled in (False, True):
        model = decoder(scheme)
        if compiled and not whole:
            for block in model.blocks:
                block.compile()
        loss = parallel.loss_of(model, Runtime(compile=compiled and whole), CPU, parallel.PAYS)(ids(), ids(1))
        loss.backward()
        results.append((loss, model))
    (eager, one), (fast, two) = results
    torch.testing.assert_close(fast, eager, rtol=1e-5, atol=1e-5)
    for (name, p), q in zip(one.named_parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
