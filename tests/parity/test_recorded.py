"""What the official repositories compute, as recorded numbers that our schemes reproduce.

Their code was run once, outside this project, on inputs and weights made by a formula; recorded.json keeps a few values
of the results, with repository, commit and date. Their sub-layers were replaced by the two toys below where a block
lets one do so, so that what is compared is the residual and nothing else. docs/parity.md says what was changed in their
code to run it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Residual, Site, names, parse
from geonorm.models import Decoder, DecoderConfig
from geonorm.norms import NormSpec
from geonorm.residual import StreamEnd
from geonorm.schemes import advance

from ..rows import each

DIM, TOKENS, HIDDEN = 8, 3, 12
RECORD = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))


def wave(*shape: int, phase: float = 0.0) -> Tensor:
    """Numbers in [-1, 1] that look random and need no generator: sin(phase + k + k^2 / 10), k = 0, 1, ..."""
    k = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(phase + k + k * k / 10).view(shape)


class Mixer(nn.Module):
    """In the place of attention: tanh(W m), m the mean of the tokens so far."""

    def __init__(self, phase: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(wave(DIM, DIM, phase=phase))

    def forward(self, y: Tensor) -> Tensor:
        count = torch.arange(1, y.shape[-2] + 1, dtype=y.dtype).unsqueeze(-1)
        return torch.tanh(y.cumsum(-2) / count @ self.weight.T)


class Maps(nn.Module):
    """In the place of the MLP: V tanh(W y)."""

    def __init__(self, phase: float) -> None:
        super().__init__()
        self.first = nn.Parameter(wave(HIDDEN, DIM, phase=phase))
        self.second = nn.Parameter(wave(DIM, HIDDEN, phase=phase + 0.5))

    def forward(self, y: Tensor) -> Tensor:
        return torch.tanh(y @ self.first.T) @ self.second.T


def fill(own: nn.Module, phase: float) -> None:
    """Every parameter of a site: its initial value plus 0.3 wave, a phase each in the order of their names."""
    with torch.no_grad():
        for n, (_, p) in enumerate(sorted(own.named_parameters())):
            p.add_(0.3 * wave(*p.shape, phase=phase + 0.1 * n))


class Tower(nn.Module):
    """The first `blocks` of `depth` toy blocks under a scheme, between its ends, after `done` steps of training."""

    def __init__(
        self, scheme: str, norm: str, blocks: int, depth: int, shared: bool = False, eps: float = 1e-5, done: int = 0
    ) -> None:
        super().__init__()
        spec = NormSpec(norm, DIM, True, eps)
        whole = parse(scheme)
        self.entry = StreamEnd(whole, Site(0, "entry", depth), spec).double()
        self.exit = StreamEnd(whole, Site(depth - 1, "exit", depth), spec).double()
        fill(self.exit, 40.0)
        self.sites = nn.ModuleList()
        for n in range(2 * blocks):
            layer, kind = divmod(n, 2)
            branch = Maps(20.0 + n) if kind else Mixer(20.0 + n)
            residual = Residual(
                branch, whole, Site(layer, "mlp" if kind else "attn", depth), DIM, norm, eps=eps
            ).double()
            fill(residual.own, float(layer if shared else n))
            self.sites.append(residual)
        for _ in range(done):
            advance(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entry(x)
        for site in self.sites:
            x = site(x)
        return self.exit(x)


def stream(alike: bool = False) -> Tensor:
    """One sentence of TOKENS tokens, (1, TOKENS, DIM); alike: all the same."""
    x = wave(1, 1, DIM, phase=3.0).repeat(1, TOKENS, 1) if alike else wave(1, TOKENS, DIM, phase=3.0)
    return x.requires_grad_()


def probe(x: Tensor, out: Tensor) -> dict[str, Tensor]:
    """What is recorded: the last token that leaves, and the gradient of a weighted sum of all tokens at the first."""
    (grad,) = torch.autograd.grad((out * wave(*out.shape, phase=5.0)).sum(), x)
    return {"output": out[0, -1].detach(), "gradient": grad[0, 0]}


def decoder(config: dict[str, Any]) -> Decoder:
    """A model of ours with all weights by formula, under the constraint of its scheme."""
    model = Decoder(DecoderConfig(**config)).double()
    weights = {id(weight) for _, weight, _, _ in model.weights()}
    with torch.no_grad():
        for n, (_, p) in enumerate(sorted(model.named_parameters())):
            p.copy_((0.0 if id(p) in weights else p) + 0.3 * wave(*p.shape, phase=float(n)))
    model.constrain()
    return model


def through(model: Decoder, x: Tensor) -> Tensor:
    """From the embedding of one sentence to its logits, without rotary positions: cos 1, sin 0."""
    half = model.config.head_dim // 2
    still = (torch.ones(TOKENS, half, dtype=torch.float64), torch.zeros(TOKENS, half, dtype=torch.float64))
    x = model.entry(x)
    for block in model.blocks:
        x = block(x, positions=still)
    logits: Tensor = model.head(model.exit(x))
    return logits if model.logits_slot is None else model.logits_slot(logits)


def compare(case: dict[str, Any], found: dict[str, Tensor], agree: Callable[..., None]) -> None:
    for key, value in found.items():
        theirs = torch.tensor(case[key], dtype=torch.float64)
        agree(value, theirs, f"{key} of {case['repository']}", limit=case["limit"])


@each("case", RECORD["towers"])
def test_the_blocks_of_the_repository(case: dict[str, Any], agree: Callable[..., None]) -> None:
    x = stream(case["alike"])
    compare(case, probe(x, Tower(case["scheme"], **case["tower"])(x)), agree)


@each("case", RECORD["decoders"])
def test_the_model_of_the_repository(case: dict[str, Any], agree: Callable[..., None]) -> None:
    x = stream()
    compare(case, probe(x, through(decoder({"scheme": case["scheme"], **case["config"]}), x)), agree)


@each("case", RECORD["inits"])
def test_the_initial_values_of_the_repository(case: dict[str, Any]) -> None:
    """Standard deviations by role, as multiples of what the repository draws without the scheme."""
    depth = case["depth"]
    for role, ratio in case["ratios"].items():
        site = Site(0, "attn" if role in ("q", "k", "v", "o") else "mlp", depth)
        ours = parse(case["scheme"]).resolve(site).init_std(role, DIM, DIM, site, 1.0)
        assert ours == pytest.approx(ratio, rel=1e-6), role


def test_the_page_lists_every_scheme_and_every_repository() -> None:
    page = (Path(__file__).parents[2] / "docs" / "parity.md").read_text(encoding="utf-8")
    for name in names():
        assert f"`{name}" in page, name
    for case in [*RECORD["towers"], *RECORD["decoders"], *RECORD["inits"], *RECORD["models"]]:
        assert f"{case['repository']} @ {case['commit']}" in page
