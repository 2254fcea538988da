"""The drop-in module: dtypes, what it stores, and that it trains under every scheme."""

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.utils import prune

from geonorm import Residual, Site, names
from geonorm.errors import ConfigError
from geonorm.schemes import GeoNorm, Peri

from .rows import each
from .schemes.test_single_stream import VARIANTS as SINGLE_STREAM

DIM, DEPTH = 8, 4
VARIANTS = [
    *names(),
    "geonorm(learn=gain)",
    "geonorm(learn=affine)",
    "geonorm(learn=step)",
    "geonorm(input=norm, update=norm)",
    "mix(a=geonorm(learn=step), b=ngpt, share=0.5)",
    *SINGLE_STREAM,
]
STREAMS = (torch.float64, torch.float32, torch.bfloat16)


class Watched(nn.Linear):
    """A branch that remembers what it was given."""

    def __init__(self) -> None:
        super().__init__(DIM, DIM)

    def forward(self, y: Tensor, **kwargs: Any) -> Tensor:
        self.seen, self.kwargs = y, kwargs
        return super().forward(y)


def residual(scheme: str, layer: int = 2, kind: str = "attn", **kwargs: Any) -> Residual:
    torch.manual_seed(0)
    return Residual(Watched(), scheme, Site(layer, kind, DEPTH), DIM, **kwargs)


def stream(module: Residual, dtype: torch.dtype = torch.float32) -> Tensor:
    shape = (2, 3, DIM) if module.scheme.streams == 1 else (2, 3, module.scheme.streams, DIM)
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@each("branch", [torch.float32, torch.bfloat16])
@each("dtype", STREAMS)
@each("scheme", VARIANTS)
def test_stream_keeps_its_dtype_and_the_branch_reads_its_own(
    scheme: str, dtype: torch.dtype, branch: torch.dtype
) -> None:
    module = residual(scheme)
    module.branch.to(branch)
    out = module(stream(module, dtype))
    assert out.dtype == dtype and module.branch.seen.dtype == branch
    assert out.shape == stream(module).shape
    out.float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in module.parameters())


def test_a_branch_in_half_precision_may_have_parts_in_fp32() -> None:
    branch = nn.Sequential(nn.Linear(DIM, DIM).bfloat16())
    branch.router = nn.Parameter(torch.ones(DIM))
    Residual(branch, "pre", Site(0, "mlp", 1), DIM)(torch.randn(2, DIM))


@each("scheme", names())
def test_a_bf16_branch_leaves_an_fp32_stream_as_precise_as_its_update(scheme: str) -> None:
    """Only the update is rounded to bf16: where the branch gives 0, nothing at all is."""
    module = residual(scheme)
    module.branch.bfloat16()
    exact = residual(scheme)
    for m in (module, exact):
        nn.init.zeros_(m.branch.weight)
        nn.init.zeros_(m.branch.bias)
    assert torch.equal(module(stream(module)), exact(stream(exact)))


@each("scheme", names())
def test_autocast(scheme: str) -> None:
    module = residual(scheme)
    with torch.autocast("cpu", torch.bfloat16):
        out = module(stream(module))
    assert out.dtype == torch.float32 and module.branch.seen.dtype == torch.bfloat16
    torch.testing.assert_close(out, module(stream(module)), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("meta", [False, True])
def test_a_state_dict_does_not_move_a_residual_to_another_block(meta: bool, assign: bool) -> None:
    source = residual("geonorm", layer=0)
    state = source.state_dict()
    assert not source.layer.is_floating_point(), "a cast must not touch it"
    with torch.device("meta" if meta else "cpu"):
        target = nn.Sequential(Residual(nn.Linear(DIM, DIM), "geonorm", Site(3, "attn", DEPTH), DIM))
    if meta and not assign:
        target.to_empty(device="cpu")
        target[0].layer.fill_(77)  # whatever memory held
    target.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()}, assign=assign)
    assert target[0].layer.item() == 3 and state["layer"].item() == 0 == source.layer.item()
    assert torch.equal(target[0].branch.weight, source.branch.weight)
    x = stream(source)
    expected = residual("geonorm", layer=3)(x)
    assert torch.equal(target(x), expected) and not torch.allclose(expected, source(x))
    with torch.no_grad():
        compiled = torch.compile(target, backend="eager")  # reads the buffer
        torch.testing.assert_close(compiled(x), expected)


@each("scheme", VARIANTS)
def test_survives_to_empty_and_reset(scheme: str) -> None:
    with torch.device("meta"):
        module = Residual(nn.Linear(DIM, DIM), scheme, Site(2, "attn", DEPTH), DIM)
    assert all(t.is_meta for t in (*module.parameters(), *module.buffers()))
    module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data.fill_(77)  # whatever memory held
    module.reset_parameters()
    fresh = residual(scheme)
    module.branch.load_state_dict(fresh.branch.state_dict())
    assert module.state_dict().keys() == fresh.state_dict().keys()
    for key, value in fresh.state_dict().items():
        assert torch.equal(module.state_dict()[key], value), key
    assert torch.equal(module(stream(module)), fresh(stream(fresh)))


def test_norm_arguments_reach_the_scheme() -> None:
    module = residual("peri", norm="layer", gains=False, eps=0.5)
    assert {(type(m).__name__, m.eps, m.weight) for m in module.own.values()} == {("LayerNorm", 0.5, None)}


@each("layer, kind, depth, says", [
        (12, "mlp", 12, "0 to 11"), (-1, "mlp", 12, "0 to 11"), (0, "mlp", 0, "at least 1"), (0, "ffn", 2, "valid"),
        ("2", "mlp", 3, "counted from 0, got '2'"), (None, "mlp", 3, "got None"), (0, 3, 2, "valid"),
        (0, "mlp", 2.5, "got 2.5"), (0, "cross", 2, "sublayers=3"),
    ])  # fmt: skip
def test_a_site_that_does_not_exist(layer: Any, kind: Any, depth: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        Site(layer, kind, depth)
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="0 to 11"):
        Site(np.int64(12), "mlp", 12)
    with pytest.raises(ConfigError, match="kind='entry'"):
        Residual(nn.Identity(), "pre", Site(0, "entry", 2), 4)
    assert Site(12.5, "mlp", 12).t == 13.5  # simulated time goes on


@pytest.mark.filterwarnings("ignore:.*autograd.function.Function.*:DeprecationWarning")
def test_all_layers_share_one_compiled_graph() -> None:
    compiled = torch.compile(Residual.forward, fullgraph=True, backend="aot_eager")
    modules = [Residual(nn.Linear(DIM, DIM), "geonorm", Site(layer, "attn", DEPTH), DIM) for layer in range(3)]
    x = torch.randn(2, 3, DIM)
    torch.testing.assert_close(compiled(modules[0], x), modules[0](x))
    with torch.compiler.set_stance("fail_on_recompile"):
        for module in modules[1:]:
            torch.testing.assert_close(compiled(module, x), module(x))
    assert torch.equal(modules[0](x, then=torch.compile(modules[1], backend="eager"))[0], modules[0](x))


@each("scheme, x, says", [
        ("hyper", torch.randn(3, 4), "carries 4 streams: x must be"),
        ("residual_dual", torch.randn(3, 4), "carries 2 streams: x must be"),
        ("geonorm", torch.ones(3, 5), r"the stream must be floats \(\.\.\., 4\), got \(3, 5\)"),
        ("geonorm", torch.ones(3, 4, dtype=torch.int64), r"the stream must be floats \(\.\.\., 4\), got \(3, 4\)"),
    ])  # fmt: skip
def test_a_stream_that_does_not_fit_is_refused_in_one_line(scheme: str, x: Tensor, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        Residual(nn.Identity(), scheme, Site(0, "mlp", 2), 4)(x)
    assert "\n" not in str(error.value)


JOINED = [
    *VARIANTS,
    *(f"per_kind(attn=geonorm, mlp={mlp})" for mlp in ("peri", "hybrid", "lns", "geonorm(input=norm)")),
]
JOINED += ["per_kind(attn=pre, mlp=geonorm)", "per_kind(attn=geonorm(after=norm), mlp=pre)"]


@each("dtype", [torch.float32, torch.bfloat16])
@each("scheme", JOINED)
def test_joined_residuals_equal_one_after_the_other(scheme: str, dtype: torch.dtype) -> None:
    """Bit for bit, in both directions, with branches in the stream's dtype or narrower."""
    found = []
    for joined in (False, True):
        first, second = residual(scheme, kind="attn"), residual(scheme, kind="mlp")
        first.branch.to(dtype), second.branch.to(dtype)
        x = stream(first).requires_grad_()
        if joined:
            middle, reading = first(x, then=second)
            out = second(middle, reading=reading)
        else:
            out = second(first(x))
        out.square().sum().backward()
        found.append([out, x.grad, *(p.grad for m in (first, second) for p in m.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@dataclass(frozen=True)
class Doubled(GeoNorm):
    """Has an input like its parent, but reads otherwise."""

    def read(self, x: Tensor, p: Any, site: Site) -> Tensor:
        return 2 * super().read(x, p, site)


@dataclass(frozen=True)
class Halved(GeoNorm):
    """Another write than its parent's, whose angles do not describe it."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        return super().write(x, u / 2, p, site, h)


class Still:
    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        return x


@dataclass(frozen=True)
class Mixed(Still, GeoNorm):
    pass


def test_a_read_of_its_own_is_asked_when_residuals_are_joined() -> None:
    for rule in (Doubled(), Doubled(input="norm")):
        first = Residual(nn.Identity(), "geonorm", Site(0, "attn", 1), DIM)
        second = Residual(nn.Identity(), rule, Site(0, "mlp", 1), DIM)
        middle, (y, carry) = first(torch.randn(2, DIM), then=second)
        expected = middle if rule.input == "raw" else second.own["input"](middle)
        assert torch.equal(y, 2 * expected) and carry is None


def test_a_write_of_its_own_is_not_replaced_by_the_angles_of_its_parent() -> None:
    x = torch.randn(2, DIM)
    first, half = (Residual(nn.Tanh(), rule, Site(0, "attn", 1), DIM) for rule in (GeoNorm(), Halved()))
    expected = first.scheme.write(x, x.tanh() / 2, first.own(), first.site(x))
    middle, (y, _) = half(x, then=first)
    for found in (half(x), middle, y):
        torch.testing.assert_close(found, expected)


def test_a_write_that_is_mixed_in_is_the_one_that_trains() -> None:
    x = torch.randn(2, DIM)
    still = Residual(nn.Tanh(), Mixed(), Site(0, "attn", 1), DIM)
    assert torch.equal(still(x), x) and still.scheme.angles(still.own(), still.place()) is None
    other = type("StillPeri", (Still, Peri), {})()
    assert other.offer(None, still.place()) is None and Peri().offer(None, still.place()) is not None


def test_a_norm_of_the_update_sees_it_in_the_precision_of_the_stream() -> None:
    x = torch.randn(2, 5, DIM)
    residual = Residual(nn.Linear(DIM, DIM, dtype=torch.bfloat16), "geonorm(update=norm)", Site(0, "mlp", 1), DIM)
    expected = residual.scheme.write(x, residual.branch(x.bfloat16()).float(), residual.own(), residual.place())
    torch.testing.assert_close(residual(x), expected)


def test_a_joined_residual_hands_on_what_its_branch_returns_besides() -> None:
    class Pair(nn.Module):
        def forward(self, y: Tensor) -> tuple[Tensor, str]:
            return y, "weights"

    first = Residual(Pair(), "geonorm", Site(0, "attn", 1), DIM)
    second = Residual(nn.Identity(), "geonorm", Site(0, "mlp", 1), DIM)
    x = torch.randn(2, DIM)
    middle, (y, carry), rest = first(x, then=second)
    assert torch.equal(middle, first(x)[0]) and torch.equal(y, middle) and carry is None and rest == "weights"


def test_the_branch_reads_the_dtype_of_the_modules_that_it_has_now() -> None:
    """A matrix that was replaced or pruned left its dtype behind, and stayed in memory."""
    residual, x = Residual(nn.Sequential(nn.Linear(8, 8)), "pre", Site(0, "mlp", 2), 8), torch.randn(2, 8)
    before = weakref.ref(residual.branch[0])  # type: ignore[index]
    residual.branch[0] = nn.Linear(8, 8)  # type: ignore[index,operator]
    gc.collect()
    assert before() is None
    assert residual.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    residual = Residual(checkpoint_wrapper(nn.Linear(8, 8)), "pre", Site(0, "mlp", 2), 8)  # hides itself in names
    assert residual.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    residual = Residual(nn.Sequential(nn.Linear(8, 8)), "pre", Site(0, "mlp", 2), 8)
    prune.random_unstructured(residual.float().branch[0], "weight", 0.5)  # type: ignore[index]
    assert residual.to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
