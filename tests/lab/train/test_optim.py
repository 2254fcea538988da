"""Schedules, parameter groups, Muon, own recipes, precision, recomputation, compilation."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch._dynamo.utils import counters

from geonorm.errors import ConfigError
from geonorm.lab.compare.config import CompareConfig
from geonorm.lab.config import Optim, Runtime, TrainConfig
from geonorm.lab.distributed import parallel
from geonorm.lab.distributed.ranks import ALONE
from geonorm.lab.resolve import resolve
from geonorm.lab.schedule import Schedule
from geonorm.lab.train import optim
from geonorm.lab.train.muon import Muon, orthogonalize
from geonorm.models import PRESETS, Decoder, DecoderConfig

from ...rows import each
from ..conftest import rows, summary

SHAPE = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}
IDS = torch.arange(2 * 8).view(2, 8)


def model(scheme: str = "geonorm", **changes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(scheme=scheme, **{**SHAPE, **changes}))


@each(
    "settings, wanted",
    [
        ({"schedule": "cosine", "warmup": 0.1, "floor": 0.1}, {1: 0.1, 5: 0.5, 10: 1.0, 55: 0.55, 100: 0.1}),
        ({"schedule": "cosine", "warmup": 0.0, "floor": 0.0}, {50: 0.5, 100: 0.0}),
        ({"schedule": "wsd", "warmup": 0.1, "cooldown": 0.2, "floor": 0.0}, {5: 0.5, 10: 1, 80: 1, 90: 0.5, 100: 0.0}),
        ({"schedule": "wsd", "warmup": 0.0, "cooldown": 0.5, "floor": 0.1}, {1: 1, 50: 1, 75: 0.5, 99: 0.1}),
        ({"schedule": "constant", "warmup": 0.2}, {1: 0.05, 20: 1, 21: 1, 100: 1}),
        ({"schedule": "constant", "warmup": 0.0}, {1: 1, 100: 1}),
        ({"schedule": "cosine", "warmup": 1.0}, {1: 0.01, 100: 1}),
        ({"schedule": "constant", "warmup": 0.5, "warmup_steps": 4}, {1: 0.25, 4: 1, 5: 1}),
    ],
)
def test_schedules_at_key_steps(settings: dict[str, Any], wanted: dict[int, float]) -> None:
    rates = {step: Schedule(Optim(**settings), 1.0, 100).rate(step) for step in range(1, 101)}
    for step, value in wanted.items():
        assert rates[step] == pytest.approx(value, abs=1e-12), step
    assert all(0 <= value <= 1 for value in rates.values())
    assert Schedule(Optim(**settings), 1.0, 100, average=1e-3).averaging_start == 99, "one at least"


def test_the_recipe_that_holds_where_nothing_is_said() -> None:
    """A run whose settings are stored keeps its own; a new one must not find another recipe unnoticed."""
    adam = {"name": "adamw", "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "independent": False}
    schedule = {"schedule": "cosine", "warmup": 0.1, "warmup_steps": None, "cooldown": 0.2, "floor": 0.1}
    assert vars(TrainConfig().optim) == adam | schedule | {"clip": 1.0, "rates": []}
    (found,) = optim.build_optimizers(model(), TrainConfig().optim, lr=0.01)
    assert found.defaults["betas"] == (0.9, 0.95) and found.defaults["eps"] == 1e-8


def test_modern_brings_its_scheme_and_its_optimizer() -> None:
    for name, shape in PRESETS.items():
        if not shape.causal:
            continue
        config, own = TrainConfig(preset=name), ("lambdas", "muon") if "modern" in name else ("geonorm", "adamw")
        assert (config.scheme, config.optim.name, config.shape(config.scheme).scheme) == (*own, own[0])
    given = TrainConfig(preset="modern", scheme="geonorm", optim=Optim(name="adamw", clip=0.5))
    assert (given.scheme, given.optim.name, given.optim.clip) == ("geonorm", "adamw", 0.5)
    assert given.shape("geonorm").values == "token" and given.shape("geonorm").soft_cap == 15
    assert CompareConfig(preset="modern").optim.name == "muon"


def groups(decoder: Decoder, name: str) -> dict[str, set[str]]:
    called = {id(p): n for n, p in decoder.named_parameters()}
    found: dict[str, set[str]] = {}
    for optimizer in optim.build_optimizers(decoder, Optim(name=name, weight_decay=0.3), 1e-3):  # type: ignore[arg-type]
        for group in optimizer.param_groups:
            key = f"{type(optimizer).__name__} {group['weight_decay']}"
            found.setdefault(key, set()).update(called[id(p)] for p in group["params"])
    return found


def test_weight_decay_goes_by_role() -> None:
    assert "embed.weight" in groups(model(tied=True), "adamw")["AdamW 0.0"]
    decoder = model("ngpt", bias=True)
    found = groups(decoder, "adamw")
    assert set(found) == {"AdamW 0.3", "AdamW 0.0"}
    assert all(name.endswith(".weight") and ("blocks." in name or name == "head.weight") for name in found["AdamW 0.3"])
    assert len(found["AdamW 0.3"]) == 2 * 7 + 1
    assert "embed.weight" in found["AdamW 0.0"]
    assert found["AdamW 0.3"] | found["AdamW 0.0"] == {name for name, _ in decoder.named_parameters()}


@each("name", ["adamw", "muon"])
@each("lr", [1e-2, 1e-3])
def test_independent_decay_is_the_schedules_alone(name: Any, lr: float) -> None:
    """With a gradient of 0 a matrix shrinks by weight_decay times the schedule, at any rate."""
    decoder = model()
    weight = decoder.blocks[0].mlp.branch.down.weight
    before = weight.detach().clone()
    for parameter in decoder.parameters():
        parameter.grad = torch.zeros_like(parameter)
    settings = Optim(name=name, weight_decay=0.02, independent=True, rates=["down=4"])
    for optimizer in optim.build_optimizers(decoder, settings, lr):
        for group in optimizer.param_groups:
            group["lr"] = lr * group["lr_multiplier"] * 0.25
        optimizer.step()
    torch.testing.assert_close(weight.detach(), before * (1 - 0.02 * 0.25))
    torch.testing.assert_close(decoder.head.weight.norm(), model().head.weight.norm() * 0.995)


def test_independent_decay_needs_a_rate_and_a_share_of_one_step() -> None:
    with pytest.raises(ConfigError, match="learning rate above 0"):
        optim.build_optimizers(model(), Optim(independent=True, weight_decay=1e-4), 0.0)
    with pytest.raises(ConfigError, match="off every matrix in a step"):
        Optim(independent=True)  # the default is meant for a decay that the rate multiplies


@each(
    "settings, said",
    [
        ({"warmup_steps": 21}, "warm-up of 21 of 20 steps goes beyond step 20, the end"),
        ({"schedule": "wsd", "warmup": 0.9}, "warm-up of 18 of 20 steps goes beyond step 16, the cool-down"),
        ({"schedule": "wsd", "warmup_steps": 17, "cooldown": 0.2}, "beyond step 16"),
    ],
)
def test_a_warm_up_that_does_not_end_in_time_is_refused(settings: dict[str, Any], said: str) -> None:
    """The rate would never be the one that is given and reported. One that ends at the last moment is not."""
    Schedule(Optim(warmup_steps=20), 1.0, 20)
    Schedule(Optim(schedule="wsd", warmup=0.8, cooldown=0.2), 1.0, 20)
    with pytest.raises(ConfigError, match=said):
        resolve(TrainConfig(steps=20, optim=Optim(**settings)))


def test_muon_takes_the_matrices_of_blocks_alone() -> None:
    decoder = model("geonorm(learn=affine)")
    found = groups(decoder, "muon")
    assert len(found["Muon 0.3"]) == 2 * 7 and all(name.startswith("blocks.") for name in found["Muon 0.3"])
    assert found["AdamW 0.3"] == {"head.weight"}
    assert sum(map(len, found.values())) == len(list(decoder.named_parameters()))


def test_own_recipe_takes_effect_and_is_on_record(train: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = train(run, "--scheme", "ngpt", "--recipe", "own", "--steps", 3, "--optim.warmup", 0.5)
    assert result.status == 0 and "own recipe of ngpt: weight_decay 0, warmup 0" in result.out
    first, second, _ = rows(run / "metrics.jsonl")
    assert first["lr"] > second["lr"]  # no warm-up
    assert summary(run)["own_recipe"] == summary(run)["paper_recipe"] == {"weight_decay": 0.0, "warmup": 0.0}
    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["recipe"] == "own" and stored["optim"]["warmup"] == 0.5  # what was asked for
    assert resolve(TrainConfig(scheme="ngpt")).schedule.optim == Optim(name="adamw")
    assert resolve(TrainConfig(scheme="pre", recipe="own")).schedule.optim == Optim(name="adamw")


@pytest.mark.filterwarnings("ignore")  # torch silences its compiler's warnings itself
def test_a_ninth_model_of_a_process_is_compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch stops at eight graphs of one function. Traced alone: what is made of a graph does not matter here."""
    torch.compiler.reset()
    compiled = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda block: compiled(block, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        for width in range(16, 16 + 9 * 4, 4):  # shapes that share no graph
            shape = DecoderConfig(scheme="pre", layers=1, width=width, heads=1, hidden=width, vocab_size=16, context=8)
            decoder = parallel.distribute(Decoder(shape), Runtime(compile=True), torch.device("cpu"))
            decoder(torch.zeros(1, 8, dtype=torch.long))
    torch.compiler.reset()


SHAPES = [(8, 8), (4, 12), (12, 4)]


def weight_after(kind: type[torch.optim.Muon], shape: tuple[int, int], count: int = 3, **more: object) -> torch.Tensor:
    draw = torch.Generator().manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(shape, generator=draw))
    settings: dict[str, Any] = {"lr": 0.1, "weight_decay": 5.0, "adjust_lr_fn": "match_rms_adamw", **more}
    optimizer = kind([weight], **settings)
    for _ in range(count):
        weight.grad = torch.randn(shape, generator=draw)
        optimizer.step()
    return weight.detach()


@each("shape", SHAPES)
@each("nesterov", [True, False])
def test_steps_are_torchs_to_the_rounding_of_bfloat16(shape: tuple[int, int], nesterov: bool) -> None:
    ours, theirs = (weight_after(kind, shape, nesterov=nesterov) for kind in (Muon, torch.optim.Muon))
    assert 0 < (ours - theirs).norm() / theirs.norm() < 0.02
    assert (weight_after(Muon, shape, 1) - weight_after(Muon, shape, 0)).norm() > 0.1


@each("shape", SHAPES)
def test_singular_values_go_through_the_polynomial_and_vectors_stay(shape: tuple[int, int]) -> None:
    """On the singular value decomposition: u, v stay, s -> a s + b s^3 + c s^5, five times. Zero divides nothing."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    a, b, c = 3.4445, -4.7750, 2.0315
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = a * s + b * s**3 + c * s**5
    result = orthogonalize(matrix, (a, b, c), 5, 1e-7)
    torch.testing.assert_close(result, u @ s.diag() @ v, rtol=1e-12, atol=1e-12)
    assert orthogonalize(matrix.float(), (a, b, c), 5, 1e-7).dtype == torch.float32
    assert not orthogonalize(0 * matrix, (a, b, c), 5, 1e-7).any()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute of a Tensor:UserWarning")
def test_blocks_are_compiled_also_where_they_are_computed_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler passes over what it does not see through, without a word: the frames that it made tell. How code is
    made of them does not matter here, and inductor would take a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    frames, ids = [], torch.arange(8)[None]
    plain = model()
    wanted = plain.loss(ids, ids)
    wanted.backward()
    for recompute in (False, True):
        torch._dynamo.reset()
        counters.clear()
        compiled = model()
        parallel.distribute(compiled, Runtime(compile=True, recompute=recompute), torch.device("cpu"))
        loss = compiled.loss(ids, ids)
        loss.backward()
        torch.testing.assert_close(loss, wanted, rtol=1e-6, atol=0)
        for ours, theirs in zip(compiled.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
        frames.append(counters["frames"]["ok"])
    assert frames[0] == frames[1] > 1 and not counters["graph_break"]


def test_no_rank_draws_what_another_run_does() -> None:
    seeds = [parallel.rank_seed(seed, replace(ALONE, rank=rank, size=4)) for seed in range(4) for rank in range(4)]
    assert len(set(seeds)) == 16 and seeds[::4] == [0, 1, 2, 3]
