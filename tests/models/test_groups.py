"""Roles of parameters, and the groups of an optimizer that follow from them."""

from __future__ import annotations

import doctest
from typing import Any

import pytest
from torch import nn

import geonorm
from geonorm import Decoder, DecoderConfig, Residual, Site, names
from geonorm.errors import ConfigError
from geonorm.lab.config import RATED, Optim
from geonorm.models import groups
from geonorm.models.groups import parameter_groups, parameter_roles
from geonorm.models.roles import ROLES, SHARED_ROLES

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "vocab_size": 32, "context": 8}


def test_roles_are_those_of_the_models_own_table() -> None:
    """For every scheme, with biases, learned positions, tables of token values and a tied head."""
    for scheme in [*names(), "geonorm(learn=affine)", "mix(ngpt, geonorm)"]:
        for fields in ({"bias": True, "positions": "learned"}, {"tied": True, "values": "token"}, {"values": "first"}):
            model = Decoder(DecoderConfig(scheme, **SHAPE, **fields))
            table = {id(weight): role for role, weight, _, _ in model.weights()}
            found = parameter_roles(model)
            for name, parameter in model.named_parameters():
                assert found[name] == table.get(id(parameter), "gain"), f"{scheme}: {name}"


def test_rates_and_decay_go_by_role() -> None:
    model = Decoder(DecoderConfig("geonorm(learn=step)", **SHAPE))
    model.blocks[1].requires_grad_(False)
    rates = {"embed": 16, "hidden": 2, "down": 3, "gain": 0.5}
    names_of = {id(p): name for name, p in model.named_parameters()}
    rows = {
        names_of[id(p)]: (group["lr"], group["rate"], group["weight_decay"])
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
    """Roles are said by an attribute, or follow from the class of a module."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 4)
            self.mlp = Residual(nn.Linear(4, 4), "hyper", Site(0, "mlp", 1), 4)
            self.out = nn.Linear(4, 8)
            self.out.role = "head"  # type: ignore[assignment]

    found = parameter_roles(Own())
    scheme = {name: role for name, role in found.items() if ".own." in name}
    assert scheme and set(scheme.values()) == {"gain"}
    assert {name: role for name, role in found.items() if name not in scheme} == {
        "table.weight": "embed", "mlp.branch.weight": "hidden", "mlp.branch.bias": "gain",
        "out.weight": "head", "out.bias": "gain",
    }  # fmt: skip
    assert parameter_roles(nn.Linear(2, 2)) == {"weight": "hidden", "bias": "gain"}


def test_without_rates_there_are_two_groups() -> None:
    decayed, plain = parameter_groups(Decoder(DecoderConfig("pre", **SHAPE)), 1e-3)
    assert (decayed["weight_decay"], plain["weight_decay"], decayed["lr"], plain["lr"]) == (0.1, 0.0, 1e-3, 1e-3)


def test_words_of_the_command_line() -> None:
    assert Optim(rates=["embed=16", "head=.5"]).multipliers == {"embed": 16.0, "head": 0.5}
    assert set(RATED) <= {*ROLES, *SHARED_ROLES} and {r for r in ROLES if ROLES[r].hidden} < set(RATED)
    for words, said in (
        (["embd=2"], "unknown role of optim.rates 'embd': did you mean 'embed'?"),
        (["embed"], "optim.rates embed takes a finite number, got ''"),
        (["embed=0"], "optim.rates embed must be positive, got 0"),
        (["embed=2", "embed=2"], "optim.rates names a role twice"),
    ):
        with pytest.raises(ConfigError, match=said.replace("?", "[?]")):
            Optim(rates=words)
    with pytest.raises(ConfigError, match="unknown role 'embd'"):
        geonorm.parameter_groups(nn.Linear(2, 2), 1e-3, rates={"embd": 2})


def test_the_example_of_the_docstring_runs() -> None:
    assert doctest.testmod(groups).failed == 0
