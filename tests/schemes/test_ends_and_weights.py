"""The ends of the stream of every scheme, what it asks of weights and slots, and where combinations place which."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from geonorm import Site, names, parse, schemes
from geonorm.norms import NormSpec, RMSNorm
from geonorm.schemes import Parts, Placement, Scheme

from ..rows import each
from .textbook import DEPTH, DIM, EPS, SITES, Bend, norm, perturbed, same, stream, unit, written

ROLES = ("embed", "q", "k", "v", "o", "up", "gate", "down", "head")


@each("share, first", [(0.0, 0), (0.25, 3), (0.3, 3), (0.34, 4), (0.99, 11), (1.0, 12)])
def test_mix_gives_the_first_floor_of_share_l_blocks_to_a(share: float, first: int) -> None:
    mix = schemes.Mix(schemes.Peri(), schemes.GeoNorm(), share)
    chosen = [mix.resolve(Site(layer, kind, 12)) for layer in range(12) for kind in ("attn", "mlp")]
    assert chosen == [schemes.Peri()] * 2 * first + [schemes.GeoNorm()] * 2 * (12 - first)
    mix = schemes.Mix(share=0.58)  # of 50 blocks is 29, and the product is 28.999...
    assert [mix.resolve(Site(layer, "attn", 50)) for layer in (28, 29)] == [mix.a, mix.b]


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


@each("name", [n for n in names() if n not in ("ngpt", "angpt", "polar", "prores") and parse(n).streams == 1])
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


@each("name", names())
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


@each("name", names())
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


@each("name", [n for n in names() if n not in ("ngpt", "angpt")])
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


@each("name", names())
def test_norm_kind_reaches_every_scheme(name: str) -> None:
    """`norm="none"` leaves no RMSNorm anywhere; `gains=False` no gain."""
    for site in (*SITES, Site(0, "entry", DEPTH), Site(DEPTH - 1, "exit", DEPTH)):
        scheme = parse(name).resolve(site)
        assert not any(isinstance(m, RMSNorm) for m in Parts(scheme, site, NormSpec("none", DIM)).modules())
        bare = Parts(scheme, site, NormSpec("rms", DIM, gains=False))
        norms = [m for m in bare.modules() if type(m).__module__ == "geonorm.norms"]
        assert not any(list(m.parameters()) for m in norms)
