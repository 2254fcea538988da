"""What the parity tests share: fp64 throughout, and one measure of agreement that also goes into the test report."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode


class StayWide(TorchFunctionMode):
    """fp64 tensors stay fp64 where a library asks for fp32 inside its norms, rotations and softmax.

    transformers computes those in fp32 whatever it is given, which hides everything below 1e-7. Nothing else changes.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        wide = bool(args) and isinstance(args[0], Tensor) and args[0].dtype == torch.float64
        if wide and (func is Tensor.float or (func is Tensor.to and torch.float32 in (*args[1:], *kwargs.values()))):
            return args[0]
        if wide and func in (F.softmax, torch.softmax) and kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


@pytest.fixture
def stay_wide() -> Iterator[None]:
    with StayWide():
        yield


@pytest.fixture
def agree(request: pytest.FixtureRequest) -> Iterator[Callable[..., None]]:
    """agree(ours, theirs, what): the largest difference over the largest entry of theirs is at most `limit`.

    The worst values of the test stand in the report as its properties: pytest tests/parity --junitxml=parity.xml.
    """
    worst: dict[str, float] = {}

    def check(ours: Tensor, theirs: Tensor, what: str, limit: float = 2e-13) -> None:
        ours, theirs = ours.detach(), theirs.detach()
        assert ours.shape == theirs.shape, what
        assert theirs.isfinite().all() and ours.isfinite().all(), what
        scale = theirs.abs().max()
        assert scale > 0, f"{what}: nothing to compare with"
        error = float((ours - theirs).abs().max() / scale)
        assert error <= limit, f"{what}: differs by {error:.1e} of its largest entry"
        kind = "gradient error" if what.startswith("gradient") else "output error"
        worst[kind] = max(worst.get(kind, 0.0), error)

    yield check
    for kind, error in worst.items():
        request.node.user_properties.append((kind, f"{error:.1e}"))


@pytest.fixture
def run() -> Callable[[nn.Module], Tensor]:
    """run(model): the last hidden state for fixed ids, or a fixed picture."""

    def hidden(model: Any) -> Tensor:
        if model.main_input_name == "pixel_values":
            picture = torch.sin(torch.arange(2 * 3 * 8 * 8, dtype=torch.float64)).view(2, 3, 8, 8)
            seen: Tensor = model(pixel_values=picture).last_hidden_state
            return seen
        ids = torch.arange(1, 15).view(2, 7) * 5 % 29
        both = {"decoder_input_ids": ids.flip(1)} if model.config.is_encoder_decoder else {}
        found: Tensor = model(input_ids=ids, **both).last_hidden_state
        return found

    return hidden
