"""Derivatives of every order through whole decoders and their parts, against the textbook under autograd in fp64."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, vmap

from geonorm import Decoder, DecoderConfig, Residual, Site, names

from ..rows import each

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.*:DeprecationWarning",  # torch's own compiler makes an instance
    "ignore:There is a performance drop:UserWarning",
)
DIM, DEPTH = 6, 4
VARIANTS = [
    "geonorm(learn=affine, alpha=0.9)",
    "geonorm(learn=step, retraction=cayley)",
    "geonorm(input=norm, alpha=0.5)",
    "geonorm(retraction=0.5, max_angle=pi)",
    "pre(max_step=0.6)",
]
SCHEMES = [*names(), *VARIANTS]


@pytest.fixture(autouse=True)
def second_order_attention() -> object:
    """The fused attention of a CPU has neither second derivatives nor a forward mode, and says so."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def moved(module: nn.Module) -> nn.Module:
    """Every parameter away from its start, so that no scalar stands at a kink and none is 0."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn(p.shape, dtype=p.dtype, generator=generator))
    return module


def decoder(scheme: str) -> nn.Module:
    torch.manual_seed(0)
    shape = DecoderConfig(scheme=scheme, layers=2, width=8, heads=2, hidden=12, vocab_size=7, context=8)
    return moved(Decoder(shape).double())


def residual(scheme: str) -> Residual:
    torch.manual_seed(0)
    branch = nn.Sequential(nn.Linear(DIM, DIM), nn.Tanh())
    module = moved(Residual(branch, scheme, Site(1, "mlp", DEPTH), DIM).double())
    assert isinstance(module, Residual)
    return module


def stream(module: Residual, tokens: int) -> Tensor:
    streams = module.scheme.streams
    shape = (tokens, DIM) if streams == 1 else (tokens, streams, DIM)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def by_the_textbook(run: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    with monkeypatch.context() as patch:
        patch.setenv("GEONORM_BACKEND", "reference")
        return run()


@each("scheme", ["geonorm", "prores(geonorm)", "gpas", "ngpt", "hyper", "attnres", *VARIANTS])
def test_hessian_vector_products_of_decoders(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = decoder(scheme), torch.arange(6).view(1, 6)
    weights = list(model.parameters())
    generator = torch.Generator().manual_seed(3)
    direction = [torch.randn(p.shape, dtype=p.dtype, generator=generator) for p in weights]

    def product() -> Tensor:
        loss = nn.functional.cross_entropy(model(ids[:, :-1])[0], ids[0, 1:])
        first = torch.autograd.grad(loss, weights, create_graph=True)
        along = sum((g * d).sum() for g, d in zip(first, direction, strict=True))
        found = torch.autograd.grad(along, weights, allow_unused=True)
        return torch.cat(
            [torch.zeros(p.numel()) if g is None else g.flatten() for g, p in zip(found, weights, strict=True)]
        )

    expected = by_the_textbook(product, monkeypatch)
    assert expected.norm() > 1e-3
    torch.testing.assert_close(product(), expected, rtol=1e-6, atol=1e-9)


@each("scheme", SCHEMES)
def test_hessians_of_residuals(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = residual(scheme)
    x = stream(module, 2)

    def f(x: Tensor) -> Tensor:
        return module(x).pow(3).sum()

    hessian = torch.autograd.functional.hessian
    true = by_the_textbook(lambda: hessian(f, x), monkeypatch)
    assert true.norm() > 1e-3
    for found in (hessian(f, x), hessian(f, x, vectorize=True), torch.func.hessian(f)(x)):
        torch.testing.assert_close(found, true, rtol=1e-9, atol=1e-9)
    assert torch.autograd.gradgradcheck(module, (x.requires_grad_(),))


@each("recording", [True, False])
@each("tokens", [1, 3])
@each("scheme", SCHEMES)
def test_forward_mode(scheme: str, tokens: int, recording: bool) -> None:
    """Dual numbers, one token too, as when a model writes text, with and without a graph."""
    module = residual(scheme)
    x = stream(module, tokens)
    tangent = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        step = 1e-6
        if scheme == "gpas":  # whose derivative is that of its sum: of gate 0
            gate = module.own.get_parameter("gate")
            kept, _ = gate.clone(), gate.zero_()
        expected = (module(x + step * tangent) - module(x - step * tangent)) / (2 * step)
        if scheme == "gpas":
            gate.copy_(kept)
    with torch.set_grad_enabled(recording), forward_ad.dual_level():
        slope = forward_ad.unpack_dual(module(forward_ad.make_dual(x, tangent))).tangent
    assert slope is not None
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scheme", ["geonorm", "pre", VARIANTS[0]])
def test_compiled_gradients_of_functions(scheme: str) -> None:
    module = residual(scheme)
    weights = {name: p.detach() for name, p in module.named_parameters()}
    x = stream(module, 2)

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, weights, (x,))
        return out.pow(3).sum()

    for transform in (torch.func.grad(loss), torch.func.hessian(loss, argnums=1)):
        torch.compiler.reset()
        expected = transform(weights, x)
        found = torch.compile(transform, backend="aot_eager", fullgraph=True)(weights, x)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@each("scheme", names())
def test_gradients_of_every_text_at_once(scheme: str) -> None:
    model, texts = decoder(scheme), torch.randint(7, (3, 7))
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights: dict[str, Tensor], text: Tensor) -> Tensor:
        logits = functional_call(model, weights, (text[None, :-1],))
        return torch.nn.functional.cross_entropy(logits[0], text[1:])

    every = vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, texts)
    for index, text in enumerate(texts):
        expected = torch.autograd.grad(model.loss(text[None, :-1], text[None, 1:]), list(model.parameters()))
        for (name, _), right in zip(model.named_parameters(), expected, strict=True):
            torch.testing.assert_close(every[name][index], right, rtol=1e-5, atol=1e-6)
