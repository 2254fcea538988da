"""What sets each single-stream scheme apart beside its equation: scales, constraints, slots, symmetries."""

from itertools import product
from math import sqrt
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
ATTN = Site(2, "attn", DEPTH)
SPHERET = "geonorm(retraction={}, learn=step, decay=constant, decay_on=update, max_angle=pi)"
VARIANTS = [
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
        torch.testing.assert_close(write(x @ turn, u @ turn, h), write(x, u, h) @ turn, rtol=1e-12, atol=1e-12)


@each("depth, start", [(2, 0.1), (18, 0.1), (19, 1e-5), (24, 1e-5), (25, 1e-6), (48, 1e-6)])
def test_layerscale_starts_by_depth(depth: int, start: float) -> None:
    for text, expected in (("layerscale", start), ("layerscale(start=0.3)", 0.3)):
        own = Parts(parse(text), Site(1, "attn", depth), NormSpec("rms", DIM))
        scale = dict(own.named_parameters())["scale.weight"]
        torch.testing.assert_close(scale.detach(), torch.full((DIM,), expected), rtol=1e-6, atol=0)
        nn.init.zeros_(scale)
        own.reset_parameters()
        torch.testing.assert_close(scale.detach(), torch.full((DIM,), expected))


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
        attn, mlp = (residual.branch for residual in (model.blocks[0].attn, model.blocks[0].mlp))
        attended = attn(y, positions=(torch.ones(1, 32), torch.zeros(1, 32)))
        assert attended.norm(dim=-1).mean().item() == pytest.approx(1, abs=0.05)
        assert mlp(y).norm(dim=-1).mean().item() == pytest.approx(1, abs=0.05)


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


def test_a_learned_step_starts_at_alpha() -> None:
    rule = parse("geonorm(learn=step, alpha=0.7)")
    own = Parts(rule, ATTN, NormSpec("rms", DIM)).double()
    own.reset_parameters()
    assert F.softplus(next(own.parameters())).item() == pytest.approx(0.7, rel=1e-12)


@pytest.mark.parametrize("kinds", [("attn", "mlp"), ("parallel",)])
def test_sublayers_that_count_apart_have_equal_shares(kinds: tuple[str, ...]) -> None:
    """atan(1/sqrt(n)) in sub-layer n leaves entry and every update one share of the last state (docs/theory-depth.md):
    parallel blocks, which have one residual, are counted without a gap."""
    scheme = parse("geonorm(update=unit, retraction=projection, decay=sqrt, decay_on=update, index=sublayer)")
    width = 1 + len(kinds) * DEPTH
    x = torch.eye(width, dtype=torch.float64)[:1]
    for place, (layer, kind) in enumerate(product(range(DEPTH), kinds)):
        site = Site(layer, kind, DEPTH)
        own = Parts(scheme, site, NormSpec("rms", width))
        x = write_at(scheme, x, 3 * torch.eye(width, dtype=torch.float64)[place + 1].expand_as(x), own(), site)
    torch.testing.assert_close(x.square(), torch.full_like(x, 1 / width), rtol=1e-6, atol=0)
