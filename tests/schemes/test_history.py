"""Streams that remember: attention residuals, doubly stochastic mixing, scales on the skip path."""

import pytest
import torch
from torch import Tensor

import geonorm
from geonorm import Decoder, DecoderConfig, Site, parse
from geonorm.errors import ConfigError
from geonorm.schemes import read_at, write_at

from ..rows import each
from . import textbook
from .test_streams import DIM, SITES, embedding, network, own, weights
from .textbook import same


@each("depth", [4, 5, 6, 7, 9, 10, 11, 36])
def test_there_are_as_many_blocks_as_asked_for(depth: int) -> None:
    sites = [Site(layer, kind, depth) for layer in range(depth) for kind in ("attn", "mlp")]
    for blocks in (1, 3, 8):
        places = [parse(f"attnres(blocks={blocks})").place(site) for site in sites]
        sizes = [[block for block, _ in places].count(n) for n in range(1, blocks + 1)]
        assert max(sizes) - min(sizes) <= 1 and sum(sizes) == len(sites)
        assert [begun for _, begun in places].count(0) == blocks


def test_one_residual_a_block_counts_blocks_alone() -> None:
    scheme = parse("attnres(blocks=2)")
    assert [scheme.place(Site(layer, "parallel", 4)) for layer in range(4)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [scheme.place(site) for site in SITES] == [(1, 0), (1, 1), (1, 1), (2, 0), (2, 1), (2, 1)]
    three = [Site(layer, kind, 2, 3) for layer in range(2) for kind in ("attn", "cross", "mlp")]
    assert [scheme.place(site) for site in three] == [(1, 0), (1, 1), (1, 1), (2, 0), (2, 1), (2, 1)]


@pytest.mark.parametrize("blocks", [8, 4, 3, 1])
def test_the_end_of_parallel_blocks_reads_the_slots_that_they_wrote_to(blocks: int) -> None:
    text = f"attnres(blocks={blocks})"
    model = Decoder(DecoderConfig(text, 4, 16, 2, hidden=24, vocab_size=11, context=8, block="parallel"))
    read: list[tuple[Tensor, int]] = []
    model.exit.own["recall"].register_forward_pre_hook(lambda _, given: read.append(given))
    model(torch.arange(8).view(1, 8))
    ((x, slots),) = read
    assert slots == int((x.abs().amax((0, 1, 3)) > 0).sum()) == 1 + min(blocks, 4)


@each("mix", ["sinkhorn", "permutation", "identity"])
@each("n", [2, 3])
def test_every_mixing_is_its_equation(mix: str, n: int) -> None:
    for site in textbook.SITES[:2]:
        scheme, parts = textbook.placed(f"mhc(mix={mix}, n={n})", site)
        x, bend = textbook.stream(scheme), textbook.Bend()
        expected = textbook.constrained(x, bend, weights(parts), site, mix)
        textbook.same(textbook.written(scheme, parts, site, x, bend), expected)


@each("n", [2, 3, 4])
def test_connections_may_depend_on_no_token(n: int) -> None:
    for site in textbook.SITES[:2]:
        scheme, parts = textbook.placed(f"hyper(n={n}, dynamic=none)", site)
        x, bend = textbook.stream(scheme), textbook.Bend()
        same(textbook.written(scheme, parts, site, x, bend), textbook.connected(x, bend, weights(parts)))


@pytest.mark.parametrize("text", ["mhc(iterations=3000)", "mhc(mix=permutation)"])
def test_mixing_keeps_the_mean_of_the_streams_and_makes_no_stream_longer(text: str) -> None:
    """Rows and columns sum to 1, and nothing is negative: with an update of 0 the mean stays, the largest shrinks."""
    scheme, site = parse(text), SITES[1]
    p = own(scheme, site, 0.5)
    p.get_parameter("mapping.bias").data.mul_(0.2)  # off diagonal, too
    x = torch.randn(7, 4, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    _, carry = read_at(scheme, x, p(), site)
    after = write_at(scheme, x, torch.zeros(7, DIM), p(), site, carry=carry)
    torch.testing.assert_close(after.mean(-2), x.mean(-2), rtol=1e-6, atol=1e-6)
    assert (after.norm(dim=-1).amax(-1) <= x.norm(dim=-1).amax(-1) + 1e-9).all() and (after - x).abs().max() > 0.1
    assert (torch.linalg.matrix_norm(after) <= torch.linalg.matrix_norm(x) + 1e-9).all()


def test_twenty_rounds_leave_columns_that_do_not_sum_to_1_where_scores_lie_far_apart() -> None:
    """What mHC-lite was made for: rows, which come last, are exact, and columns are not."""
    scores = 8 * torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    m = parse("mhc").stochastic(scores)  # type: ignore[attr-defined]
    same(m.sum(-1), torch.ones(50, 4, dtype=torch.float64))
    assert 0.01 < (m.sum(-2) - 1).abs().max() < 1


def test_too_many_permutations_are_refused() -> None:
    with pytest.raises(ConfigError, match="use at most 6 streams"):
        parse("mhc(mix=permutation, n=7)")
    assert parse("mhc(n=7)").streams == 7


def test_neutral_scales_without_backout_are_pre_norm() -> None:
    same(network("lambdas(start=neutral, backout=none)", moved=0.0), network("pre", moved=0.0))
    assert not torch.allclose(network("lambdas(backout=none)", moved=0.0), network("pre", moved=0.0))


@pytest.mark.parametrize("block", ["sequential", "parallel"])
def test_a_model_with_one_residual_a_block_scales_once_a_block(block: str) -> None:
    model = Decoder(DecoderConfig("lambdas", layers=3, width=8, heads=2, hidden=8, block=block))
    named = dict(model.named_parameters())
    scale, again = (
        [p.item() for name, p in named.items() if name.endswith(f"own.{each}")] for each in ("scale", "again")
    )
    assert scale == pytest.approx([1.15, 1.1, 1.05]) and again == pytest.approx([0.2, 0.125, 0.05])
    assert named["exit.own.backout"].item() == pytest.approx(0.2)


def test_schemes_of_two_and_three_streams_do_not_follow_one_another() -> None:
    assert parse("mix(lambdas, lambdas(start=neutral))").streams == 3
    with pytest.raises(ConfigError, match="cannot combine"):
        parse("mix(lambdas, lambdas(backout=none))")


def test_gpas_scales_values_and_not_gradients() -> None:
    scheme, site = parse("gpas"), SITES[2]
    p = own(scheme, site)
    x = embedding().requires_grad_()
    u = embedding().flip(0).requires_grad_()
    gate = weights(p)["gate"]
    out = scheme.write(x, u, p(), site)
    same(out, (x + u) * (1 - gate * torch.sigmoid(gate)))
    same(scheme.write(x, u, p(), site, 0.0), x)
    g = embedding().roll(1, -1)
    along_x, along_u = torch.autograd.grad((out * g).sum(), (x, u))
    assert torch.equal(along_x, g) and torch.equal(along_u, g) and abs(gate.item()) > 1e-3


def test_attention_may_read_thrice() -> None:
    """Each reading has a query and a norm of its own that learn; a particle, which reads once, refuses."""
    rule = "attnres(values=norm, queries=qkv)"
    model = Decoder(DecoderConfig(scheme=rule, width=16, heads=2, layers=2, vocab_size=11, context=8))
    model(torch.arange(6).view(1, 6))[0].square().mean().backward()
    learned = dict(model.blocks[1].attn.own.named_parameters())
    assert learned["recall.query"].shape == (3, 16) and all(row.any() for row in learned["recall.query"].grad)
    assert learned.keys() == {"recall.query", "input.weight", "key.weight", "value.weight"}
    with pytest.raises(ConfigError, match="a particle once: use queries=one"):
        geonorm.simulate(schemes=[rule], tokens=4, dim=8, time=1.0)
