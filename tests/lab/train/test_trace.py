"""The trace of our own models: sites join up, gradients add up, clamps are counted, nothing is left behind."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import sphere
from geonorm.lab.train import trace as lab
from geonorm.measure.observe import gradient_norms, sites_of, watch
from geonorm.models import Decoder, DecoderConfig
from geonorm.schemes import names, read_at, write_at

from ...rows import each
from ..conftest import rows

IDS = torch.arange(3 * 8).view(3, 8) % 32


def model(scheme: str, **changes: Any) -> Decoder:
    torch.manual_seed(0)
    shape = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8, **changes}
    return Decoder(DecoderConfig(scheme=scheme, **shape))


def rms(x: torch.Tensor) -> torch.Tensor:
    return x / x.square().mean(-1, keepdim=True).add(1e-6).sqrt()


MEASURED = {  # the one vector per token that stands for several streams
    "residual_dual": lambda x: x[..., 0, :],
    "siamese": lambda x: x[..., 0, :] + rms(x[..., 1, :]),
    "hyper": lambda x: x.sum(-2) / 4,
    "mhc": lambda x: x.sum(-2) / 4,
    "gated_streams": lambda x: x.sum(-2) / 4,
    "attnres": lambda x: x.sum(-2),
    "lambdas": lambda x: x[..., 0, :],
    "lanes": lambda x: (x[..., 0, :] + x[..., 1, :]) / 2,
}


def hooks(decoder: Decoder) -> int:
    return sum(len(module._forward_hooks) + len(module._backward_hooks) for module in decoder.modules())


@each("scheme, block", [*((name, "sequential") for name in names()), ("hyper", "parallel"), ("geonorm", "parallel")])
def test_every_scheme_has_a_trace_that_joins_up(scheme: str, block: str) -> None:
    """A row for each sub-layer, in the plane of x and u where the scheme says so, and for each norm of the stream."""
    decoder = model(scheme, block=block)
    decoder.train()
    seen = []
    with watch(decoder, lambda place, x, u, after: seen.append((place.site, x, u, after))):
        logits = decoder(IDS)
    assert [site for site, *_ in seen] == [place.site for place in sites_of(decoder)]
    for (_, _, _, after), (_, x, _, _) in pairwise(seen):
        assert torch.equal(after, x)
    rows, norms = lab.trace(decoder, IDS, 5, {})
    assert hooks(decoder) == 0 and decoder.training and torch.equal(decoder(IDS), logits)
    for row, (_, x, u, after) in zip(rows, seen, strict=True):
        if scheme in MEASURED:
            x, after = (MEASURED[scheme](each) for each in (x, after))
        assert row["radius"] == pytest.approx(x.norm(dim=-1).mean().item(), rel=1e-5)
        assert row["step_norm"] == pytest.approx((after - x).norm(dim=-1).mean().item(), rel=1e-5)
        assert row["update_norm"] == pytest.approx(u.norm(dim=-1).mean().item(), rel=1e-5)
        assert row["step"] == 5 and (row["clamped"] is None) == ("geonorm" not in row["scheme"])
        json.dumps(row, allow_nan=False)
    residuals = [place.residual for place in sites_of(decoder)]
    for row, residual in zip(rows, residuals, strict=True):
        assert not residual.scheme.planar or row["off_plane"] < 1e-6
        assert (row["speed"] is None) == (not residual.scheme.planar or row["scheme"] == "rezero")  # it turns nothing
    own = [decoder.entry.own, *(residual.own for residual in residuals), decoder.exit.own]
    assert len(norms) == sum(type(module) in lab.NORMS for part in own for module in part.modules())
    for row in norms:
        assert row["step"] == 5 and row["kind"] in ("entry", "attn", "mlp", "parallel", "exit")
        assert row["norm_after"] > 0 and 0 <= row["cos_ones_before"] <= 1
        json.dumps(row, allow_nan=False)


@each("scheme", ["geonorm", "geonorm(max_angle=1e-3)", "geonorm(decay=constant, learn=gain)"])
def test_the_angle_of_a_geodesic_step_is_its_law(scheme: str) -> None:
    """The angle is linear in h, clamped or not, so first order is exact."""
    for row in lab.trace(model(scheme), IDS, 1, {}).sites:
        assert row["law_angle"] == pytest.approx(row["angle"], rel=1e-5)
        assert row["law_radius"] == pytest.approx(row["radius_after"], rel=1e-6) and row["law_start"] < 1e-6


@each("scheme", ["pre", "peri", "post", "ngpt", "residual_dual"])
def test_the_law_is_the_limit_of_small_steps(scheme: str) -> None:
    """Of a step of h = 1e-5 by write itself, from where one of 0 ends."""
    decoder = model(scheme).double()
    for gain in (part for part in decoder.parameters() if part.dim() == 1):
        gain.data *= 1 + torch.arange(len(gain)) / 99
    seen: list[Any] = []
    with watch(decoder, lambda place, x, u, after: seen.append((place.home, x, u))):
        decoder(IDS)
    for residual, x, u in seen[:2]:
        rule, site, own = residual.scheme, residual.site(x), residual.own()
        carry = read_at(rule, x, own, site)[1]
        steps = (write_at(rule, x, u, own, site, torch.tensor(h).double(), carry=carry) for h in (0.0, 1e-5))
        start, after = map(rule.seen, steps)
        law, radius, growth = lab.predict_step(residual, x, u), start.norm(dim=-1), after.norm(dim=-1)
        drift, turn = (growth - radius).mean() / 1e-5, sphere.angle(start, after).mean() / 1e-5
        assert law["law_radius"] == pytest.approx((radius.mean() + drift).item(), rel=1e-4)
        assert law["law_start"] == pytest.approx(sphere.angle(rule.seen(x), start).mean().item(), abs=1e-9)
        assert law["law_angle"] == pytest.approx(turn.item(), rel=1e-3)


def test_speed_is_the_scheme_s() -> None:
    """s of Pre-Norm is r, of GeoNorm r t; deepnorm's is its multiplier."""
    decoder = model("pre")
    entering: list[torch.Tensor] = []
    with watch(decoder, lambda place, x, u, after: entering.append(x)):
        decoder(IDS)
    for row, x in zip(lab.trace(decoder, IDS, 1, {}).sites, entering, strict=True):
        assert row["speed"] == pytest.approx(1 / (1 / x.norm(dim=-1)).mean().item(), rel=1e-5)
    for row in lab.trace(model("geonorm(max_angle=3.0, alpha=0.01)"), IDS, 1, {}).sites:
        assert row["speed"] == pytest.approx(100 * 4.0 * row["t"], rel=1e-4)
    for row in lab.trace(model("deepnorm"), IDS, 1, {}).sites:  # N of radius 4 maps u to 4 u / |x|, |x| = 4
        assert row["speed"] == pytest.approx(4.0 * 4**0.25, rel=1e-3)


def test_gradient_norms_add_up() -> None:
    decoder = model("geonorm")
    decoder.loss(IDS, IDS).backward()
    gradients = gradient_norms(sites_of(decoder), lab.gradient_length)
    norms = {(site.layer, site.kind): row for (_, site), row in gradients.items()}
    assert list(norms) == [(0, "attn"), (0, "mlp"), (1, "attn"), (1, "mlp")]
    total = math.sqrt(sum(p.grad.double().square().sum().item() for p in decoder.blocks.parameters()))
    assert math.sqrt(sum(row["grad_norm"] ** 2 for row in norms.values())) == pytest.approx(total, rel=1e-12)
    for layer, block in enumerate(decoder.blocks):
        mlp = block.mlp.branch
        for name, matrices in (("grad_w1", (mlp.up, mlp.gate)), ("grad_w2", (mlp.down,))):
            wanted = torch.stack([matrix.weight.grad.norm() for matrix in matrices]).norm().item()
            assert norms[layer, "mlp"][name] == pytest.approx(wanted, rel=1e-6)
    for row in lab.trace(decoder, IDS, 1, gradients).sites:
        assert [row[name] for name in lab.GRADIENTS] == [norms[row["layer"], row["kind"]].get(n) for n in lab.GRADIENTS]


def test_training_is_the_same_with_and_without(train: Any, losses: Any, tmp_path: Path) -> None:
    for name, tokens in (("with", 96), ("without", 0)):
        options = ["--steps", 4, "--evaluation.every", 1, "--evaluation.trace_tokens", tokens, "--optim.clip", 1e-3]
        assert train(tmp_path / name, *options).status == 0
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    last = "checkpoints/step-4/model.safetensors"
    assert (tmp_path / "with" / last).read_bytes() == (tmp_path / "without" / last).read_bytes()
    traced = rows(tmp_path / "with" / "trace.jsonl")
    assert len(traced) == 8 and all(row["grad_norm"] > 1e-3 for row in traced), "before clipping"
    assert not (tmp_path / "without" / "trace.jsonl").exists()


def test_quantiles_of_the_step_and_of_what_was_proposed() -> None:
    """Under a clamp of pi/8 and constant decay every step is min(proposal, clamp); steps of this size turn."""
    x = torch.zeros(1, 101, 8, dtype=torch.float64)
    x[..., 0] = 2.0
    step = torch.zeros_like(x)
    step[..., 0], step[..., 3] = 5.0, 2 * torch.linspace(0, 1, 101)
    row = lab.tangential_quantiles("proposal", x, step)
    assert row == pytest.approx({"proposal_p05": 0.05, "proposal_p50": 0.5, "proposal_p95": 0.95})
    decoder = model("geonorm(decay=constant, max_angle=pi/8)")
    for site in lab.trace(decoder, IDS, 1, {}).sites:
        for q in ("p05", "p50", "p95"):  # the step along the tangent is the sine of the angle
            angle = min(site[f"proposal_{q}"], math.pi / 8)
            assert site[f"ratio_{q}"] == pytest.approx(math.sin(angle), rel=0.02)
        assert site["ratio_p05"] <= site["ratio_p50"] <= site["ratio_p95"] <= site["ratio_p99"] * 1.02
