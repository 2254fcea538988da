"""Morph: the source at the start, the target at the end, bit for bit; names of weights do not change on the way."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig, Residual, Site, parse
from geonorm.errors import ConfigError
from geonorm.schemes import Progress, advance, settle
from geonorm.schemes.morph import alike, blend
from geonorm.schemes.scales import Scale

from .textbook import DIM, perturbed

SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 11, "context": 8}
IDS = torch.arange(8).view(1, 8)
TARGETS = [
    "geonorm",
    "geonorm(entry=embedding)",
    "geonorm(input=norm, learn=affine)",
    "post",
    "peri",
    "lns",
    "mix(geonorm, pre, share=0.5)",
]


def build(scheme: str, weights: dict[str, torch.Tensor] | None = None, **shape: Any) -> Decoder:
    """A model with gains that are not 1; with some of the weights of another."""
    torch.manual_seed(0)
    model = perturbed(Decoder(DecoderConfig(scheme, **{**SHAPE, **shape})).double())
    if weights is not None:
        model.load_state_dict({name: weights[name] for name in model.state_dict()})
    return model


@pytest.mark.parametrize("course", ["global", "layers"])
@pytest.mark.parametrize("target", TARGETS)
def test_it_begins_as_the_source_and_ends_as_the_target(target: str, course: str) -> None:
    source = "pre(entry=embedding)"
    model = build(f"morph({source}, {target}, steps=3, course={course})")
    weights = model.state_dict()
    first, last = (build(scheme, weights) for scheme in (source, target))
    assert torch.equal(model(IDS), first(IDS))
    between = []
    for _ in range(3):
        advance(model)
        between.append(model(IDS))
        gradients = torch.autograd.grad(between[-1].square().sum(), list(model.parameters()), allow_unused=True)
        assert all(torch.isfinite(g).all() for g in gradients if g is not None)
    assert not torch.allclose(between[0], first(IDS)) and not torch.allclose(between[0], last(IDS))
    assert torch.equal(between[2], last(IDS))
    advance(model)
    assert torch.equal(model(IDS), last(IDS))
    owned = {name for name in weights if not name.endswith("progress.done")}
    assert owned == first.state_dict().keys() | last.state_dict().keys()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("layerscale(start=0.1)", "layerscale(start=0.5)"), ("rezero(alpha=0.5)", "rezero(alpha=0.1)"),
        ("geonorm(learn=step, alpha=1)", "geonorm(learn=step, alpha=0.25)"),
    ],
)  # fmt: skip
def test_what_both_learn_begins_as_the_source_begins(source: str, target: str) -> None:
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(f"morph({source}, {target}, steps=2)", **SHAPE))
    torch.manual_seed(0)
    assert torch.equal(model(IDS), Decoder(DecoderConfig(source, **SHAPE))(IDS))


def test_modules_that_mean_their_weights_otherwise_are_not_one() -> None:
    scale, same, other = Scale((1,), 0.5, 1.0), Scale((1,), 0.25, 0.5), Scale((1,), 0.5, 0.25)
    assert alike(scale, same) and not alike(scale, other)


def test_settled_it_is_the_target_and_nothing_else() -> None:
    model = build("morph(pre, geonorm(learn=gain), steps=2)")
    last = build("geonorm(learn=gain)", model.state_dict())
    advance(model)
    with pytest.raises(ConfigError, match="has made 1 of the 2 steps of its way"):
        settle(model)
    advance(model)
    kept = {name: p for name, p in model.named_parameters() if ".input." not in name}
    settle(model)
    assert model.state_dict().keys() == last.state_dict().keys()
    assert all(p is kept[name] for name, p in model.named_parameters())  # an optimizer still knows them
    assert not any(isinstance(module, Progress) for module in model.modules())
    torch.testing.assert_close(model(IDS), last(IDS), rtol=1e-12, atol=1e-12)
    assert {str(residual.scheme) for _, residual in model.residuals()} == {"geonorm(learn=gain)"}
    for _, residual in model.residuals():
        residual.reset_parameters()
    with pytest.raises(ConfigError, match="not under morph"):
        settle(model)


def test_settled_inside_a_combinator_it_is_named_as_its_target() -> None:
    model = build("mix(morph(pre, geonorm, steps=1), pre, share=0.5)")
    advance(model)
    settle(model)
    assert model.config.scheme == "mix(a=geonorm, share=0.5)"
    assert {str(residual.scheme) for _, residual in model.residuals()} == {"geonorm", "pre"}
    assert torch.equal(model(IDS), build(model.config.scheme, model.state_dict())(IDS))


def test_by_layers_each_block_has_its_turn() -> None:
    """Of 4 blocks over 12 steps, block 2 moves in steps 6 to 9 by half a cosine: a quarter of the way after a third."""
    shares = []
    residual = Residual(torch.nn.Identity(), "morph(steps=12, course=layers)", Site(2, "mlp", 4), DIM)
    x = torch.ones(1, DIM)
    for _ in range(13):
        shares.append(residual.scheme.share(x, residual.own(), residual.site(x)).item())
        advance(residual)
    assert shares == pytest.approx([0] * 7 + [0.25, 0.75] + [1] * 4, abs=1e-6)


def test_between_two_vectors_directions_and_lengths_are_between() -> None:
    a, b = torch.tensor([[1.0, 0.0], [3.0, 4.0]]).double(), torch.tensor([[0.0, 16.0], [3.0, 4.0]]).double()
    half = blend(a, b, torch.tensor(0.5).double())
    torch.testing.assert_close(half, torch.tensor([[8**0.5, 8**0.5], [3.0, 4.0]]).double())
    assert blend(a, b, torch.tensor(0.0)) is not a and torch.equal(blend(a, b, torch.tensor(0.0).double()), a)
    zero = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    out = blend(zero, b[:1], torch.tensor(0.25).double())
    torch.testing.assert_close(out, b[:1] / 4)
    assert torch.isfinite(torch.autograd.grad(out.sum(), zero)[0]).all()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("morph(pre, hyper)", "no gradual way leads from pre (one stream) to hyper (4 streams of Hyper)"),
        ("morph(pre, polar)", "direction and log-radius"),
        ("morph(pre, ngpt)", "ngpt: it constrains weights"),
        ("morph(pre, hybrid)", "hybrid, which puts a module inside branch or head (q)"),
        ("morph(pre, nag)", "from pre to nag: input is something else in each"),
        ("morph(pre, prores)", "or changes over training itself"),
        ("morph(polar, polar(max_step=0.5))", "its stream, direction and log-radius, is no vector to be blended"),
        ("prores(morph)", "prores cannot stand around morph, which changes over training itself"),
        ("morph(morph, geonorm)", "one of them changes over training itself"),
    ],
)
def test_where_no_way_leads_one_line_says_so(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Decoder(DecoderConfig(text, **SHAPE))
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_the_ends_of_the_stream_move_too() -> None:
    """The raw embedding becomes that of the sphere: half-way its length is the geometric mean."""
    model = build("morph(pre(entry=embedding), geonorm, steps=2)")
    x = model.embed(IDS)
    advance(model)
    radius = 4.0
    mean = (x.norm(dim=-1) * radius).sqrt()
    torch.testing.assert_close(model.entry(x).norm(dim=-1), mean, rtol=1e-5, atol=0)
    assert str(parse("morph(steps=2)")) == "morph(steps=2)"


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf",  # torch 2.11 asks for it
    "ignore:.*autograd.function.Function.*:DeprecationWarning",
)
def test_compiled_code_sees_it_move_and_is_compiled_once() -> None:
    torch.compiler.reset()
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    residual = Residual(torch.nn.Linear(DIM, DIM), "morph(steps=4, course=layers)", Site(1, "mlp", 4), DIM)
    compiled = torch.compile(residual, backend=count)
    x = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))
    first = 0
    for _ in range(5):
        torch.testing.assert_close(compiled(x), residual(x))
        advance(residual)
        first = first or len(graphs)
    assert len(graphs) == first
    torch.compiler.reset()


def test_no_token_is_at_the_ceiling_of_the_target_before_the_way_begins() -> None:
    residual = Residual(torch.nn.Linear(8, 8), "morph(pre, geonorm, steps=4)", Site(0, "mlp", 2), dim=8)
    x, u = torch.ones(1, 8), torch.tensor([[3.0, -3.0] * 4])
    seen = []
    for _ in range(2):
        seen.append(residual.scheme.clamped(x, u, residual.own(), residual.site(x)))
        advance(residual)
    assert [bool(found) for found in seen] == [False, True]
