"""Every registered scheme against its equation, written here a second time from the papers, in fp64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from math import pi
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from geonorm import Residual, Site, names, parse, schemes
from geonorm.errors import ConfigError
from geonorm.norms import NormSpec, RMSNorm
from geonorm.ops.angle import BIAS_SOFTNESS
from geonorm.schemes import Parts, Placement, Scheme, polar, read_at, reset_parts, write_at

DIM, DEPTH, EPS = 12, 6, 1e-6
SITES = [Site(layer, kind, DEPTH) for layer in (0, 2, 5) for kind in ("attn", "mlp")]
ROLES = ("embed", "q", "k", "v", "o", "up", "gate", "down", "head")
Branch = Callable[[Tensor], Tensor]
Equation = Callable[[Tensor, Branch, dict[str, Tensor], Site], Tensor]


def norm(x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * gain


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def rotated(x: Tensor, u: Tensor, angle_of: Callable[[Tensor], Tensor]) -> Tensor:
    v = u - (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    length, radius = v.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
    angle = angle_of(length / radius)
    return torch.cos(angle) * x + torch.sin(angle) * radius * v / length


def decayed(kind: str | float, alpha: float, t: int, depth: int) -> float:
    if isinstance(kind, float):
        return alpha * t ** (-kind)
    return {
        "harmonic": alpha / t,
        "sqrt": alpha / t**0.5,
        "linear": alpha * (depth - (t - 1)) / depth,
        "constant": alpha,
    }[kind]


def step_toward(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    alpha = (p["alpha.weight"] * 0.05 * DIM**0.5).abs()
    return unit(x + alpha * (unit(f(x)) - x))


def lerped(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    alpha = p["alpha.weight"] * 5
    return (x + alpha * (f(x) - x)) / (alpha**2 + (1 - alpha) ** 2).sqrt()


def sideways(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    u = f(norm(x, p["input.weight"]))
    return x + u - torch.einsum("...i,...i->...", x, u).unsqueeze(-1) / (x.norm(dim=-1, keepdim=True) ** 2 + 1e-6) * x


def hybrid(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    y = norm(x, p["stream.weight"]) if site.kind == "mlp" else x
    return y + f(y)


def two_streams(x: Tensor, u: Tensor, p: dict[str, Tensor]) -> Tensor:
    return torch.stack((norm(x[..., 0, :] + u, p["stream.weight"]), x[..., 1, :] + u), dim=-2)


def connected(x: Tensor, f: Branch, p: dict[str, Tensor]) -> Tensor:
    """Hyper-connections as sums over streams, one product at a time."""
    n, c = x.shape[-2], {name.removeprefix("connection."): value for name, value in p.items()}
    normed = [norm(x[..., i, :]) for i in range(n)]

    def mix(i: int, j: int) -> Tensor:
        moved = torch.tanh((normed[i] * c["mix_weight"][:, j]).sum(-1, keepdim=True))
        return c["mix"][i, j] + c["mix_scale"] * moved

    u = f(norm(sum(mix(i, 0) * x[..., i, :] for i in range(n)), p["input.weight"]))
    after = []
    for j in range(n):
        given = torch.tanh((normed[j] * c["share_weight"]).sum(-1, keepdim=True))
        rest = sum(mix(i, j + 1) * x[..., i, :] for i in range(n))
        after.append(rest + (c["share"][j] + c["share_scale"] * given) * u)
    return torch.stack(after, dim=-2)


# x' of one sub-layer f; p holds the scheme's parameters by name. t = l + 1, L = depth.
EQUATIONS: dict[str, Equation] = {
    "pre": lambda x, f, p, s: x + f(norm(x, p["input.weight"])),
    "post": lambda x, f, p, s: norm(x + f(x), p["stream.weight"]),
    "peri": lambda x, f, p, s: x + norm(f(norm(x, p["input.weight"])), p["output.weight"]),
    "olmo2": lambda x, f, p, s: x + norm(f(x), p["output.weight"]),
    "sandwich": lambda x, f, p, s: x + norm(f(norm(x, p["input.weight"])), p["output.weight"]),
    "deepnorm": lambda x, f, p, s: norm((2 * s.depth) ** 0.25 * x + f(x), p["stream.weight"]),
    "keel": lambda x, f, p, s: norm(2 * s.depth * x + f(norm(x, p["input.weight"])), p["stream.weight"]),
    "lns": lambda x, f, p, s: x + f(norm(x, p["input.weight"]) / (s.layer + 1) ** 0.5),
    "sqrt": lambda x, f, p, s: norm(x + f(x) / (s.layer + 1) ** 0.5, p["stream.weight"]),
    "mix": lambda x, f, p, s: EQUATIONS["post" if s.layer < 1 else "pre"](x, f, p, s),  # floor(6 / 4) = 1
    "first": lambda x, f, p, s: EQUATIONS["post" if s.layer < 1 else "pre"](x, f, p, s),
    "per_kind": lambda x, f, p, s: EQUATIONS["pre" if s.kind == "attn" else "post"](x, f, p, s),
    "hybrid": hybrid,
    "rezero": lambda x, f, p, s: x + p["alpha.weight"] * f(x),
    "layerscale": lambda x, f, p, s: x + p["scale.weight"] * f(norm(x, p["input.weight"])),
    "orthogonal": sideways,
    "norm_preserving": lambda x, f, p, s: (
        ((s.depth - 1) / s.depth) ** 0.5 * x + f(norm(x, p["input.weight"])) / s.depth**0.5
    ),
    "geonorm": lambda x, f, p, s: rotated(x, f(x), lambda r: r.clamp(max=pi / 4) / (s.layer + 1)),
    "ngpt": step_toward,
    "angpt": lerped,
    "residual_dual": lambda x, f, p, s: torch.stack(
        (norm(x[..., 0, :] + f(x[..., 0, :]), p["stream.weight"]), x[..., 1, :] + f(x[..., 0, :])), dim=-2
    ),
    "siamese": lambda x, f, p, s: two_streams(x, f(x[..., 0, :] + norm(x[..., 1, :], p["norm.weight"])), p),
    "hyper": lambda x, f, p, s: connected(x, f, p),
}


class Bend(nn.Module):
    """A branch with a matrix and a nonlinearity; returns what it is told to beside its update."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        weight = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64) * scale * DIM**-0.5
        self.weight = nn.Parameter(weight)

    def forward(self, y: Tensor, shift: float = 0.0, extra: Any = None) -> Any:
        u = torch.tanh(y @ self.weight) + 0.3 * y.roll(1, -1) + shift
        return u if extra is None else (u, extra)


def stream(scheme: Scheme, seed: int = 0, radius: float = 2.0) -> Tensor:
    shape = (3, 5, DIM) if scheme.streams == 1 else (3, 5, scheme.streams, DIM)
    return radius * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def perturbed(own: nn.Module, seed: int = 1) -> nn.Module:
    """fp64, with every parameter off its initial value, which is exact."""
    reset_parts(own.double())
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter += 0.2 * (parameter.mean() or 0.5) * torch.randn(parameter.shape, generator=generator)
    return own


def placed(text: str, site: Site) -> tuple[Scheme, nn.Module]:
    scheme = parse(text).resolve(site)
    return scheme, perturbed(Parts(scheme, site, NormSpec("rms", DIM, eps=EPS)))


def written(scheme: Scheme, own: nn.Module, site: Site, x: Tensor, branch: Branch, **h: Any) -> Tensor:
    y, carry = read_at(scheme, x, own(), site)
    return write_at(scheme, x, branch(y), own(), site, **h, carry=carry)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_every_registered_scheme_has_an_equation_here() -> None:
    assert set(EQUATIONS) == set(names()) - {"polar"}  # the equation of pre: tests/schemes/test_polar.py


@pytest.mark.parametrize("site", SITES, ids=lambda s: f"{s.kind}{s.layer}")
@pytest.mark.parametrize("name", EQUATIONS)
def test_one_layer_equals_the_textbook(name: str, site: Site) -> None:
    scheme, own = placed(name, site)
    x, branch = stream(scheme), Bend()
    same(written(scheme, own, site, x, branch), EQUATIONS[name](x, branch, dict(own.named_parameters()), site))


@pytest.mark.parametrize("site", SITES, ids=lambda s: f"{s.kind}{s.layer}")
@pytest.mark.parametrize("name", EQUATIONS)
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


@pytest.mark.parametrize("name", EQUATIONS)
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


@pytest.mark.parametrize("decay", ["harmonic", "sqrt", "linear", "constant", 0.75])
@pytest.mark.parametrize("layer", [0, 2, 5])
@pytest.mark.parametrize("name", ["pre", "post", "peri", "sandwich", "orthogonal", "ngpt"])
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


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("alpha", [0.6, 1.0, 3.0])
@pytest.mark.parametrize("ceiling", [0.2, 0.6, pi / 4, 50.0])
@pytest.mark.parametrize("name", ["pre", "orthogonal", "post"])
def test_a_ceiling_on_the_step_of_flat_schemes(name: str, ceiling: float, alpha: float, layer: int) -> None:
    """With equal reads the writes alone differ: |step|/|x| = min(s min(|q|/|x|, c), c) along q."""
    site = Site(layer, "mlp", DEPTH)
    rule = f"{name}(decay=sqrt, alpha={alpha}, max_step={ceiling!r}, input=raw)"
    scheme, own = placed(rule, site)
    x, branch = stream(scheme), Bend()
    s = decayed("sqrt", alpha, layer + 1, DEPTH)
    q, size = proposed(name, x, branch(x)), x.norm(dim=-1, keepdim=True)
    length = torch.minimum(
        s * (q.norm(dim=-1, keepdim=True) / size).clamp(max=ceiling), torch.tensor(ceiling, dtype=torch.float64)
    )
    expected = x + length * size * q / q.norm(dim=-1, keepdim=True)
    expected = norm(expected, own.get_parameter("stream.weight")) if name == "post" else expected
    same(written(scheme, own, site, x, branch), expected)
    met = scheme.clamped(x, branch(x), own(), site)
    assert met is not None
    binds = (q.norm(dim=-1) / size.squeeze(-1) >= ceiling) | (length.squeeze(-1) >= ceiling)
    assert torch.equal(met, binds) and not (ceiling == 50.0 and met.any()) and not (ceiling == 0.2 and not met.any())


@pytest.mark.parametrize("name", ["pre", "orthogonal", "post", "peri"])
def test_below_its_ceiling_a_flat_scheme_is_itself_and_at_rest_it_has_a_gradient(name: str) -> None:
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


@pytest.mark.parametrize("input", ["raw", "norm"])
def test_both_forms_of_pre_have_the_ceiling(input: str) -> None:
    site = Site(1, "mlp", DEPTH)
    rules = [parse(f"{name}(decay=0.5, max_step=0.4, input={input})") for name in ("pre", "polar")]
    own, x, branch = perturbed(Parts(rules[0], site, NormSpec("rms", DIM, eps=EPS))), stream(rules[0]), Bend()
    plain, scaled = (written(rule, own, site, y, branch) for rule, y in zip(rules, (x, polar.split(x)), strict=True))
    same(polar.merge(scaled), plain)
    met = [rule.clamped(y, branch(x), own(), site) for rule, y in zip(rules, (x, polar.split(x)), strict=True)]
    assert met[0] is not None and met[1] is not None and met[0].any() and torch.equal(*met)


@pytest.mark.parametrize("input", ["raw", "norm"])
@pytest.mark.parametrize("name", ["pre", "orthogonal", "post", "geonorm"])
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
    for h in (0.0, 0.4, 1.0):
        out = written(scheme, own, site, x, lambda y: u, h=h)
        torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
        assert out.dtype == torch.float64
    half = written(scheme, own.float(), site, x.bfloat16(), lambda y: u.bfloat16())
    assert half.dtype == torch.bfloat16


def test_norm_preserving_of_more_than_the_whole_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"b must be at most the number of blocks 6, got 6.5"):
        Parts(parse("norm_preserving(b=6.5)"), SITES[0], NormSpec("rms", DIM))


GEONORM = [
    {},
    {"decay": 0.75},
    {"decay": 0.75, "index": "sublayer", "decay_on": "update"},
    {"decay": "sqrt"},
    {"decay": "linear"},
    {"decay": "constant"},
    {"alpha": 0.3},
    {"alpha": 2.0, "decay": "constant"},
    {"max_angle": pi / 16},
    {"max_angle": 2.5},
    {"decay_on": "update"},
    {"decay_on": "update", "max_angle": 0.1, "decay": "sqrt"},
    {"index": "sublayer"},
    {"index": "sublayer", "decay": "linear"},
    {"input": "norm"},
    {"update": "norm"},
    {"input": "norm", "update": "norm", "max_angle": 2.0},
    {"retraction": "projection"},
    {"retraction": "cayley", "max_angle": 1.5},
    {"retraction": 3.5, "decay_on": "update"},
    {"learn": "gain"},
    {"learn": "affine"},
    {"learn": "step"},
    {"learn": "step", "decay_on": "update", "alpha": 0.8},
    {"entry": "embedding"},
    {"final": "none"},
    {"after": "norm"},
    {"after": "norm", "input": "norm", "decay": "constant"},
]


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
        power = {"projection": 1.0, "cayley": 2.0}.get(retraction, retraction)  # type: ignore[call-overload]
        turn = before * ratio if power == "exp" else power * torch.atan(before * ratio / power)
        turn = gain * turn.clamp(max=max_angle) + bias * ratio / (ratio**2 + BIAS_SOFTNESS**2).sqrt()
        return (behind * turn).clamp(max=max_angle)

    u = branch(norm(x, p["input.weight"]) if input == "norm" else x)
    turned = rotated(x, norm(u, p["output.weight"]) if update == "norm" else u, angle_of)
    return norm(turned, p["stream.weight"]) if after == "norm" else turned


def test_the_table_covers_every_field_of_geonorm() -> None:
    assert {key for row in GEONORM for key in row} == {f.name for f in fields(schemes.GeoNorm)}


@pytest.mark.parametrize("radius", [0.3, 2.0, 30.0])
@pytest.mark.parametrize("settings", GEONORM, ids=lambda s: ",".join(map(str, s.values())) or "default")
def test_every_field_of_geonorm(settings: dict[str, Any], radius: float) -> None:
    for site in SITES:
        scheme = schemes.GeoNorm(**settings)
        own = perturbed(Parts(scheme, site, NormSpec("rms", DIM, eps=EPS)))
        if settings.get("learn") == "affine":
            own["angle"].bias.data.fill_(0.07)  # type: ignore[index]
        x, branch = stream(scheme, radius=radius), Bend()
        p = dict(own.named_parameters())
        same(written(scheme, own, site, x, branch), geonorm_equation(x, branch, p, site, **settings))


def test_clamped_tells_which_tokens_meet_the_ceiling() -> None:
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


@pytest.mark.parametrize(("share", "first"), [(0.0, 0), (0.25, 3), (0.3, 3), (0.34, 4), (0.99, 11), (1.0, 12)])
def test_mix_gives_the_first_floor_of_share_l_blocks_to_a(share: float, first: int) -> None:
    assert schemes.Mix(share=0.58).switch(50) == 29  # the product is 28.999...
    mix = schemes.Mix(schemes.Peri(), schemes.GeoNorm(), share)
    chosen = [mix.resolve(Site(layer, kind, 12)) for layer in range(12) for kind in ("attn", "mlp")]
    assert chosen == [schemes.Peri()] * 2 * first + [schemes.GeoNorm()] * 2 * (12 - first)


def test_mix_resolves_its_ends_and_nested_schemes() -> None:
    mix = parse("mix(a=mix(a=peri, b=lns, share=0.5), b=pre(final=none), share=0.5)")
    blocks = [str(mix.resolve(Site(layer, "attn", 4))) for layer in range(4)]
    assert blocks == ["peri", "peri", "pre(final=none)", "pre(final=none)"]
    assert str(mix.resolve(Site(0, "entry", 4))) == "peri"
    assert str(mix.resolve(Site(3, "exit", 4))) == "pre(final=none)"
    raw = parse("mix(entry=embedding)")
    assert str(raw.resolve(Site(0, "entry", 4))) == "post(entry=embedding)"
    assert str(raw.resolve(Site(0, "attn", 4))) == "post"


def end(scheme: Scheme, kind: str, x: Tensor) -> tuple[Tensor, nn.Module]:
    site = Site(0 if kind == "entry" else DEPTH - 1, kind, DEPTH)
    rule = scheme.resolve(site)
    own = perturbed(Parts(rule, site, NormSpec("rms", DIM, eps=EPS)))
    return (rule.enter if kind == "entry" else rule.exit)(x, own(), site), own


COMBINED = ("mix", "first", "per_kind")


@pytest.mark.parametrize("name", [n for n in names() if n not in ("ngpt", "angpt", "polar") and parse(n).streams == 1])
def test_entry_and_final(name: str) -> None:
    x = stream(parse("pre"))
    out, own = end(parse(name if name != "sandwich" else "sandwich(entry=sphere)"), "entry", x)
    same(out, norm(x))
    assert not list(own.parameters())
    same(end(parse(f"{name}(entry=embedding)"), "entry", x)[0], x)
    if name in COMBINED:
        return
    for final in ("norm", "none"):
        out, own = end(parse(f"{name}(final={final})"), "exit", x)
        same(out, norm(x, own["norm"].weight) if final == "norm" else x)  # type: ignore[index]
        assert len(list(own.parameters())) == (final == "norm")


@pytest.mark.parametrize("name", names())
def test_default_exit(name: str) -> None:
    """Post, DeepNorm, Keel, sqrt, nGPT and anGPT end on a normalised stream and ReZero has no norm at all; everything
    else is normalised once more. Sandwich-LN alone starts at the raw embedding."""
    bare = {"post", "deepnorm", "keel", "sqrt", "ngpt", "angpt", "rezero"}
    scheme = parse(name).resolve(Site(DEPTH - 1, "exit", DEPTH))
    assert isinstance(scheme, Placement)
    assert scheme.final == ("none" if name in bare else "norm")
    assert scheme.entry == ("embedding" if name == "sandwich" else "sphere")


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_ends_on_the_unit_sphere(name: str) -> None:
    x = stream(parse("pre"))
    same(end(parse(name), "entry", x)[0], unit(x))
    same(end(parse(name), "exit", x)[0], x)
    same(end(parse(f"{name}(final=norm)"), "exit", x)[0], unit(x))


def test_residual_dual_through_a_whole_stack() -> None:
    scheme, branch = parse("residual_dual"), Bend()
    embedding = stream(parse("pre"))
    x = end(scheme, "entry", embedding)[0]
    assert x.shape == (3, 5, 2, DIM)
    post = total = norm(embedding)
    for layer in range(DEPTH):
        site = Site(layer, "attn", DEPTH)
        own = perturbed(Parts(scheme, site, NormSpec("rms", DIM, eps=EPS)), seed=layer)
        gain = dict(own.named_parameters())["stream.weight"]
        x = written(scheme, own, site, x, branch)
        u = branch(post)
        post, total = norm(post + u, gain), total + u
        same(x, torch.stack((post, total), -2))
    out, own = end(scheme, "exit", x)
    same(out, post + norm(total, own["norm"].weight))  # type: ignore[index]


@pytest.mark.parametrize("name", names())
def test_initial_standard_deviations(name: str) -> None:
    for site in SITES:
        scheme = parse(name).resolve(site)
        for role in ROLES:
            factor = 1.0
            if name == "deepnorm" and role in ("v", "o", "up", "gate", "down"):
                factor = (8 * DEPTH) ** -0.25
            if name in ("sandwich", "hybrid") and role in ("o", "down"):
                factor = (2 * DEPTH) ** -0.5
            expected = 0.02 * factor
            assert scheme.init_std(role, 64, 32, site, 0.02) == pytest.approx(expected, rel=1e-12), role


def test_deepnorm_inside_a_mix_sets_its_own_weights_only() -> None:
    mix = parse("mix(a=deepnorm, b=pre, share=0.5)")
    stds = [mix.resolve(Site(layer, "attn", 4)).init_std("v", 1, 1, Site(layer, "attn", 4), 1.0) for layer in range(4)]
    assert stds == pytest.approx([32**-0.25] * 2 + [1.0] * 2)


def test_ngpt_constrains_along_the_model_dimension() -> None:
    weights = {role: [torch.randn(6, 4, dtype=torch.float64) for _ in range(2)] for role in ROLES}
    before = {role: [w.clone() for w in found] for role, found in weights.items()}
    parse("ngpt").constrain(weights)
    for role, found in weights.items():
        along = 0 if role in ("o", "down") else 1
        for weight, old in zip(found, before[role], strict=True):
            same(weight, old / old.norm(dim=along, keepdim=True))


@pytest.mark.parametrize("name", [n for n in names() if n not in ("ngpt", "angpt")])
def test_other_schemes_neither_constrain_nor_depart_from_the_recipe(name: str) -> None:
    weight = torch.randn(3, 4)
    kept = weight.clone()
    parse(name).constrain({"q": [weight]})
    assert torch.equal(weight, kept)
    assert parse(name).recipe() == {}
    assert parse(name).resolve(SITES[0]).slot("q_rope", (2, 6), DIM, SITES[0]) is None


@pytest.mark.parametrize("name", ["ngpt", "angpt"])
def test_recipes_reach_combinations(name: str) -> None:
    own = {"weight_decay": 0.0, "warmup": 0.0}
    assert parse(name).recipe() == own
    for combined in ("mix(pre, {})", "first(a={})", "per_kind(mlp=mix(a={}))"):
        assert parse(combined.format(name)).recipe() == own


def test_ngpt_slots_equal_the_papers_scaled_query_key_product() -> None:
    """softmax(sqrt(head_dim) <s N(q), s N(k)>): torch divides by sqrt(head_dim), the slots must make up for it."""
    heads, head_dim = 2, DIM // 2
    site, scheme = SITES[0], parse("ngpt")
    query, key = (scheme.slot(n, (heads, head_dim), DIM, site) for n in ("q_rope", "k_rope"))
    assert query is not None and key is not None
    s = query.get_submodule("scale")().detach()  # the vector that acts
    torch.testing.assert_close(s, torch.ones(heads, head_dim))
    perturbed(query)
    s = query.get_submodule("scale")().detach()
    q, k, v = torch.randn(3, 4, 7, heads, head_dim, dtype=torch.float64)  # batch, tokens, heads, head_dim
    found = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (query(q), key(k), v)), is_causal=True)
    scores = torch.einsum("bihd,bjhd->bhij", s * unit(q), s * unit(k)) * head_dim**0.5
    scores = scores.masked_fill(torch.ones(7, 7).triu(1).bool(), -torch.inf)
    same(found, torch.einsum("bhij,bjhd->bhid", scores.softmax(-1), v))


@pytest.mark.parametrize(
    ("name", "start", "stored"), [("up", DIM**0.5, 1.0), ("gate", DIM**0.5, 1.0), ("logits", 1.0, DIM**-0.5)]
)
def test_ngpt_scales(name: str, start: float, stored: float) -> None:
    slot = parse("ngpt").slot(name, (9,), DIM, SITES[0])
    assert slot is not None
    (weight,) = slot.parameters()
    torch.testing.assert_close(weight.detach(), torch.full((9,), stored))
    y = torch.randn(4, 9)
    torch.testing.assert_close(slot(y), start * y)
    with torch.no_grad():
        weight *= 2
    torch.testing.assert_close(slot(y), 2 * start * y)
    assert slot(y.bfloat16()).dtype == torch.bfloat16


def test_ngpt_step_size_is_absolute_and_stored_at_its_own_scale() -> None:
    scheme = parse("ngpt(alpha=0.1)")
    own = Parts(scheme, SITES[0], NormSpec("rms", DIM)).double()
    (weight,) = own.parameters()
    torch.testing.assert_close(weight.detach(), torch.full((DIM,), DIM**-0.5, dtype=torch.float64), rtol=1e-6, atol=0)
    x, branch = unit(stream(scheme)), Bend()
    before = written(scheme, own, SITES[0], x, branch)
    torch.testing.assert_close(before, unit(x + 0.1 * (unit(branch(x)) - x)), rtol=1e-6, atol=1e-7)
    with torch.no_grad():
        weight.neg_()
    same(written(scheme, own, SITES[0], x, branch), before)


@pytest.mark.parametrize("name", names())
def test_norm_kind_reaches_every_scheme(name: str) -> None:
    """`norm="none"` leaves no RMSNorm anywhere; `gains=False` no gain."""
    for site in (*SITES, Site(0, "entry", DEPTH), Site(DEPTH - 1, "exit", DEPTH)):
        scheme = parse(name).resolve(site)
        assert not any(isinstance(m, RMSNorm) for m in Parts(scheme, site, NormSpec("none", DIM)).modules())
        bare = Parts(scheme, site, NormSpec("rms", DIM, gains=False))
        norms = [m for m in bare.modules() if type(m).__module__ == "geonorm.norms"]
        assert not any(list(m.parameters()) for m in norms)
