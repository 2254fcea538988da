"""The velocity and the layer map of a flow: derived from the schemes, equal to the network."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Residual, Site, names
from geonorm.dynamics import Attention, Flow, Fresh, integrate, random_attention, uniform
from geonorm.errors import ConfigError
from geonorm.schemes import read_at, write_at

from ..rows import each
from .conftest import speed_of

F64 = torch.float64
DEPTH = 8
SCHEMES = names()
# without nag, which takes the mean of the features away, and gated_streams, which weighs each feature by itself
TURNED = [name for name in SCHEMES if name not in ("nag", "gated_streams")]
SPHERES = ["post", "deepnorm", "sqrt", "ngpt", "geonorm", "geonorm(decay=sqrt, retraction=cayley)"]


@each("scheme", [*SCHEMES, "pre(entry=embedding, decay=sqrt)", "post(entry=embedding)"])
def test_layers_are_a_stack_of_residual_modules(scheme: str) -> None:
    """h = 1 is the network: the same numbers as the module that trains, norms of radius 1, identity attention."""
    field = Attention(beta=2.0)
    flow = Flow(scheme, field, DEPTH)
    x = flow.enter(3.0 * uniform(5, 6, seeds=(4, 5)))
    expected, branch = x, nn.Identity()
    branch.forward = field  # type: ignore[method-assign]
    for layer in range(DEPTH):
        residual = Residual(branch, scheme, Site(layer, "attn", DEPTH), 6, norm="unit", gains=False, eps=0.0)
        residual.double().reset_parameters()
        with torch.no_grad():
            expected = residual(expected)
    ((time, found),) = integrate(flow, x, [DEPTH], method="layers")
    assert time == DEPTH
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-13)


def test_every_layer_has_parts_of_its_own() -> None:
    flow, x = Flow("hyper(n=3)", Attention(), DEPTH), uniform(5, 6)
    mixes = [flow.parts_at(*flow.rule(tau), 6, x)["connection"].mix for tau in (0.0, 1.0, 0.5)]
    assert [mix[:, 0].argmax().item() for mix in mixes] == [0, 2, 0]


@pytest.mark.parametrize("scheme", ["attnres", "mhc"])
def test_a_velocity_does_not_depend_on_which_was_asked_for_first(scheme: str) -> None:
    flows = [Flow(scheme, Attention(beta=2.0), DEPTH) for _ in range(2)]
    x = flows[0].start(uniform(5, 6, seeds=(4,)))
    x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    flows[0].velocity(x, 0.0)
    assert torch.equal(flows[0].velocity(x, 0.7), flows[1].velocity(x, 0.7))


@each("scheme", SCHEMES)
def test_velocity_is_the_slope_of_the_written_stream(scheme: str) -> None:
    """Against central differences of `write` in its own step size, the update held fixed."""
    flow = Flow(scheme, Attention(beta=1.5), DEPTH)
    x = flow.start(uniform(6, 5))
    tau = 2.5
    rule, site = flow.rule(tau)
    parts = flow.parts_at(rule, site, 5, x)
    u = flow.update(x, tau)

    def write(h: float) -> Tensor:
        _, carry = read_at(rule, x, parts(), site)
        return write_at(rule, x, u, parts(), site, torch.tensor(h, dtype=F64), carry=carry)

    step = 1e-4
    # fourth order, so that its own error is below rounding
    slope = (8 * (write(step) - write(-step)) - (write(2 * step) - write(-2 * step))) / (12 * step)
    torch.testing.assert_close(flow.velocity(x, tau), slope, rtol=1e-8, atol=1e-10)


@each("scheme", [*TURNED, "geonorm(decay_on=update)", "mix(a=peri, b=sqrt, share=0.5)"])
def test_rotations_commute_with_the_dynamics(scheme: str) -> None:
    flow = Flow(scheme, Attention(beta=2.0), DEPTH)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1), dtype=F64))[0]
    e = uniform(5, 6)
    a, b = flow.start(e), flow.start(e @ turn)
    for tau in (0.0, 5.5):
        torch.testing.assert_close(flow.velocity(b, tau), flow.velocity(a, tau) @ turn, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(flow.layer(b, 1.0), flow.layer(a, 1.0) @ turn, rtol=1e-10, atol=1e-12)


def test_which_schemes_keep_their_radius_is_found_not_typed() -> None:
    for scheme in SCHEMES:
        fixed = Flow(scheme, Attention(), DEPTH).keeps_radius(0.0).flatten().tolist()
        if scheme == "residual_dual":
            assert fixed == [True, False]
        elif scheme in ("pre", "peri", "olmo2", "lns", *SPHERES, "mix"):
            assert fixed == [scheme in (*SPHERES, "mix")], scheme
    assert Flow("mix", Attention(), DEPTH).keeps_radius(2.0).tolist() == [False]
    assert Flow("rezero", Attention(), DEPTH).keeps_radius(0.0).tolist() == [False]  # at rest, it may be moved later


def test_two_sublayers_add_their_velocities_and_compose_their_layers() -> None:
    attention, mlp = random_attention(6, seed=1), random_attention(6, seed=2)
    both = Flow("pre", [("attn", attention), ("mlp", mlp)], DEPTH)
    first, second = Flow("pre", attention, DEPTH), Flow("pre", [("mlp", mlp)], DEPTH)
    x = both.start(uniform(4, 6))
    torch.testing.assert_close(both.velocity(x, 0.5), first.velocity(x, 0.5) + second.velocity(x, 0.5))
    assert torch.equal(both.layer(x, 1.0), second.layer(first.layer(x, 1.0), 1.0))
    half = Flow("geonorm(index=sublayer, max_angle=pi)", [("attn", attention), ("mlp", mlp)], DEPTH)
    x = half.start(x)
    assert torch.allclose(speed_of(half, x, 1.0, 0), torch.tensor(3.0, dtype=F64))
    assert torch.allclose(speed_of(half, x, 1.0, 1), torch.tensor(4.0, dtype=F64))


@pytest.mark.parametrize("scheme", ["per_kind(pre, post)", "per_kind(deepnorm, pre)", "mix(pre, per_kind)", "hybrid"])
def test_sublayers_that_disagree_about_the_sphere_are_refused_in_continuous_depth(scheme: str) -> None:
    flow = Flow(scheme, [("attn", Attention()), ("mlp", random_attention(6))], DEPTH)
    x = flow.start(uniform(4, 6))
    with pytest.raises(ConfigError, match=r"attn and mlp do not put the stream on one sphere.*--method layers"):
        list(integrate(flow, x, [DEPTH]))
    list(integrate(flow, x, [DEPTH], method="layers"))


@each("scheme", [*SCHEMES, "per_kind(pre, geonorm)", "per_kind(post, deepnorm)", "mix(pre, post)"])
def test_sublayers_that_agree_about_the_sphere_are_followed(scheme: str) -> None:
    if scheme not in ("hybrid", "per_kind"):
        Flow(scheme, [("attn", Attention()), ("mlp", random_attention(6))], DEPTH).keeps_radius(0.0)


def test_where_the_velocity_jumps() -> None:
    assert Flow("mix(share=0.5)", Attention(), 8).breaks(0.0, 20.0) == [4.0]
    assert Flow("mix(share=0.5)", Attention(), 8).breaks(4.0, 20.0) == []
    assert Flow("pre", Attention(), 8).breaks(0.0, 1e6) == []
    assert Flow("pre", Fresh(lambda layer: Attention()), 8).breaks(0.5, 4.0) == [1.0, 2.0, 3.0]


def test_a_particle_without_a_direction_is_refused() -> None:
    with pytest.raises(ConfigError, match="zero vector"):
        Flow("pre", Attention()).start(torch.zeros(3, 4))


@each("scheme", TURNED)
@each("start", ["one", "coincident", "antipodal", "line"])
def test_degenerate_configurations_stay_where_they_are(scheme: str, start: str) -> None:
    """One particle, one point, an antipodal pair (erratum to Theorem 4.3), dim = 1: nothing turns, nothing is nan."""
    x: dict[str, Any] = {
        "one": uniform(1, 5),
        "coincident": uniform(1, 5).expand(1, 4, 5),
        "antipodal": torch.eye(1, 5, dtype=F64) * torch.tensor([[1.0], [-1.0]], dtype=F64),
        "line": torch.tensor([[1.0], [-1.0], [1.0]], dtype=F64),
    }
    for beta in (0.0, 0.01, 3.0):
        flow = Flow(scheme, Attention(beta=beta), DEPTH)
        state = flow.start(x[start])
        begin = flow.tokens(state)
        velocity = flow.velocity(state, 0.5)
        assert velocity.isfinite().all()
        if flow.scheme.planar:
            assert not speed_of(flow, state, 0.5).isnan().any()
        for later in (state + 0.25 * velocity, state if start == "line" else flow.layer(state, 1.0)):
            torch.testing.assert_close(flow.tokens(later), begin, rtol=0, atol=1e-12)


@each("scheme", SPHERES)
@each("method", ["adaptive", "layers"])
def test_radii_are_kept(scheme: str, method: str) -> None:
    flow = Flow(scheme, random_attention(6, seed=3), DEPTH)
    x = flow.start(uniform(5, 6))
    for _, later in integrate(flow, x, [1, 2], method=method, tolerance=1e-5):
        torch.testing.assert_close(flow.radius(later), flow.radius(x), rtol=1e-14, atol=0)
    own = Flow("geonorm(entry=embedding)", Attention(), DEPTH)
    x = own.start(uniform(5, 6) * torch.arange(1, 6, dtype=F64)[:, None])
    for _, later in integrate(own, x, [2], method=method, tolerance=1e-5):
        torch.testing.assert_close(later.norm(dim=-1)[0], torch.arange(1, 6, dtype=F64), rtol=1e-14, atol=0)
