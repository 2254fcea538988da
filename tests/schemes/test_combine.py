"""Combinators: which scheme stands where; parts keep their ends, their initialisation and their constraints."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from geonorm import Site, parse
from geonorm.errors import ConfigError
from geonorm.schemes import First, Mix, PerKind, Pre, Scheme, state_of

DEPTH = 4
SITES = [Site(layer, kind, DEPTH) for layer in range(DEPTH) for kind in ("attn", "mlp")]


def plan(text: str) -> list[str]:
    """Entry, every site, exit."""
    scheme = parse(text)
    sites = [Site(0, "entry", DEPTH), *SITES, Site(DEPTH - 1, "exit", DEPTH)]
    return [str(scheme.resolve(site)) for site in sites]


@pytest.mark.parametrize(("blocks", "count"), [(0, 0), (1, 1), (3, 3), (9, 4)])
def test_first_counts_blocks(blocks: int, count: int) -> None:
    found = plan(f"first(peri, lns, blocks={blocks})")
    assert found[1:-1] == ["peri"] * 2 * count + ["lns"] * 2 * (DEPTH - count)
    assert found[0] == ("peri" if count else "lns") and found[-1] == ("peri" if count == DEPTH else "lns")


def test_per_kind() -> None:
    assert plan("per_kind(peri, lns)") == ["peri", *["peri", "lns"] * DEPTH, "peri"]
    scheme = parse("per_kind(peri, lns)")
    assert {str(scheme.resolve(Site(0, kind, 1, 3))) for kind in ("cross", "parallel")} == {"peri"}


def test_nested() -> None:
    found = plan("per_kind(attn=first(olmo2, pre), mlp=mix(a=post, b=first(keel, lns, blocks=3), share=0.5))")
    assert found == ["olmo2", "olmo2", "post", "pre", "post", "pre", "keel", "pre", "lns", "pre"]


@pytest.mark.parametrize("text", ["first({}, pre)", "per_kind({}, post)", "mix({}, pre)", "mix(first({}), pre)"])
def test_entry_overrides_that_of_the_part(text: str) -> None:
    part = text.format("pre(entry=embedding)")
    assert plan(part)[0] == "pre(entry=embedding)" and plan(part)[1] == "pre(entry=embedding)"
    outer = part[:-1] + ", entry=sphere)"
    assert plan(outer)[0] == "pre" and plan(outer)[1] == "pre(entry=embedding)"


@dataclass(frozen=True)
class Adds(Scheme):
    """A scheme that is no placement."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        return x + h * u


@pytest.mark.parametrize("combine", [Mix, First, PerKind])
def test_an_entry_that_cannot_be_set_is_refused(combine: Any) -> None:
    entry = Site(0, "entry", 4)
    assert combine(Adds(), Pre(), entry="part").resolve(entry) == Adds()
    with pytest.raises(ConfigError, match=r"entry=embedding of .* cannot be set: .*Adds.* has no such field") as error:
        combine(Adds(), Pre(), entry="embedding").resolve(entry)
    assert "\n" not in str(error.value)


def test_the_first_named_part_wins_where_recipes_disagree() -> None:
    class Warm(type(parse("pre"))):  # type: ignore[misc]
        def recipe(self) -> dict[str, float]:
            return {"warmup": 3.0, "clip": 0.5}

    combined = parse("per_kind(attn=ngpt)")
    object.__setattr__(combined, "mlp", Warm())
    assert combined.recipe() == {"weight_decay": 0.0, "warmup": 0.0, "clip": 0.5}


def test_what_a_combination_says_of_itself() -> None:
    assert parse("first(pre, post)").planar
    two = parse("per_kind(residual_dual, residual_dual)")
    assert two.streams == 2 and not two.planar and two.about.lawless == parse("residual_dual").about.lawless
    assert state_of(two) == state_of(parse("residual_dual")) != state_of(parse("pre"))
    state = torch.randn(3, 2, 5)
    assert torch.equal(two.seen(state), parse("residual_dual").seen(state))


def test_a_combination_itself_writes_nothing() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(TypeError, match=r"resolve\(site\)"):
        parse("mix").write(x, x, None, SITES[0])
