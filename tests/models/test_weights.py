"""The weights of a decoder: how they are drawn, counted, named, tied and constrained."""

import pytest
import torch
import torch.nn.functional as F

from geonorm import Decoder, DecoderConfig, Site, names
from geonorm.errors import ConfigError
from geonorm.models import preset
from geonorm.models.init import ROLES, base_std, check_start
from geonorm.schemes import advance, parse

from ..rows import each
from .tiny import decoder

PRE, SITE = parse("pre"), Site(0, "attn", 4)
DECLARED = {
    "affine": "update_",
    "ngpt": "slot",
    "angpt": "slot",
    "hyper": ".connection.",
    "nag": ".modulator.",
    "mhc": ".mapping.",
    "gated_streams": ".reader.",
    "attnres": ".recall.",
}
"""Parameters that a scheme has beyond norms and a few scalars: parts of their names."""


@each("scheme", names())
def test_one_seed_draws_the_same_matrices_for_every_scheme(scheme: str) -> None:
    """Up to the scheme's own standard deviations and, for nGPT and anGPT, the constraint after them."""
    reference, model = decoder(seed=3, scheme="pre"), decoder(seed=3, scheme=scheme)
    for (role, found, rule, site), (_, drawn, _, _) in zip(model.weights(), reference.weights(), strict=True):
        fan_out, fan_in = drawn.shape
        base = base_std(role, fan_in, model.config, rule, site)
        expected = drawn * (rule.init_std(role, fan_in, fan_out, site, base) / base)
        if scheme == "ngpt":
            expected = F.normalize(drawn, dim=0 if role in ("o", "down") else 1)
        if scheme == "angpt":  # no row longer than 1
            expected = drawn / drawn.norm(dim=1, keepdim=True).clamp(min=1)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


INITS: dict[str, tuple[float, float, float]] = {  # width 64, 8 blocks: inside, o and down, embedding
    "fan_in": (0.125, 0.125, 0.125),
    "neox": ((2 / (5 * 64)) ** 0.5, 2 / (8 * 64**0.5), (2 / (5 * 64)) ** 0.5),
    "gpt2": (0.02, 0.02 / 4, 0.02),
    "zero": (0.125, 0.0, 0.125),
}


@pytest.mark.parametrize("init", INITS)
def test_initialisations(init: str) -> None:
    """Of square matrices; neox and gpt2 are the same at any fan-in."""
    inside, writes, embed = INITS[init]
    shape = {"width": 64, "hidden": 64, "vocab_size": 300, "init": init}
    for role, weight, _, _ in decoder(layers=8, scheme="pre", **shape).weights():
        expected = embed if role == "embed" else writes if role in ("o", "down") else inside
        assert weight.std().item() == pytest.approx(expected, rel=0.05), role
    wide = DecoderConfig(layers=8, **shape)
    found = base_std("down", 999, wide, PRE, Site(0, "mlp", 8))
    assert found == (999**-0.5 if init == "fan_in" else pytest.approx(writes))


@pytest.mark.parametrize("init", INITS)
def test_depth_counts_once(init: str) -> None:
    """A scheme that makes output matrices smaller with depth does so in place of neox and gpt2: CogView's and
    HybridNorm's 0.02 / sqrt(2 L) is that of gpt2. Under zero they begin at 0."""
    inside, *_ = INITS[init]
    own = 0.0 if init == "zero" else inside
    for scheme, factor in {
        "sandwich": 0.25, "hybrid": 0.25, "deepnorm": 64**-0.25, "lns": 1.0, "prores(sandwich)": 0.25,
        "mix(sandwich, pre, share=1)": 0.25,
    }.items():  # fmt: skip
        model = decoder(layers=8, width=64, hidden=64, vocab_size=300, init=init, scheme=scheme)
        found = {role: weight.std().item() for role, weight, _, _ in model.weights()}
        assert found["down"] == pytest.approx(own * factor, rel=0.05), scheme
        assert found["up"] == pytest.approx(inside * (factor if "deepnorm" in scheme else 1), rel=0.05), scheme


def test_output_matrices_may_be_drawn_as_for_another_depth() -> None:
    for init in ("neox", "gpt2"):
        as_for_12 = DecoderConfig(layers=4, init=init, init_depth=12)
        for role in ("o", "down", "q", "embed"):
            deep = base_std(role, 64, DecoderConfig(layers=12, init=init), PRE, Site(0, "attn", 12))
            assert base_std(role, 64, as_for_12, PRE, SITE) == deep
    assert base_std("o", 64, as_for_12, PRE, SITE) != base_std("o", 64, DecoderConfig(init="gpt2"), PRE, SITE)


@each("scheme", names())
def test_parameter_counts(scheme: str) -> None:
    with torch.device("meta"):
        model, pre = (Decoder(preset("nano", scheme=s)) for s in (scheme, "pre"))
    matrices = 2 * 1024 * 128 + 4 * (4 * 128**2 + 3 * 128 * 344)
    assert model.matmul_parameter_count() == pre.matmul_parameter_count() == matrices
    assert model.parameter_count() == sum(p.numel() for p in set(model.parameters()))
    declared = sum(p.numel() for name, p in model.named_parameters() if DECLARED.get(scheme, "nothing") in name)
    assert (declared > 0) == (scheme in DECLARED)
    assert abs(model.parameter_count() - declared - pre.parameter_count()) < 0.002 * pre.parameter_count()
    assert 1.05e6 < pre.parameter_count() < 1.06e6


def test_tied_embedding_is_one_parameter_and_drawn_once() -> None:
    model = decoder(tied=True)
    assert model.head.weight is model.embed.weight
    assert [role for role, *_ in model.weights()].count("embed") == 1
    assert "head" not in [role for role, *_ in model.weights()]
    assert decoder().matmul_parameter_count() - model.matmul_parameter_count() == 61 * 32


def test_weights_name_every_matrix_once() -> None:
    model = decoder(positions="learned", transform=True)
    roles = [role for role, *_ in model.weights()]
    block = ["q", "k", "v", "o", "up", "gate", "down"]
    assert roles == ["embed", *(block * 2), "head", "position", "transform"]
    handed = [role for role, *_ in decoder(positions="learned", transform=True, values="token").weights()]
    assert handed == [*roles, "values"] and set(handed) == set(ROLES) - {"patch", "class_token"}
    named = {id(w) for _, w, _, _ in model.weights()}
    assert {id(p) for p in model.parameters() if p.dim() == 2} == named


@each("scheme", [*names(), "geonorm(update=unit)", "mix(ngpt, pre, share=0.5)", "prores(ngpt)"])
def test_outputs_that_begin_at_zero_learn_or_are_refused(scheme: str) -> None:
    """nGPT keeps a matrix of zeros, ReZero's scalar and matrices wait for each other: nothing between would train."""
    shape = DecoderConfig(width=16, hidden=16, layers=2, heads=2, vocab_size=32, context=8, scheme=scheme, init="zero")
    torch.manual_seed(0)
    if "ngpt" in scheme.replace("angpt", "") or scheme == "rezero":
        with pytest.raises(ConfigError, match="output matrices that begin at 0 would stay there"):
            Decoder(shape)
        with pytest.raises(ConfigError, match="such as fan_in"):
            check_start(parse(scheme), shape)
        return
    check_start(parse(scheme), shape)
    model, ids = Decoder(shape), torch.randint(32, (2, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(2):
        advance(model)  # a step that is warmed up is 0 at first
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.constrain()
    still = [name for name, p in model.named_parameters() if name.endswith(("o.weight", "down.weight")) and not p.any()]
    assert not still


def test_constrain_leaves_other_schemes_of_a_mix_alone() -> None:
    model = decoder(scheme="mix(a=ngpt, b=pre, share=0.5)")
    norms = {(s.layer, role): w.norm(dim=0 if role in ("o", "down") else 1) for role, w, _, s in model.weights()}
    assert torch.allclose(norms[0, "q"], torch.ones(32))
    assert not torch.allclose(norms[1, "q"], torch.ones(32), atol=0.02)
    assert torch.allclose(norms[0, "embed"], torch.ones(61))
    grown = [(site.layer, weight, 2 * weight.detach()) for _, weight, _, site in model.weights()]
    with torch.no_grad():
        for _, weight, wanted in grown:
            weight.copy_(wanted)
    model.constrain()
    for layer, weight, wanted in grown:  # the embedding stands at layer 0, the head at layer 1
        torch.testing.assert_close(weight.detach(), wanted / 2 if layer == 0 else wanted)
