"""Residual warm-up around other schemes: the step is h of the scheme inside, one count for a model, saved with it."""

from itertools import pairwise
from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig, Residual, Site, parse
from geonorm.errors import ConfigError
from geonorm.ops import geodesic_step
from geonorm.schemes import advance, write_at
from geonorm.schemes.base import normalise_update

from ..rows import each
from .textbook import DEPTH, DIM, EPS, SITES, Bend, perturbed, placed, same, stream, written

INSIDE = [*"pre post deepnorm geonorm nag hybrid hyper mhc attnres".split(), "geonorm(update=unit, learn=step)"]
SHAPE: dict[str, Any] = {"layers": 2, "width": 16, "heads": 2, "hidden": 24, "vocab_size": 11, "context": 8}


@each("inside", INSIDE)
def test_a_step_is_that_share_of_the_step_inside(inside: str) -> None:
    """Block t after n steps: h = min(n / (10 t), 1)."""
    for site in SITES:
        bare, own = placed(inside, site)
        whole, _ = placed(f"prores({inside}, steps=10)", site)
        x = stream(bare)
        for steps in (0, 7, 30, 1000):
            residual = Residual(Bend(), whole, site, DIM, eps=EPS)
            perturbed(residual.own)
            for _ in range(min(steps, 70)):
                advance(residual)
            h = min(steps / (10 * (site.layer + 1)), 1.0)
            same(residual(x), written(bare, own, site, x, residual.branch, h=torch.tensor(h, dtype=torch.float64)))
            if h == 1:
                same(residual(x), written(bare, own, site, x, residual.branch))


@each("fields", ["", "alpha=0.5, decay=sqrt", "decay_on=update, alpha=3", "update=unit", "update=norm, input=norm",
     "retraction=cayley, max_angle=3", "index=sublayer, decay=linear"])  # fmt: skip
def test_a_share_of_an_angle_takes_the_fast_path(fields: str) -> None:
    """Stream and gradients are those of the reference, h on the definition; updates far beyond the clamp and below."""
    generator = torch.Generator().manual_seed(0)
    for site in (Site(0, "attn", DEPTH), Site(2, "mlp", DEPTH)):
        scheme, own = placed(f"prores(geonorm({fields}), steps=3)", site)
        for steps in (0, 2, 5, 9):
            own.get_buffer("progress.done").fill_(steps)
            p = own()
            angles = scheme.angles(p, site)
            assert angles is not None
            x, u, grad = torch.randn(3, 6, DIM, generator=generator, dtype=torch.float64)
            u = (u * torch.tensor([0.0, 0.01, 0.3, 0.9, 3.0, 100.0])[:, None]).requires_grad_()
            x.requires_grad_()
            slow = write_at(scheme, x, u, p, site)
            fast = geodesic_step(x, normalise_update(u, p), angles)
            torch.testing.assert_close(fast, slow, rtol=1e-11, atol=1e-12)
            found, wanted = (torch.autograd.grad(out, (x, u), grad) for out in (fast, slow))
            torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)


@each("fields", ["alpha=2", "decay=-1", "learn=gain", "learn=step", "after=norm"])
def test_where_the_decay_can_meet_the_clamp_it_takes_the_slow_one(fields: str) -> None:
    """There h on the angle is no h on what is clamped last."""
    site = Site(0, "attn", DEPTH)
    scheme, own = placed(f"prores(geonorm({fields}), steps=3)", site)
    assert scheme.angles(own(), site) is None


def test_it_combines_and_is_combined() -> None:
    both = [parse("mix(prores(pre), post)"), parse("prores(mix(pre, post), steps=3)"), parse("prores(prores(pre))")]
    found = [str(rule.resolve(Site(0, "attn", 4))) for rule in both]
    assert found == ["prores", "prores(steps=3)", "prores(scheme=prores)"]
    assert str(both[1].resolve(Site(3, "attn", 4))) == "prores(scheme=post, steps=3)"
    assert str(both[1].resolve(Site(3, "exit", 4))) == "post" and parse("prores(mhc(n=3))").streams == 3
    with pytest.raises(ConfigError, match="cannot combine"):
        parse("mix(prores(hyper), pre)")
    assert parse("prores(ngpt)").recipe() == parse("ngpt").recipe()


def test_the_ends_weights_and_slots_are_those_of_the_scheme_inside() -> None:
    found = {}
    for text in ("ngpt", "prores(ngpt, steps=1)"):
        torch.manual_seed(0)
        model = Decoder(DecoderConfig(text, **SHAPE))
        for _ in range(2):
            advance(model)
        found[text] = model(torch.arange(8).view(1, 8)), [weight for _, weight, _, _ in model.weights()]
    (plain, weights), (grown, same_weights) = found.values()
    torch.testing.assert_close(grown, plain, rtol=1e-5, atol=1e-6)
    assert all(map(torch.equal, weights, same_weights))


def test_the_count_is_saved_with_the_model() -> None:
    torch.manual_seed(0)
    model, other = (Decoder(DecoderConfig("prores(pre, steps=5)", **SHAPE)) for _ in range(2))
    ids = torch.arange(8).view(1, 8)
    start = model(ids)
    for _ in range(3):
        advance(model)
    assert not torch.allclose(model(ids), start)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(ids), model(ids))
    other.reset_parameters()
    assert all(int(b) == 0 for name, b in other.named_buffers() if name.endswith("progress.done"))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch 2.11 asks for it
@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")  # torch makes an instance
def test_compiled_code_sees_the_count_grow_and_is_compiled_once() -> None:
    torch.compiler.reset()
    graphs = []

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(graph)
        return graph.forward

    residual = Residual(torch.nn.Linear(DIM, DIM), "prores(geonorm, steps=5)", Site(1, "mlp", DEPTH), DIM)
    compiled = torch.compile(residual, backend=count)
    x = torch.randn(3, DIM, generator=torch.Generator().manual_seed(0))
    seen = []
    compiled_at_first = 0
    for _ in range(4):
        seen.append(compiled(x).detach().clone())
        torch.testing.assert_close(seen[-1], residual(x))
        advance(residual)
        compiled_at_first = compiled_at_first or len(graphs)
    assert len(graphs) == compiled_at_first and all((a - b).abs().max() > 1e-4 for a, b in pairwise(seen))
    torch.compiler.reset()
