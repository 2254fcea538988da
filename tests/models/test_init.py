"""Roles of parameters: initial values and constraints, and the groups of an optimizer that follow from them."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn

import geonorm
from geonorm import Decoder, DecoderConfig, Residual, Site, names
from geonorm.errors import ConfigError
from geonorm.lab.config import RATE_ROLES, Optim
from geonorm.models import VisionConfig, VisionTransformer
from geonorm.models.init import ROLES, SHARED_ROLES, decays, linear, parameter_groups, parameter_roles

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}


def test_roles_are_those_of_the_models_own_table() -> None:
    """For every scheme, with biases, learned positions, tables of token values and a tied head; and of images."""
    for scheme in [*names(), "geonorm(learn=affine)", "mix(ngpt, geonorm)"]:
        for fields in ({"bias": True, "positions": "learned"}, {"tied": True, "values": "token"}, {"values": "first"}):
            model = Decoder(DecoderConfig(scheme, **SHAPE, **fields))
            table = {id(weight): role for role, weight, _, _ in model.weights()}
            found = parameter_roles(model)
            for name, parameter in model.named_parameters():
                assert found[name] == table.get(id(parameter), "gain"), f"{scheme}: {name}"
    found = parameter_roles(VisionTransformer(VisionConfig("pre", 1, 8, positions="learned")))
    assert (found["class_token.weight"], found["position.weight"]) == ("class_token", "position")
    assert set(filter(decays, ROLES)) == {"patch", *"qkvo", "up", "gate", "down", "head", "transform"}


def test_rates_and_decay_go_by_role() -> None:
    model = Decoder(DecoderConfig("geonorm(learn=step)", **SHAPE))
    model.blocks[1].requires_grad_(False)
    rates = {"embed": 16, "hidden": 2, "down": 3, "gain": 0.5}
    names_of = {id(p): name for name, p in model.named_parameters()}
    rows = {
        names_of[id(p)]: (group["lr"], group["lr_multiplier"], group["weight_decay"])
        for group in parameter_groups(model, 0.1, 0.3, rates)
        for p in group["params"]
    }
    assert all(".1." not in name for name in rows), "frozen parameters are left out"
    assert len(rows) == sum(p.requires_grad for p in model.parameters())
    for name, row in rows.items():
        rate = (
            16 if name == "embed.weight" else 1 if name == "head.weight" else 3 if ".down." in name
            else 2 if ".branch." in name else 0.5
        )  # fmt: skip
        decay = 0.3 if ".branch." in name or name == "head.weight" else 0.0
        assert row == (pytest.approx(0.1 * rate), rate, decay), name


def test_a_model_of_ones_own() -> None:
    """Roles are said by an attribute, or follow from the name and the class of a module."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.wpe = nn.Embedding(8, 4), nn.Embedding(8, 4)
            self.mlp = Residual(nn.Linear(4, 4), "hyper", Site(0, "mlp", 1), 4)
            self.out, self.lm_head = nn.Linear(4, 8), nn.Linear(4, 8, bias=False)
            self.out.role = "transform"  # type: ignore[assignment]

    found = parameter_roles(Own())
    scheme = {name: role for name, role in found.items() if ".own." in name}
    assert scheme and set(scheme.values()) == {"gain"}
    assert {name: role for name, role in found.items() if name not in scheme} == {
        "table.weight": "embed", "wpe.weight": "position", "mlp.branch.weight": "hidden", "mlp.branch.bias": "gain",
        "out.weight": "transform", "out.bias": "gain", "lm_head.weight": "head",
    }  # fmt: skip
    assert parameter_roles(nn.Linear(2, 2)) == {"weight": "hidden", "bias": "gain"}


def test_words_of_the_command_line() -> None:
    assert Optim(rates=["embed=16", "head=.5"]).multipliers == {"embed": 16.0, "head": 0.5}
    assert set(RATE_ROLES) <= {*ROLES, *SHARED_ROLES} and {r for r in ROLES if not ROLES[r].end} < set(RATE_ROLES)
    for words, said in (
        (["embd=2"], "unknown role of optim.rates 'embd': did you mean 'embed'?"),
        (["embed"], "optim.rates embed takes a finite number, got ''"),
        (["embed=0"], "optim.rates embed must be positive, got 0"),
        (["embed=2", "embed=2"], "optim.rates names a role twice"),
    ):
        with pytest.raises(ConfigError, match=said.replace("?", "[?]")):
            Optim(rates=words)
    wrong = {"embd": "unknown role 'embd'", "down": "no parameter has the role 'down'", "hidden": "hidden must be pos"}
    for role, said in wrong.items():
        with pytest.raises(ConfigError, match=said):
            parameter_groups(nn.Linear(2, 2), 1e-3, rates={role: -2})
    assert parameter_roles(nn.ModuleDict({"pos": nn.Embedding(2, 2)})) == {"pos.weight": "position"}


class Plain(nn.Module):
    """A model of one's own: embedding, two residuals, head; nothing of ours but the residuals."""

    def __init__(self, scheme: str, init: str = "fan_in") -> None:
        super().__init__()
        self.wte = nn.Embedding(32, 16)
        self.layers = nn.ModuleList(geonorm.Residual(Mlp(), scheme, Site(layer, "mlp", 2), 16) for layer in range(2))
        self.lm_head = nn.Linear(16, 32)
        geonorm.initialize(self, init)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(16, 64), nn.Linear(64, 16)


def test_initialize_draws_what_a_decoder_draws() -> None:
    for scheme in [*names(), "mix(ngpt, geonorm)", "per_kind(deepnorm, post)"]:
        for fields in ({"init": "neox", "tied": True, "bias": True}, {"positions": "learned", "values": "token"}):
            torch.manual_seed(1)
            model = Decoder(DecoderConfig(scheme, **SHAPE, **fields))
            expected = deepcopy(model.state_dict())
            for tensor in model.state_dict().values():
                tensor.fill_(3)
            torch.manual_seed(1)
            geonorm.initialize(model, fields.get("init", "fan_in"))
            for name, tensor in model.state_dict().items():
                assert torch.equal(tensor, expected[name]), f"{scheme}: {name}"


def test_initialize_and_constrain_a_model_of_ones_own() -> None:
    unit = Plain("ngpt")
    for parameter in unit.parameters():
        parameter.data += 1.0
    geonorm.constrain(unit)
    mlp = unit.layers[1].branch
    weights = (unit.wte.weight, 1), (unit.lm_head.weight, 1), (mlp.up_proj.weight, 1), (mlp.down_proj.weight, 0)
    for weight, axis in weights:
        torch.testing.assert_close(weight.norm(dim=axis), torch.ones(weight.shape[1 - axis]))
    deep = Plain("deepnorm", "gpt2")
    up, table = deep.layers[0].branch.up_proj, deep.wte
    assert (up.weight.std().item(), table.weight.std().item()) == pytest.approx((0.02 * 16**-0.25, 0.02), rel=0.1)
    assert up.bias.count_nonzero() == deep.lm_head.bias.count_nonzero() == 0
    before = deepcopy(deep.state_dict())
    geonorm.constrain(deep)
    assert all(torch.equal(tensor, before[name]) for name, tensor in deep.state_dict().items())


def test_multihead_attention_is_drawn_and_constrained() -> None:
    """Its matrices are joined in one where all sizes agree."""
    draw, constrain = (geonorm.initialize, "geonorm", 0.5), (geonorm.constrain, "ngpt", 1e-5)
    for (call, scheme, atol), keys in ((draw, 64), (draw, 32), (constrain, 64), (constrain, 32)):
        attention = nn.MultiheadAttention(64, 4, bias=False, kdim=keys).requires_grad_(False)
        for weight in attention.parameters():
            weight.fill_(3)
        call(Residual(attention, scheme, Site(0, "attn", 1), 64))
        for name, weight in attention.named_parameters():
            lengths = weight.norm(dim=0 if name == "out_proj.weight" else 1)
            torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=0, atol=atol)


def test_a_layer_without_a_role_is_named() -> None:
    parametrised = nn.utils.parametrizations.weight_norm(linear("up", 4, 4))
    for layer, says in ((nn.Linear(4, 4), r"branch\.0 has no role"), (parametrised, "parametrised one, cannot be set")):
        for call in (geonorm.initialize, geonorm.constrain):
            with pytest.raises(ConfigError, match=says):
                call(Residual(nn.Sequential(layer), "ngpt", Site(0, "mlp", 1), 4))
    with pytest.raises(ConfigError, match=r"unknown model\.init 'gpt': did you mean 'gpt2'"):
        geonorm.initialize(nn.Identity(), "gpt")
    with pytest.raises(ConfigError, match="would stay there"):
        Plain("ngpt", "zero")


def test_experts_and_joined_matrices_decay_and_their_biases_do_not() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up_proj, self.up_proj_bias = nn.Parameter(torch.ones(3, 4, 4)), nn.Parameter(torch.ones(3, 4))
            self.A_log = nn.Parameter(torch.ones(1, 1, 4, 1))

    rescaled = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = nn.Sequential(Experts(), nn.MultiheadAttention(4, 2), nn.LayerNorm(4), nn.RNN(4, 4), rescaled)
    found = {name: role for name, role in parameter_roles(model).items() if role != "gain"}
    hidden = "0.up_proj 1.in_proj_weight 3.weight_ih_l0 3.weight_hh_l0 4.parametrizations.weight.original1".split()
    assert found == {**dict.fromkeys(hidden, "hidden"), "1.out_proj.weight": "o"}


def test_initialize_restores_norms_alone_outside_residuals() -> None:
    mlp, attention = Residual(Mlp(), "pre", Site(0, "mlp", 1), 16), nn.MultiheadAttention(16, 2)
    joined = Residual(attention, "pre", Site(0, "attn", 1), 16)
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.GRU(4, 4), nn.LayerNorm(4), mlp, joined)
    for parameter in (*model[:3].parameters(), attention.in_proj_bias):
        parameter.data.fill_(3.0)
    geonorm.initialize(model)
    assert not attention.in_proj_bias.any()
    assert all((parameter == 3.0).all() for parameter in model[:2].parameters()) and (model[2].weight == 1.0).all()
