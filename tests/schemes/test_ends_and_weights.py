"""The ends of the stream of every scheme, what it asks of weights and slots, and where combinations place which."""

import pytest
import torch
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


def end(scheme: Scheme, kind: str, x: Tensor) -> tuple[Tensor, nn.Module]:
    site = Site(0 if kind == "entry" else DEPTH - 1, kind, DEPTH)
    rule = scheme.resolve(site)
    own = perturbed(Parts(rule, site, NormSpec("rms", DIM, eps=EPS)))
    return (rule.enter if kind == "entry" else rule.exit)(x, own(), site), own


COMBINED = ("mix", "first", "per_kind")


@each("name", [n for n in names() if n not in ("ngpt", "angpt", "prores") and parse(n).streams == 1])
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
    """Post, DeepNorm, Keel, sqrt, nGPT, anGPT and gated streams end on what is normalised, ReZero has no norm at all;
    everything else is normalised once more. Sandwich-LN alone starts at the raw embedding."""
    bare = {"post", "deepnorm", "keel", "sqrt", "ngpt", "angpt", "rezero", "gated_streams"}
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


@each("name", names())
def test_initial_standard_deviations(name: str) -> None:
    for site in (*SITES, Site(0, "mlp", DEPTH, 3)):
        scheme = parse(name).resolve(site)
        for role in ROLES:
            factor = 1.0
            if name == "deepnorm" and role in ("v", "o", "up", "gate", "down"):
                factor = (4 * site.sublayers * DEPTH) ** -0.25
            if name in ("sandwich", "hybrid") and role in ("o", "down"):
                factor = (site.sublayers * DEPTH) ** -0.5
            expected = 0.02 * factor
            assert scheme.init_std(role, 64, 32, site, 0.02) == pytest.approx(expected, rel=1e-12), role


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


@each(
    "scheme, name, start, stored",
    [
        ("ngpt", "up", DIM**0.5, 1.0), ("ngpt", "gate", DIM**0.5, 1.0), ("ngpt", "logits", 1.0, DIM**-0.5),
        ("angpt", "logits", 1.0, 0.01),
    ],
)  # fmt: skip
def test_learned_scales(scheme: str, name: str, start: float, stored: float) -> None:
    slot = parse(scheme).slot(name, (9,), DIM, SITES[0])
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
