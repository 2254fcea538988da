"""Every registered scheme against its equation in fp64: layers, decays, clamps, every field of geonorm."""

from dataclasses import fields
from math import pi
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Residual, Site, names, parse, schemes
from geonorm.errors import ConfigError
from geonorm.norms import NormSpec
from geonorm.ops.angle import bias_softness
from geonorm.schemes import Parts, read_at

from ..rows import each
from .textbook import (
    DEPTH,
    DIM,
    EPS,
    EQUATIONS,
    SITES,
    Bend,
    Branch,
    decayed,
    norm,
    perturbed,
    placed,
    rotated,
    same,
    sideways,
    stream,
    unit,
    written,
)


def test_every_registered_scheme_has_an_equation_here() -> None:
    assert set(EQUATIONS) == set(names())


@each("site", [*SITES, Site(0, "attn", DEPTH, 3)])
@each("name", EQUATIONS)
def test_residual_is_the_same_layer(name: str, site: Site) -> None:
    residual = Residual(Bend(), name, site, DIM, eps=EPS)
    perturbed(residual.own)
    x = stream(residual.scheme)

    def shifted(y: Tensor) -> Tensor:
        return residual.branch(y, shift=0.4)

    expected = EQUATIONS[name](x, shifted, dict(residual.own.named_parameters()), site)
    same(residual(x, shift=0.4), expected)
    out, extra = residual(x, shift=0.4, extra="cache")
    same(out, expected)
    assert extra == "cache"


@each("name", EQUATIONS)
def test_a_tensor_layer_and_a_tensor_h_change_nothing(name: str) -> None:
    site = Site(2, "mlp", DEPTH)
    scheme, own = placed(name, site)
    x, branch = stream(scheme), Bend()
    expected = written(scheme, own, site, x, branch)
    one = torch.ones((), dtype=torch.float64)
    same(written(scheme, own, Site(2 * one, "mlp", DEPTH), x, branch), expected)
    same(written(scheme, own, site, x, branch, h=one), expected)
    same(written(scheme, own, site, x, branch, h=0.5 * one), written(scheme, own, site, x, branch, h=0.5))
    if scheme.planar:  # h = 0 keeps the direction, and N keeps a radius of sqrt(dim) or 1
        start, own = unit(x), Parts(scheme, site, NormSpec("unit", DIM, gains=False, eps=0.0)).double()
        same(written(scheme, own, site, start, branch, h=0.0), start)


@each("decay", ["harmonic", "sqrt", "linear", "constant", 0.75])
@each("layer", [0, 2, 5])
@each("name", ["pre", "post", "peri", "sandwich", "orthogonal", "ngpt"])
def test_decay_of_flat_schemes(name: str, layer: int, decay: str | float) -> None:
    site = Site(layer, "attn", DEPTH)
    scheme, own = placed(f"{name}(decay={decay}, alpha=0.7)", site)
    x, branch, p = stream(scheme), Bend(), dict(own.named_parameters())
    s = decayed(decay, 0.7, layer + 1, DEPTH)

    def around() -> Tensor:
        return x + s * norm(branch(norm(x, p["input.weight"])), p["output.weight"])

    expected = {
        "pre": lambda: x + s * branch(norm(x, p["input.weight"])),
        "post": lambda: norm(x + s * branch(x), p["stream.weight"]),
        "peri": around,
        "sandwich": around,
        "orthogonal": lambda: x + s * (sideways(x, branch, p, site) - x),
        "ngpt": lambda: unit(x + (s * p["alpha.weight"] * DIM**0.5).abs() * (unit(branch(x)) - x)),
    }[name]()
    same(written(scheme, own, site, x, branch), expected)


def proposed(name: str, x: Tensor, u: Tensor) -> Tensor:
    return u - (x * u).sum(-1, keepdim=True) / ((x * x).sum(-1, keepdim=True) + 1e-6) * x if name == "orthogonal" else u


@each("layer", [0, 2])
@each("alpha", [0.6, 1.0, 3.0])
@each("limit", [0.2, 0.6, pi / 4, 50.0])
@each("name", ["pre", "orthogonal", "post"])
def test_a_clamp_on_the_step_of_flat_schemes(name: str, limit: float, alpha: float, layer: int) -> None:
    """With equal reads the writes alone differ: |step|/|x| = min(s min(|q|/|x|, c), c) along q."""
    site = Site(layer, "mlp", DEPTH)
    rule = f"{name}(decay=sqrt, alpha={alpha}, max_step={limit!r}, input=raw)"
    scheme, own = placed(rule, site)
    x, branch = stream(scheme), Bend()
    s = decayed("sqrt", alpha, layer + 1, DEPTH)
    q, size = proposed(name, x, branch(x)), x.norm(dim=-1, keepdim=True)
    length = torch.minimum(
        s * (q.norm(dim=-1, keepdim=True) / size).clamp(max=limit), torch.tensor(limit, dtype=torch.float64)
    )
    expected = x + length * size * q / q.norm(dim=-1, keepdim=True)
    expected = norm(expected, own.get_parameter("stream.weight")) if name == "post" else expected
    same(written(scheme, own, site, x, branch), expected)
    met = scheme.clamped(x, branch(x), own(), site)
    assert met is not None
    binds = (q.norm(dim=-1) / size.squeeze(-1) >= limit) | (length.squeeze(-1) >= limit)
    assert torch.equal(met, binds) and not (limit == 50.0 and met.any()) and not (limit == 0.2 and not met.any())


@pytest.mark.parametrize("name", ["pre", "orthogonal", "post", "peri"])
def test_below_its_clamp_a_flat_scheme_is_itself_and_at_rest_it_has_a_gradient(name: str) -> None:
    site = Site(1, "attn", DEPTH)
    (free, own), (held, _) = (placed(f"{name}(decay=0.75{more})", site) for more in ("", ", max_step=1e6"))
    x, branch = stream(free), Bend()
    same(written(held, own, site, x, branch), written(free, own, site, x, branch))
    for scheme in (free, held):
        u = torch.zeros_like(x, requires_grad=True)
        written(scheme, own, site, x, lambda y, u=u: u).pow(2).sum().backward()
        assert u.grad is not None and u.grad.isfinite().all() and u.grad.abs().max() > 0
    y, found = x.bfloat16(), (parse(f"{name}(max_step=0.5)"), own.float())
    assert written(*found, site, y, lambda y: torch.ones_like(y)).dtype == torch.bfloat16


@each("input", ["raw", "norm"])
@each("name", ["pre", "orthogonal", "post", "geonorm"])
def test_writes_that_are_compared_can_have_equal_reads(name: str, input: str) -> None:
    site = Site(1, "attn", DEPTH)
    scheme, own = placed(f"{name}(input={input})", site)
    x = stream(scheme)
    same(read_at(scheme, x, own(), site)[0], norm(x, own.get_parameter("input.weight")) if input == "norm" else x)


@pytest.mark.parametrize("b", [0.3, 2.0, DEPTH])
def test_norm_preserving_keeps_the_norm_of_what_is_orthogonal_and_as_long(b: float) -> None:
    site = Site(3, "mlp", DEPTH)
    scheme, own = placed(f"norm_preserving(b={b})", site)
    x = stream(scheme)
    v = proposed("orthogonal", x, x.roll(1, -1))
    u = v * x.norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True)
    for h in (0.0, 1.0):
        out = written(scheme, own, site, x, lambda y: u, h=h)
        torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
        assert out.dtype == torch.float64
    half = written(scheme, own.float(), site, x.bfloat16(), lambda y: u.bfloat16())
    assert half.dtype == torch.bfloat16


def test_norm_preserving_of_more_than_the_whole_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"b must be at most the number of blocks 6, got 6.5"):
        Parts(parse("norm_preserving(b=6.5)"), SITES[0], NormSpec("rms", DIM))


GEONORM = [
    {}, {"alpha": 0.3}, {"alpha": 2.0, "decay": "constant"}, {"max_angle": pi / 16}, {"max_angle": 2.5},
    {"decay": 0.75}, {"decay": "sqrt"}, {"decay": "linear"}, {"decay": "constant"},
    {"decay": 0.75, "index": "sublayer", "decay_on": "update"}, {"index": "sublayer"},
    {"index": "sublayer", "decay": "linear"}, {"decay_on": "update"},
    {"decay_on": "update", "max_angle": 0.1, "decay": "sqrt"},
    {"input": "norm"}, {"update": "norm"}, {"input": "norm", "update": "norm", "max_angle": 2.0}, {"update": "unit"},
    {"update": "unit", "decay": "sqrt", "decay_on": "update", "retraction": "projection", "max_angle": pi},
    {"update": "unit", "learn": "affine", "alpha": 0.7},
    {"update": "unit", "learn": "step", "decay_on": "update", "retraction": "cayley", "max_angle": 2.0},
    {"retraction": "projection"}, {"retraction": "cayley", "max_angle": 1.5},
    {"retraction": 3.5, "decay_on": "update"},
    {"learn": "gain"}, {"learn": "affine"}, {"learn": "step"},
    {"learn": "step", "decay_on": "update", "alpha": 0.8},
    {"entry": "embedding"}, {"final": "none"}, {"after": "norm"},
    {"after": "norm", "input": "norm", "decay": "constant"},
]  # fmt: skip


def geonorm_equation(
    x: Tensor,
    branch: Branch,
    p: dict[str, Tensor],
    site: Site,
    decay: str | float = "harmonic",
    alpha: float = 1.0,
    max_angle: float = pi / 4,
    decay_on: str = "angle",
    index: str = "block",
    input: str = "raw",
    update: str = "raw",
    retraction: str | float = "exp",
    learn: str = "none",
    after: str = "none",
    **ends: str,
) -> Tensor:
    """Design page, section 5, with all fields."""
    t, depth = site.layer + 1, site.depth
    if index == "sublayer":
        t, depth = 2 * site.layer + {"attn": 1, "mlp": 2}[site.kind], 2 * site.depth
    step = torch.log(1 + torch.exp(p["angle.step"])) if learn == "step" else alpha
    rate = decayed(decay, step, t, depth)  # type: ignore[arg-type]
    before, behind = (1.0, rate) if decay_on == "angle" else (rate, 1.0)
    gain, bias = p.get("angle.gain", 1.0), p.get("angle.bias", 0.0)

    def angle_of(ratio: Tensor) -> Tensor:
        if update == "unit":  # the angle of a tangent vector as long as x, faded out where there is no direction
            return angle_at(torch.ones_like(ratio)) * ratio / (ratio**2 + bias_softness() ** 2).sqrt()
        return angle_at(ratio, ratio / (ratio**2 + bias_softness() ** 2).sqrt())

    def angle_at(ratio: Tensor, faded: Tensor | float = 1.0) -> Tensor:
        power = {"projection": 1.0, "cayley": 2.0}.get(retraction, retraction)  # type: ignore[call-overload]
        turn = before * ratio if power == "exp" else power * torch.atan(before * ratio / power)
        turn = gain * turn.clamp(max=max_angle) + bias * faded
        return (behind * turn).clamp(max=max_angle)

    u = branch(norm(x, p["input.weight"]) if input == "norm" else x)
    turned = rotated(x, norm(u, p["output.weight"]) if update == "norm" else u, angle_of)
    return norm(turned, p["stream.weight"]) if after == "norm" else turned


def test_the_table_covers_every_field_of_geonorm() -> None:
    assert {key for row in GEONORM for key in row} == {f.name for f in fields(schemes.GeoNorm)}


@each("radius", [0.3, 2.0, 30.0])
@each("settings", GEONORM)
def test_every_field_of_geonorm(settings: dict[str, Any], radius: float) -> None:
    for site in SITES:
        scheme = schemes.GeoNorm(**settings)
        own = perturbed(Parts(scheme, site, NormSpec("rms", DIM, eps=EPS)))
        if settings.get("learn") == "affine":
            own["angle"].bias.data.fill_(0.07)  # type: ignore[index]
        x, branch = stream(scheme, radius=radius), Bend()
        p = dict(own.named_parameters())
        same(written(scheme, own, site, x, branch), geonorm_equation(x, branch, p, site, **settings))


def test_clamped_tells_which_tokens_are_clamped() -> None:
    site = Site(1, "attn", DEPTH)
    scheme = schemes.GeoNorm(max_angle=0.5)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 0.0]])
    u = torch.tensor([[9.0, 0.49], [-3.0, 1.01], [0.0, -4.0]])
    found = scheme.clamped(x, u, Parts(scheme, site, NormSpec("rms", 2))(), site)
    assert found is not None and found.tolist() == [False, True, True]
    assert parse("pre").clamped(x, u, None, site) is None
    # of N(u), the radius of which is that of the norm: long or short, an update at right angles turns as far
    scheme, long = schemes.GeoNorm(max_angle=0.5, update="norm"), torch.tensor([[0.0, 1e-3], [9.0, 0.1]])
    found = scheme.clamped(x[:2], long, Parts(scheme, site, NormSpec("rms", 2, eps=0.0))(), site)
    assert found is not None and found.tolist() == [True, False]
