"""Schemes of several streams: every field as an equation, whole stacks, what is measured, how they start."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from geonorm import Site, parse
from geonorm.norms import NormSpec
from geonorm.schemes import Parts, Scheme, read_at, write_at

from ..rows import each
from .textbook import EPS, norm, same

DIM, DEPTH = 8, 3
SITES = [Site(layer, kind, DEPTH) for layer in range(DEPTH) for kind in ("attn", "mlp")]
OFFICIAL = "siamese(sum=norm, decay=sqrt, alpha=0.7071067811865476)"
Branch = Callable[[Tensor], Tensor]


def branch(layer: float, kind: str) -> Branch:
    generator = torch.Generator().manual_seed(7 * int(layer) + len(kind))
    weight = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64) * DIM**-0.5
    return lambda y: torch.tanh(y @ weight) + 0.3 * y.roll(1, -1)


def embedding() -> Tensor:
    return 2 * torch.randn(3, 5, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def own(scheme: Scheme, site: Site, moved: float = 0.3) -> nn.Module:
    """The parameters of a site in fp64, off their initial values by a normal of this size."""
    parts = Parts(scheme, site, NormSpec("rms", DIM, eps=EPS)).double()
    parts.reset_parameters()
    generator = torch.Generator().manual_seed(int(site.layer) + len(site.kind))
    with torch.no_grad():
        for parameter in parts.parameters():
            parameter += moved * torch.randn(parameter.shape, generator=generator)
    return parts


def weights(parts: nn.Module) -> dict[str, Tensor]:
    return dict(parts.named_parameters())


def network(text: str, moved: float = 0.3) -> Tensor:
    """Entry, every site, exit, as a model runs them."""
    scheme = parse(text)
    entry, exit = Site(0, "entry", DEPTH), Site(DEPTH - 1, "exit", DEPTH)
    x = scheme.enter(embedding(), own(scheme, entry, moved)(), entry)
    for site in SITES:
        p = own(scheme, site, moved)
        y, carry = read_at(scheme, x, p(), site)
        x = write_at(scheme, x, branch(site.layer, site.kind)(y), p(), site, carry=carry)
    return scheme.exit(x, own(scheme, exit, moved)(), exit)


def siamese_algorithm(
    entry: str = "sphere", final: str = "norm", sum: str = "raw", share: Callable[[int], float] = lambda t: 1.0
) -> Tensor:
    """Alg. 1 of the paper, and what the official code adds to it, from the embedding to what the head reads."""
    scheme = parse(f"siamese(sum={sum})")
    x = y = norm(embedding()) if entry == "sphere" else embedding()
    for site in SITES:
        p = weights(own(scheme, site))
        both = x + norm(y, p["norm.weight"])
        o = branch(site.layer, site.kind)(norm(both, p["sum.weight"]) if sum == "norm" else both)
        x, y = norm(x + share(site.layer + 1) * o, p["stream.weight"]), y + o
    p = weights(own(parse(f"siamese(sum={sum}, final={final})"), Site(DEPTH - 1, "exit", DEPTH)))
    out = x + (norm(y, p["norm.weight"]) if final == "norm" else y)
    return norm(out, p["sum.weight"]) if sum == "norm" else out


@each(
    "text, settings",
    [
        ("siamese", {}), ("siamese(final=none)", {"final": "none"}), ("siamese(sum=norm)", {"sum": "norm"}),
        ("siamese(entry=embedding)", {"entry": "embedding"}), ("siamese(decay=sqrt)", {"share": lambda t: t**-0.5}),
        ("siamese(sum=norm, final=none)", {"sum": "norm", "final": "none"}),
        ("siamese(decay=linear, alpha=0.5)", {"share": lambda t: 0.5 * (DEPTH - t + 1) / DEPTH}),
        (OFFICIAL, {"sum": "norm", "share": lambda t: 1 / (2 * t) ** 0.5}),
    ],
)  # fmt: skip
def test_siamese_is_its_algorithm(text: str, settings: dict[str, Any]) -> None:
    same(network(text), siamese_algorithm(**settings))


def test_each_sublayer_starts_at_the_next_stream() -> None:
    """k mod n, k counting attention and MLP apart, or whole blocks where both are one site."""
    scheme = parse("hyper(n=3)")
    spec = NormSpec("rms", DIM)
    firsts = [weights(Parts(scheme, site, spec))["connection.mix"][:, 0].argmax().item() for site in SITES]
    assert firsts == [0, 1, 2, 0, 1, 2]
    for site, first in zip(SITES, firsts, strict=True):
        bias = weights(Parts(parse("mhc(n=3)"), site, spec))["mapping.bias"]
        assert bias[:3].argmax().item() == bias[3:6].argmax().item() == first
    parallel = [Site(layer, "parallel", 5) for layer in range(5)]
    firsts = [weights(Parts(scheme, site, spec))["connection.mix"][:, 0].argmax().item() for site in parallel]
    assert firsts == [0, 1, 2, 0, 1]


@each("text", ["residual_dual", "siamese", OFFICIAL, "hyper", "hyper(n=2, dynamic=none)"])
def test_a_step_of_size_zero_moves_no_plain_sum(text: str) -> None:
    """h = 0 leaves every stream that is not normalised as it is; in between, plain sums move linearly in h."""
    scheme, site = parse(text), Site(1, "mlp", DEPTH)
    p = own(scheme, site)
    x = torch.randn(3, scheme.streams, DIM, generator=torch.Generator().manual_seed(3)).double()
    y, carry = read_at(scheme, x, p(), site)
    u = branch(1, "mlp")(y)
    plain = slice(1, None) if scheme.streams == 2 and "hyper" not in text else slice(None)
    still, half, whole = (write_at(scheme, x, u, p(), site, h, carry=carry)[:, plain] for h in (0.0, 0.5, 1.0))
    same(still, x[:, plain])
    same(half, (still + whole) / 2)
    assert (whole - still).abs().max() > 0.1
