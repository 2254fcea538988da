"""Every scheme's equation, written here a second time from the papers, and what the tests against them share."""

from collections.abc import Callable
from itertools import permutations
from math import pi
from typing import Any

import torch
from torch import Tensor, nn

from geonorm import Site, parse
from geonorm.norms import NormSpec
from geonorm.schemes import Parts, Scheme, read_at, write_at

DIM, DEPTH, EPS = 12, 6, 1e-6
SITES = [Site(layer, kind, DEPTH) for layer in (0, 3, 5) for kind in ("attn", "mlp")]
Branch = Callable[[Tensor], Tensor]
Equation = Callable[[Tensor, Branch, dict[str, Tensor], Site], Tensor]


def norm(x: Tensor, gain: Tensor | float = 1.0) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * gain


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def rotated(x: Tensor, u: Tensor, angle_of: Callable[[Tensor], Tensor]) -> Tensor:
    v = u - (x * u).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    length, radius = v.norm(dim=-1, keepdim=True), x.norm(dim=-1, keepdim=True)
    angle = angle_of(length / radius)
    return torch.cos(angle) * x + torch.sin(angle) * radius * v / length


def decayed(kind: str | float, alpha: float, t: int, depth: int) -> float:
    if isinstance(kind, float):
        return alpha * t ** (-kind)
    return {
        "harmonic": alpha / t,
        "sqrt": alpha / t**0.5,
        "linear": alpha * (depth - (t - 1)) / depth,
        "constant": alpha,
    }[kind]


def step_toward(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    alpha = (p["alpha.weight"] * 0.05 * DIM**0.5).abs()
    return unit(x + alpha * (unit(f(x)) - x))


def lerped(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    alpha = p["alpha.weight"] * 5
    return (x + alpha * (f(x) - x)) / (alpha**2 + (1 - alpha) ** 2).sqrt()


def beam(x: Tensor, u: Tensor, site: Site) -> Tensor:
    m = 2 * (site.layer + 1) + (site.kind == "mlp")
    return ((m - 1) / m) ** 0.5 * x + (1 / m) ** 0.5 * u


def muse(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    b = torch.sigmoid(p["gate"] / 0.3)
    u = f(norm(x, p["input.weight"])) * p.get("output.weight", 1.0)
    return (1 - b**2).clamp(min=1e-3).sqrt() * x + b * norm(u)


def sideways(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    u = f(norm(x, p["input.weight"]))
    return x + u - torch.einsum("...i,...i->...", x, u).unsqueeze(-1) / (x.norm(dim=-1, keepdim=True) ** 2 + 1e-6) * x


def hybrid(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    y = norm(x, p["stream.weight"]) if site.kind == "mlp" else x
    return y + f(y)


def two_streams(x: Tensor, u: Tensor, p: dict[str, Tensor]) -> Tensor:
    return torch.stack((norm(x[..., 0, :] + u, p["stream.weight"]), x[..., 1, :] + u), dim=-2)


def connected(x: Tensor, f: Branch, p: dict[str, Tensor]) -> Tensor:
    """Hyper-connections as sums over streams, one product at a time."""
    n, c = x.shape[-2], {name.removeprefix("connection."): value for name, value in p.items()}
    normed = [norm(x[..., i, :]) for i in range(n)]

    def mix(i: int, j: int) -> Tensor:
        if "mix_weight" not in c:
            return c["mix"][i, j]
        moved = torch.tanh((normed[i] * c["mix_weight"][:, j]).sum(-1, keepdim=True))
        return c["mix"][i, j] + c["mix_scale"] * moved

    def share(j: int) -> Tensor:
        if "share_weight" not in c:
            return c["share"][j]
        moved = torch.tanh((normed[j] * c["share_weight"]).sum(-1, keepdim=True))
        return c["share"][j] + c["share_scale"] * moved

    u = f(norm(sum(mix(i, 0) * x[..., i, :] for i in range(n)), p["input.weight"]))
    after = []
    for j in range(n):
        after.append(sum(mix(i, j + 1) * x[..., i, :] for i in range(n)) + share(j) * u)
    return torch.stack(after, dim=-2)


def scaled(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    """nanochat: the stream before a block is a x + b x0; behind the middle one it is kept."""
    now, start, middle = x.unbind(-2)
    if site.kind == "attn":
        now = p["scale"] * now + p["again"] * start
    after = now + f(norm(now, p["input.weight"]))
    return torch.stack((after, start, after if site.layer <= site.depth // 2 else middle), dim=-2)


def lanes(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    """modded-nanogpt: attention reads lane 0, the MLP lane 1; in the first 3 of 6 blocks both lanes receive alike."""
    u, w = f(norm(x[..., int(site.kind == "mlp"), :], p["input.weight"])), p["weights"]
    assert len(w) == (1 if site.layer < 3 else 2)
    return torch.stack([p["scale"] * x[..., j, :] + w[j % len(w)] * u for j in (0, 1)], dim=-2)


def doubly(scores: Tensor, iterations: int = 20) -> Tensor:
    """Sinkhorn and Knopp: exp, then columns and rows divided by their sums in turn."""
    m = scores.exp()
    for _ in range(iterations):
        m = m / m.sum(-2, keepdim=True)
        m = m / m.sum(-1, keepdim=True)
    return m


def constrained(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site, mix: str = "sinkhorn") -> Tensor:
    """mHC, Eq. 5 to 9, one product at a time."""
    n = x.shape[-2]
    w, b, s = (p[f"mapping.{name}"] for name in ("weight", "bias", "scale"))
    together = norm(x.flatten(-2))

    def scores(first: int, last: int, scale: int) -> Tensor:
        return s[scale] * (together @ w[first:last].T) + b[first:last]

    reading, writing = scores(0, n, 0).sigmoid(), 2 * scores(n, 2 * n, 1).sigmoid()
    if mix == "sinkhorn":
        m = doubly(scores(2 * n, len(b), 2).unflatten(-1, (n, n)))
    elif mix == "permutation":
        shares = scores(2 * n, len(b), 2).softmax(-1)
        m = sum(
            shares[..., k, None, None] * torch.eye(n, dtype=x.dtype)[list(order)]
            for k, order in enumerate(permutations(range(n)))
        )
    else:
        m = torch.eye(n, dtype=x.dtype)
    u = f(norm(sum(reading[..., i, None] * x[..., i, :] for i in range(n)), p["input.weight"]))
    return torch.stack(
        [sum(m[..., i, j, None] * x[..., j, :] for j in range(n)) + writing[..., i, None] * u for i in range(n)], dim=-2
    )


def gated(x: Tensor, f: Branch, p: dict[str, Tensor]) -> Tensor:
    """Qwen4-Exp's gated residual, one stream at a time."""
    n, dim = x.shape[-2:]
    normed = [norm(x[..., k, :], p["reader.gains"][k]) for k in range(n)]
    together = torch.cat(normed, -1) / n
    inner = together @ p["reader.down"].T
    gates = torch.sigmoid((inner * torch.sigmoid(inner)) @ p["reader.up"].T)
    u = f(sum(gates[..., k * dim : (k + 1) * dim] * normed[k] for k in range(n)) / n)
    weights = [2 / (1 + torch.exp(-(together * w).sum(-1, keepdim=True))) for w in p["reader.share"]]
    return torch.stack([x[..., k, :] + weights[k] * u for k in range(n)], dim=-2)


def mean_by_attention(sources: list[Tensor], p: dict[str, Tensor]) -> Tensor:
    """Attention residuals, Eq. 2 and 3: softmax over the sources of <w, RMSNorm(v_i)>, and their mean by it."""
    scores = [(p["recall.query"] * norm(v, p["recall.key.weight"])).sum(-1, keepdim=True).exp() for v in sources]
    return sum(s * v for s, v in zip(scores, sources, strict=True)) / sum(scores)


def from_history(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    """Eq. 5 and 6: 12 sub-layers in 8 blocks, of two and one in turn; the first of a block sees the blocks before it,
    the first of all what there is, which is the embedding."""
    number = 2 * site.layer + (site.kind == "mlp")
    block = 1 + 2 * (number // 3) + (number % 3 == 2)
    slots = list(x.unbind(-2))
    y = mean_by_attention(slots[: block + (number % 3 == 1)], p) if number else sum(slots)
    u = f(norm(y, p["input.weight"]))
    return torch.stack([v + u if i == block else v for i, v in enumerate(slots)], dim=-2)


def turned_by_a_gate(x: Tensor, f: Branch, p: dict[str, Tensor], site: Site) -> Tensor:
    """NAG, Eq. 3 to 15: r = sqrt(d) x/|x|, rho = |x|/sqrt(d), x' = rho r + rho a m sqrt(d) v/|v|."""
    r, rho = norm(x), x.norm(dim=-1, keepdim=True) / DIM**0.5
    u = f(r)
    u = u - u.mean(-1, keepdim=True)
    v = u - (u * x).sum(-1, keepdim=True) / (x * x).sum(-1, keepdim=True) * x
    shares = p["modulator.share"].exp() / p["modulator.share"].exp().sum()
    m = torch.zeros_like(rho)
    for share, w, b in zip(shares, p["modulator.weight"], p["modulator.bias"], strict=True):
        m = m + share / (1 + torch.exp(-(r * w).sum(-1, keepdim=True) - b))
    return x + rho * p["step"] * m * norm(v)


# x' of one sub-layer f; p holds the scheme's parameters by name. t = l + 1, L = depth.
EQUATIONS: dict[str, Equation] = {
    "pre": lambda x, f, p, s: x + f(norm(x, p["input.weight"])),
    "post": lambda x, f, p, s: norm(x + f(x), p["stream.weight"]),
    "peri": lambda x, f, p, s: x + norm(f(norm(x, p["input.weight"])), p["output.weight"]),
    "olmo2": lambda x, f, p, s: x + norm(f(x), p["output.weight"]),
    "sandwich": lambda x, f, p, s: x + norm(f(norm(x, p["input.weight"])), p["output.weight"]),
    "deepnorm": lambda x, f, p, s: norm((s.sublayers * s.depth) ** 0.25 * x + f(x), p["stream.weight"]),
    "keel": lambda x, f, p, s: norm(s.sublayers * s.depth * x + f(norm(x, p["input.weight"])), p["stream.weight"]),
    "lns": lambda x, f, p, s: x + f(norm(x, p["input.weight"]) / (s.layer + 1) ** 0.5),
    "sqrt": lambda x, f, p, s: norm(x + f(x) / (s.layer + 1) ** 0.5, p["stream.weight"]),
    "mix": lambda x, f, p, s: EQUATIONS["post" if s.layer < 1 else "pre"](x, f, p, s),  # floor(6 / 4) = 1
    "first": lambda x, f, p, s: EQUATIONS["post" if s.layer < 1 else "pre"](x, f, p, s),
    "per_kind": lambda x, f, p, s: EQUATIONS["pre" if s.kind == "attn" else "post"](x, f, p, s),
    "hybrid": hybrid,
    "rezero": lambda x, f, p, s: x + p["alpha.weight"] * f(x),
    "layerscale": lambda x, f, p, s: x + p["scale.weight"] * f(norm(x, p["input.weight"])),
    "orthogonal": sideways,
    "norm_preserving": lambda x, f, p, s: (
        ((s.depth - 1) / s.depth) ** 0.5 * x + f(norm(x, p["input.weight"])) / s.depth**0.5
    ),
    "beam": lambda x, f, p, s: beam(x, norm(f(norm(x, p["input.weight"])), p["output.weight"]), s),
    "muse": muse,
    "affine": lambda x, f, p, s: (
        (x + p["bias"]) * p["scale"] + (f(norm(x, p["input.weight"])) + p["update_bias"]) * p["update_scale"]
    ),
    "gated_streams": lambda x, f, p, s: gated(x, f, p),
    "lanes": lanes,
    "geonorm": lambda x, f, p, s: rotated(x, f(x), lambda r: r.clamp(max=pi / 4) / (s.layer + 1)),
    "gpas": lambda x, f, p, s: (x + f(norm(x, p["input.weight"]))) * (1 - p["gate"] / (1 + torch.exp(-p["gate"]))),
    "attnres": from_history,
    "mhc": constrained,
    "prores": lambda x, f, p, s: x,  # no step was taken yet: tests/schemes/test_prores.py
    "lambdas": scaled,
    "nag": turned_by_a_gate,
    "ngpt": step_toward,
    "angpt": lerped,
    "residual_dual": lambda x, f, p, s: torch.stack(
        (norm(x[..., 0, :] + f(x[..., 0, :]), p["stream.weight"]), x[..., 1, :] + f(x[..., 0, :])), dim=-2
    ),
    "siamese": lambda x, f, p, s: two_streams(x, f(x[..., 0, :] + norm(x[..., 1, :], p["norm.weight"])), p),
    "hyper": lambda x, f, p, s: connected(x, f, p),
}


class Bend(nn.Module):
    """A branch with a matrix and a nonlinearity; returns what it is told to beside its update."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        weight = torch.randn(DIM, DIM, generator=generator, dtype=torch.float64) * scale * DIM**-0.5
        self.weight = nn.Parameter(weight)

    def forward(self, y: Tensor, shift: float = 0.0, extra: Any = None) -> Any:
        u = torch.tanh(y @ self.weight) + 0.3 * y.roll(1, -1) + shift
        return u if extra is None else (u, extra)


def stream(scheme: Scheme, seed: int = 0, radius: float = 2.0) -> Tensor:
    shape = (3, 5, DIM) if scheme.streams == 1 else (3, 5, scheme.streams, DIM)
    return radius * torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def perturbed(own: nn.Module, seed: int = 1) -> nn.Module:
    """fp64, with every parameter off its initial value, which is exact."""
    for module in own.double().modules():
        if isinstance(module, Parts):
            module.reset_parameters()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter += 0.2 * (parameter.mean() or 0.5) * torch.randn(parameter.shape, generator=generator)
    return own


def placed(text: str, site: Site) -> tuple[Scheme, nn.Module]:
    scheme = parse(text).resolve(site)
    return scheme, perturbed(Parts(scheme, site, NormSpec("rms", DIM, eps=EPS)))


def written(scheme: Scheme, own: nn.Module, site: Site, x: Tensor, branch: Branch, **h: Any) -> Tensor:
    y, carry = read_at(scheme, x, own(), site)
    return write_at(scheme, x, branch(y), own(), site, **h, carry=carry)


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
