"""What sets each single-stream scheme apart beside its equation: scales, constraints, slots, symmetries."""

from __future__ import annotations

from itertools import product
from math import log, pi, sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from scipy import integrate, stats
from torch import Tensor, nn

from geonorm import Decoder, DecoderConfig, Site, names, parse
from geonorm.norms import NormSpec
from geonorm.schemes import Parts, read_at, write_at
from geonorm.schemes.hypersphere import silu_rms

from ..rows import each

DIM, DEPTH = 10, 6
ATTN, MLP = (Site(2, kind, DEPTH) for kind in ("attn", "mlp"))
SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "hidden": 48, "vocab_size": 41, "context": 16}
SPHERET = "geonorm(retraction={}, learn=step, decay=constant, decay_on=update, max_angle=pi)"
VARIANTS = [
    "sandwich(rescale=max)",
    "first(hybrid(input=norm), hybrid)",
    "keel(alpha=2)",
    "rezero(alpha=0.1)",
    "layerscale(start=1e-5)",
    "orthogonal(decay=sqrt)",
    "ngpt(decay=harmonic)",
    "geonorm(after=norm)",
    SPHERET.format("projection"),
    SPHERET.format("cayley"),
    SPHERET.format("3"),
]


@each("kind", ["attn", "mlp"])
@each("name", [n for n in (*names(), *VARIANTS) if parse(n).planar])
def test_rotation_equivariance(name: str, kind: str) -> None:
    """Without gains no direction is special: rotating x and u rotates x'."""
    site = Site(2, kind, DEPTH)
    rule = parse(name).resolve(site)
    own = Parts(rule, site, NormSpec("rms", DIM, gains=False)).double()
    own.reset_parameters()
    generator = torch.Generator().manual_seed(0)
    x, u = torch.randn(2, 4, DIM, dtype=torch.float64, generator=generator)
    turn = torch.linalg.qr(torch.randn(DIM, DIM, dtype=torch.float64, generator=generator))[0]

    def write(x: Tensor, u: Tensor, h: Any) -> Tensor:
        _, carry = read_at(rule, x, own(), site)
        return write_at(rule, x, u, own(), site, h, carry=carry)

    for h in (1.0, torch.tensor(0.3, dtype=torch.float64)):
        if "rescale=max" in name:  # the largest feature depends on the axes, and acts through eps
            torch.testing.assert_close(write(x @ turn, u @ turn, h), write(x, u, h) @ turn, rtol=1e-5, atol=1e-5)
        else:
            torch.testing.assert_close(write(x @ turn, u @ turn, h), write(x, u, h) @ turn, rtol=1e-12, atol=1e-12)


def rescaled(x: Tensor, eps: float) -> Tensor:
    y = x / (x.abs().max(-1, keepdim=True).values / 8)
    return y / (y.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def test_sandwich_rescales_the_input_of_each_of_its_norms() -> None:
    """eps = 0.3, so that dividing by max / 8 is not lost in the norm; the maximum has no gradient."""
    rule, spec = parse("sandwich(rescale=max)"), NormSpec("rms", DIM, eps=0.3)
    own = Parts(rule, ATTN, spec).double()
    x, u = torch.randn(2, 4, DIM, dtype=torch.float64)
    y, _ = read_at(rule, x, own(), ATTN)
    torch.testing.assert_close(y, rescaled(x, 0.3))
    torch.testing.assert_close(rule.write(x, u, own(), ATTN), x + rescaled(u, 0.3))
    end = Parts(rule, Site(DEPTH - 1, "exit", DEPTH), spec).double()
    torch.testing.assert_close(rule.exit(x, end(), ATTN), rescaled(x, 0.3))
    plain = read_at(parse("sandwich"), x, Parts(parse("sandwich"), ATTN, spec).double()(), ATTN)[0]
    assert (plain - y).abs().max() > 1e-3
    x.requires_grad_()
    size = x.detach().abs().max(-1, keepdim=True).values / 8
    (found,) = torch.autograd.grad(own["input"](x).pow(3).sum(), x)  # type: ignore[index]
    z = (x.detach() / size).requires_grad_()
    (fixed,) = torch.autograd.grad((z / (z.pow(2).mean(-1, keepdim=True) + 0.3).sqrt()).pow(3).sum(), z)
    torch.testing.assert_close(found, fixed / size)
    assert own["input"](torch.zeros(1, DIM)).eq(0).all()  # type: ignore[index]


def test_keel_weighs_the_skip_path_by_the_number_of_sub_layers() -> None:
    x = torch.randn(4, DIM, dtype=torch.float64)
    for depth, alpha in ((3, 6.0), (12, 24.0)):
        site = Site(0, "attn", depth)
        keel, fixed = parse("keel"), parse(f"keel(alpha={alpha})")
        own = Parts(keel, site, NormSpec("rms", DIM)).double()
        assert torch.equal(keel.write(x, 2 * x.roll(1), own(), site), fixed.write(x, 2 * x.roll(1), own(), site))


@each("depth, start", [(2, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6)])
def test_layerscale_starts_by_depth(depth: int, start: float) -> None:
    for text, expected in (("layerscale", start), ("layerscale(start=0.3)", 0.3)):
        own = Parts(parse(text), Site(1, "attn", depth), NormSpec("rms", DIM))
        scale = dict(own.named_parameters())["scale.weight"]
        torch.testing.assert_close(scale.detach(), torch.full((DIM,), expected))
        nn.init.zeros_(scale)
        own.reset_parameters()
        torch.testing.assert_close(scale.detach(), torch.full((DIM,), expected))


def test_rezero_is_the_identity_at_first_and_has_one_scalar_per_site() -> None:
    torch.manual_seed(0)
    model = Decoder(DecoderConfig("rezero", **SMALL))
    x = torch.randn(2, 5, 32)
    for _, residual in model.residuals():
        assert [tuple(p.shape) for p in residual.own.parameters()] == [(1,)]
    positions = (torch.ones(5, 4), torch.zeros(5, 4))
    assert torch.equal(model.blocks[0](x, positions=positions), x)


def test_orthogonal_leaves_a_share_eps_of_the_radial_part() -> None:
    x, u = torch.randn(2, 5, DIM, dtype=torch.float64)
    for eps in (1e-6, 0.5):
        rule = parse(f"orthogonal(eps={eps})")
        step = rule.write(x, u, Parts(rule, ATTN, NormSpec("rms", DIM))(), ATTN) - x
        squared, radial = x.pow(2).sum(-1), (x * u).sum(-1)
        torch.testing.assert_close((step * x).sum(-1), radial * eps / (squared + eps), rtol=1e-7, atol=1e-14)
    assert rule.write(torch.zeros(1, 3), torch.ones(1, 3), None, ATTN).eq(1).all()


# anGPT


def test_the_factor_behind_silu_is_that_of_the_notes() -> None:
    """1 / rms(SiLU(z)), z normal with std sqrt(width / hidden), by another quadrature; 3.72 at hidden = 4 width, where
    the notes on the paper have about 3.74."""
    assert 1 / silu_rms(0.5) == pytest.approx(3.74, rel=0.006)
    for std in (0.5, 0.61, 1.0, 2.0):
        square, _ = integrate.quad(
            lambda z, s=std: (s * z / (1 + 2.718281828459045 ** (-s * z))) ** 2 * stats.norm.pdf(z), -12, 12
        )
        assert silu_rms(std) == pytest.approx(sqrt(square), rel=1e-9)


@pytest.mark.parametrize("hidden", [256, 688, 1024])
def test_angpt_keeps_branches_near_the_unit_sphere(hidden: int) -> None:
    """With rows of norm 1 and a unit input, both branches give vectors of norm about 1 (attention to one token)."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig("angpt", layers=1, width=256, heads=4, hidden=hidden, vocab_size=64, context=8))
    with torch.no_grad():
        for _, weight, _, _ in model.weights():
            weight.copy_(F.normalize(torch.randn_like(weight), dim=-1))
        y = F.normalize(torch.randn(64, 1, 256), dim=-1)
        attn, mlp = (residual.branch for _, residual in model.residuals())
        attended = attn(y, positions=(torch.ones(1, 32), torch.zeros(1, 32)))
        assert attended.norm(dim=-1).mean().item() == pytest.approx(1, abs=0.05)
        assert mlp(y).norm(dim=-1).mean().item() == pytest.approx(1, abs=0.05)


def test_angpt_step_keeps_the_norm_of_orthogonal_unit_vectors() -> None:
    rule = parse("angpt(alpha=0.3)")
    own = Parts(rule, ATTN, NormSpec("rms", 4)).double()
    x, u = torch.eye(4, dtype=torch.float64)[:2]
    out = rule.write(x, u, own(), ATTN)
    torch.testing.assert_close(out.norm(), torch.ones((), dtype=torch.float64))
    assert out.tolist() == pytest.approx([0.7 / sqrt(0.58), 0.3 / sqrt(0.58), 0, 0], rel=1e-6)
    (weight,) = own.parameters()
    torch.testing.assert_close(weight.detach(), torch.full((4,), 0.01, dtype=torch.float64), rtol=1e-6, atol=0)


@torch.no_grad()
def test_the_size_of_logits_under_rounded_weights() -> None:
    """Of angpt, whose factors have the same error at every site if they are made in bf16."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig("angpt", layers=12, width=32, heads=4, vocab_size=64, context=16)).bfloat16()
    exact, ids = Decoder(model.config), torch.randint(64, (4, 16))
    exact.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
    wanted, found = exact(ids), model(ids).float()
    assert ((wanted * found).sum() / wanted.square().sum()).item() == pytest.approx(1.0, abs=0.01)


def test_angpt_shortens_long_rows_only() -> None:
    long, short = 3 * torch.ones(2, 4), torch.full((2, 4), 0.25)
    weights = {"o": [torch.cat((long, short))], "embed": [torch.cat((long, short)).clone()]}
    parse("angpt").constrain(weights)
    for (weight,) in weights.values():
        torch.testing.assert_close(weight, torch.cat((torch.full((2, 4), 0.5), short)))


def test_angpt_logits_have_a_scale_that_starts_at_one() -> None:
    slot = parse("angpt").slot("logits", (9,), DIM, ATTN)
    assert slot is not None
    y = torch.randn(3, 9)
    torch.testing.assert_close(slot(y), y)
    torch.testing.assert_close(next(slot.parameters()).detach(), torch.full((9,), 0.01))


# SpheretNorm: geonorm with another retraction and a learned step


@pytest.mark.parametrize("retraction", ["projection", "cayley", "3", "exp"])
def test_spheretnorm_as_a_geonorm(retraction: str) -> None:
    """x' = cos(phi) x + sin(phi) |x| v/|v| with t = alpha |v|/|x|: projection is (x + alpha v) put back on the sphere,
    Cayley (1 - t^2/4, t) / (1 + t^2/4)."""
    rule = parse(SPHERET.format(retraction))
    own = Parts(rule, ATTN, NormSpec("rms", DIM)).double()
    own.reset_parameters()
    stored = next(own.parameters())
    assert stored.item() == pytest.approx(log(2.718281828459045 - 1), rel=1e-12)  # softplus of it is alpha = 1
    nn.init.constant_(stored, -0.4)
    alpha = log(1 + 2.718281828459045**-0.4)
    x, u = torch.randn(2, 6, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    radius = x.norm(dim=-1, keepdim=True)
    v = u - (x * u).sum(-1, keepdim=True) / radius**2 * x
    t = alpha * v.norm(dim=-1, keepdim=True) / radius
    along = radius * v / v.norm(dim=-1, keepdim=True)
    if retraction == "projection":
        expected = (x + alpha * v) / (x + alpha * v).norm(dim=-1, keepdim=True) * radius
    elif retraction == "cayley":
        expected = ((1 - t**2 / 4) * x + t * along) / (1 + t**2 / 4)
    else:
        phi = t.clamp(max=pi) if retraction == "exp" else 3 * torch.atan(t / 3)
        expected = torch.cos(phi) * x + torch.sin(phi) * along
    found = rule.write(x, u, own(), ATTN)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.norm(dim=-1, keepdim=True), radius, rtol=1e-12, atol=0)


@each("alpha", [1e-6, 0.05, 1.0, 30.0])
@each("stored", [None, -30.0, 0.0, 5.0])
def test_a_learned_step_stays_positive(alpha: float, stored: float | None) -> None:
    rule = parse(f"geonorm(learn=step, alpha={alpha}, decay=constant, max_angle=pi)")
    own = Parts(rule, ATTN, NormSpec("rms", DIM)).double()
    own.reset_parameters()
    if stored is not None:
        nn.init.constant_(next(own.parameters()), stored)
    x, u = torch.eye(DIM, dtype=torch.float64)[:2]
    side = rule.write(x, 1e-3 * u, own(), ATTN)[1].item()
    assert side > 0
    if stored is None:
        assert side == pytest.approx(torch.sin(torch.tensor(alpha * 1e-3)).item(), rel=1e-6)


@pytest.mark.parametrize("kinds", [("attn", "mlp"), ("parallel",)])
def test_sublayers_that_count_apart_have_equal_shares(kinds: tuple[str, ...]) -> None:
    """atan(1/sqrt(n)) in sub-layer n leaves entry and every update one share of the last state (docs/theory.md 3.2):
    parallel blocks, which have one residual, are counted without a gap."""
    scheme = parse("geonorm(update=unit, retraction=projection, decay=sqrt, decay_on=update, index=sublayer)")
    width = 1 + len(kinds) * DEPTH
    x = torch.eye(width, dtype=torch.float64)[:1]
    for place, (layer, kind) in enumerate(product(range(DEPTH), kinds)):
        site = Site(layer, kind, DEPTH)
        own = Parts(scheme, site, NormSpec("rms", width))
        x = write_at(scheme, x, 3 * torch.eye(width, dtype=torch.float64)[place + 1].expand_as(x), own(), site)
    torch.testing.assert_close(x.square(), torch.full_like(x, 1 / width), rtol=1e-6, atol=0)
