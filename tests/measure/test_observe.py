"""The observer beyond the families of the table: models under a scheme, modules of one's own, sites across stacks."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import geonorm
from geonorm import Residual, Site
from geonorm.errors import ConfigError
from geonorm.measure.anatomy import Stack
from geonorm.measure.norms import norms_of
from geonorm.measure.observe import sites_of, watch
from geonorm.models.config import DecoderConfig
from geonorm.models.decoder import Decoder

Tiny = Callable[[str], tuple[Any, dict[str, Any]]]


@pytest.mark.parametrize("case", ["llama", "t5", "vit"])
def test_a_stock_model_under_a_scheme_is_watched_at_its_residuals(case: str, tiny_model: Tiny) -> None:
    stock, inputs = tiny_model(case)
    model = copy.deepcopy(stock)
    before = sites_of(model)
    geonorm.hf.apply(model, "geonorm")
    after = sites_of(model)
    assert [place.key for place in after] == [place.key for place in before]
    assert {place.scheme for place in after} == {"geonorm"}
    found = geonorm.probe(model, inputs)
    assert [(row["stack"], row["layer"], row["kind"]) for row in found.sites] == [
        (place.stack, place.site.layer, place.site.kind) for place in before
    ]
    for row in found.sites:
        assert row["radius_after"] == pytest.approx(row["radius"], rel=1e-5)
    assert {row["stack"] for row in found.norms} == {place.stack for place in before}


class Own(nn.Module):
    """Two Residuals that stand in no list of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.one = Residual(nn.Linear(8, 8), "pre", Site(0, "mlp", 2), 8)
        self.two = Residual(nn.Linear(8, 8), "geonorm", Site(1, "mlp", 2), 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))


def test_a_module_of_ones_own_is_watched_at_its_residuals() -> None:
    torch.manual_seed(0)
    model, x = Own(), torch.randn(2, 3, 8)
    seen: list[Any] = []
    with watch(model, lambda *found: seen.append(found)):
        out = model(x)
    assert [(place.scheme, place.site) for place, *_ in seen] == [
        ("pre", Site(0, "mlp", 2)), ("geonorm", Site(1, "mlp", 2))
    ]  # fmt: skip
    assert seen[0][1] is x and seen[0][3] is seen[1][1] and seen[1][3] is out
    assert torch.equal(seen[0][1] + seen[0][2], seen[0][3])
    assert len(geonorm.probe(model, x).sites) == 2


@torch.no_grad()
def test_what_a_site_leaves_is_what_the_next_one_reads_also_around_cross_attention(tiny_model: Tiny) -> None:
    model, inputs = tiny_model("t5")
    handed: dict[str, Tensor] = {}
    reads = [f"layer.{place}.layer_norm" for place in range(3)]
    block = model.decoder.block[0]
    handles = [
        block.get_submodule(path).register_forward_pre_hook(lambda _, args, path=path: handed.update({path: args[0]}))
        for path in reads
    ]
    left: dict[Any, Tensor] = {}
    with watch(model, lambda place, x, u, out: left.update({place.key: out})):
        model(**inputs)
    for handle in handles:
        handle.remove()
    kinds = ("attn", "cross", "mlp")
    for (kind, _), (_, following) in pairwise(zip(kinds, reads, strict=True)):
        assert left["decoder", Site(0, kind, 2, 3)] is handed[following]


def test_sites_by_hand_of_blocks_that_say_theirs_are_refused() -> None:
    """They did nothing, so that a mistyped path could not be seen."""
    model = Decoder(DecoderConfig(layers=2, width=16, heads=2, hidden=24, vocab_size=17, context=8))
    by_hand = [Stack.by_hand("blocks", ["mlp:norm=no.such,branch=nothing.here"])]
    with pytest.raises(ConfigError, match=r"blocks.0 says itself where its residual sites are: leave out --blocks"):
        geonorm.probe(model, torch.zeros(1, 4, dtype=torch.long), stacks=by_hand)


def test_a_model_without_norms_has_none() -> None:
    """Modules that are the identity were norms of spread 1."""
    model = Decoder(DecoderConfig(scheme="pre", norm="none", layers=2, width=16, heads=2, hidden=24, vocab_size=17))
    assert not norms_of(model) and norms_of(nn.Sequential(nn.RMSNorm(8)))
