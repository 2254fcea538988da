"""Stacks of x-transformers, rebuilt: its attention and MLP kept, every norm and residual ours.

Same outputs and same gradients for every parameter, in fp64. The `Decoder` there is attention and MLP in turn, with
three slots for norms in each layer: before the branch, behind it, behind the residual.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Decoder, DecoderConfig, Residual, Site
from geonorm.norms import NormSpec
from geonorm.residual import StreamEnd
from geonorm.schemes import parse

from ..rows import each

x_transformers = pytest.importorskip("x_transformers")

pytestmark = pytest.mark.usefixtures("stay_wide")

DIM, DEPTH, TOKENS = 16, 3, 5
EPS = {"rms": 1e-30, "layer": 1e-5, "dyt": 0.0}  # its RMSNorm divides by max(|x|, 1e-12)
STACKS: dict[str, tuple[str, dict[str, Any]]] = {
    "pre": ("pre(entry=embedding)", {}),
    "post": ("post(entry=embedding)", {"pre_norm": False}),
    "sandwich": ("sandwich", {"sandwich_norm": True}),
    "peri": ("peri(entry=embedding)", {"sandwich_norm": True}),
    "deepnorm": ("deepnorm(entry=embedding)", {"pre_norm": False, "scale_residual_constant": (2 * DEPTH) ** 0.25}),
    "keel": ("keel(entry=embedding)", {"pre_and_post_norm": True, "scale_residual_constant": 2.0 * DEPTH}),
    "layerscale": ("layerscale(entry=embedding)", {"use_layerscale": True, "layerscale_init_value": 0.1}),
    "orthogonal": ("orthogonal(entry=embedding, eps=1e-15)", {"orthog_residual": True}),
    "dyt": ("pre(entry=embedding)", {"use_dynamic_tanh": True, "dynamic_tanh_init_alpha": 0.5}),
}


class Only(nn.Module):
    """A branch of theirs with our signature: their LayerScale wraps it, and attention may hand back more."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block.fn if type(block).__name__ == "LayerScale" else block

    def forward(self, y: Tensor) -> Tensor:
        out = self.block(y)
        return out[0] if isinstance(out, tuple) else out


def tie(own: nn.Module, theirs: nn.Module, pairs: list[tuple[nn.Parameter, nn.Parameter]]) -> None:
    """Copies their weights into ours and remembers which is which. Their gains and slopes are stored less an offset."""
    unit = float(getattr(theirs, "unit_offset", getattr(theirs, "gamma_offset", 0.0)))
    slope = float(getattr(theirs, "pre_tanh_scale_offset", 0.0))
    known = {
        "g": ("weight", unit),
        "gamma": ("weight", unit),
        "beta": ("bias", 0.0),
        "pre_tanh_scale": ("slope", slope),
    }
    for key, value in theirs.named_parameters(recurse=False):
        name, offset = known[key]
        ours = own.get_parameter(name)
        ours.data.copy_(value.data + offset)
        pairs.append((ours, value))


def rebuild(stack: nn.Module, scheme: str, norm: str) -> tuple[nn.Sequential, list[tuple[nn.Parameter, nn.Parameter]]]:
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
    sites: list[nn.Module] = []
    for n, (norms, block, _) in enumerate(stack.layers):
        site = Site(n // 2, "mlp" if n % 2 else "attn", DEPTH)
        residual = Residual(Only(block), scheme, site, DIM, norm, eps=EPS[norm]).double()
        used = [each for each in norms if each is not None]
        for (name, own), theirs in zip([k for k in residual.own.items() if k[0] != "scale"], used, strict=True):
            assert name in ("input", "output", "stream")
            tie(own, theirs, pairs)
        if "scale" in residual.own:
            tie(residual.own["scale"], block, pairs)
        sites.append(residual)
    end = StreamEnd(parse(scheme), Site(DEPTH - 1, "exit", DEPTH), NormSpec(norm, DIM, True, EPS[norm])).double()
    for own in end.own.values():
        tie(own, stack.final_norm, pairs)
    return nn.Sequential(*sites, end), pairs


def answers(agree: Callable[..., None], theirs: nn.Module, ours: Callable[[Tensor], Tensor], shape: Any) -> None:
    """Same outputs, and same gradients of the input; leaves those of the parameters behind."""
    a, b = (torch.sin(torch.arange(160.0).double()).view(shape).requires_grad_() for _ in range(2))
    out, mine = theirs(a), ours(b)
    agree(mine, out, "output")
    weights = torch.cos(torch.arange(160.0).double()).view(shape)
    (out * weights).sum().backward()
    (mine * weights).sum().backward()
    agree(b.grad, a.grad, "gradient of the input")


CASES = [(stack, norm) for stack in STACKS for norm in (("dyt",) if stack == "dyt" else ("rms", "layer"))]


@each("stack, norm", CASES)
def test_the_rebuilt_stack_is_the_stack(stack: str, norm: str, agree: Callable[..., None]) -> None:
    scheme, options = STACKS[stack]
    torch.manual_seed(0)
    theirs = x_transformers.Decoder(
        dim=DIM, depth=DEPTH, heads=2, attn_dim_head=8, use_rmsnorm=norm == "rms", **options
    )
    theirs = theirs.double()
    for p in theirs.parameters():
        nn.init.normal_(p, 0.0, 0.5)
    kept = copy.deepcopy(theirs)
    ours, pairs = rebuild(kept, scheme, norm)
    # its orthogonal residual projects over the whole sentence, so there is one token to a sentence
    shape = (2 * TOKENS, 1, DIM) if stack == "orthogonal" else (2, TOKENS, DIM)
    answers(agree, theirs, ours, shape)
    own = {id(theirs_copy): ours_own for ours_own, theirs_copy in pairs}
    for (name, p), (_, q) in zip(theirs.named_parameters(), kept.named_parameters(), strict=True):
        grad = own.get(id(q), q).grad
        if stack == "orthogonal" and name.endswith(("to_q.weight", "to_k.weight")):
            assert not p.grad.any() and not grad.any()  # one token attends to itself, whatever its query
        else:
            agree(grad if p.dim() else grad.view(()), p.grad, f"gradient of {name}")  # scalars are (1,) here


PLACES = {
    "to_q": "attn.branch.q", "to_k": "attn.branch.k", "to_v": "attn.branch.v", "to_out": "attn.branch.o",
    "ff.0.0": "mlp.branch.up", "ff.2": "mlp.branch.down",
}  # fmt: skip


def test_value_residual_is_theirs(agree: Callable[..., None]) -> None:
    """`model.values first` at its initial values, one half each, is `add_value_residual` without its learned mix."""
    torch.manual_seed(0)
    options = {"add_value_residual": True, "learned_value_residual_mix": False, "ff_no_bias": True}
    theirs = x_transformers.Decoder(
        dim=DIM, depth=DEPTH, heads=2, attn_dim_head=8, use_rmsnorm=True, **options
    ).double()
    for p in theirs.parameters():
        nn.init.normal_(p, 0.0, 0.5)
    ours = Decoder(
        DecoderConfig(
            "pre(entry=embedding)", layers=DEPTH, width=DIM, heads=2, hidden=4 * DIM, mlp="gelu", values="first",
            positions="none", eps=EPS["rms"],
        )
    ).double()  # fmt: skip
    pairs: list[tuple[nn.Parameter, nn.Parameter]] = []
    for n, (norms, block, _) in enumerate(theirs.layers):
        home = ours.blocks[n // 2]
        tie((home.mlp if n % 2 else home.attn).own["input"], norms[0], pairs)
        for name, p in block.named_parameters():
            own = home.get_parameter(f"{PLACES[name.removesuffix('.weight')]}.weight")
            own.data.copy_(p.data)
            pairs.append((own, p))
    tie(ours.exit.own["norm"], theirs.final_norm, pairs)
    answers(agree, theirs, lambda x: ours.exit(ours.run_blocks(ours.entry(x), None)), (2, TOKENS, DIM))
    for own, p in pairs:
        agree(own.grad, p.grad, "gradient of a weight")
    assert len(pairs) == len(list(theirs.parameters()))
