"""How the geodesic update is called: what is refused, which path is taken, what stands in the way of the kernels."""

from math import inf, nan

import pytest
import torch

from geonorm import geodesic_update
from geonorm.errors import ConfigError
from geonorm.ops import AngleMap, available, backends

from ..rows import each
from .geodesic_cases import pair


@each(
    "device, dtype, dim, angles, says",
    [
        ("cpu", torch.float32, 8, AngleMap(), "on cpu, not cuda: use backend='auto'"),
        ("cuda", torch.float64, 8, AngleMap(), "not float64"),
        ("cuda", torch.float32, 16385, AngleMap(), "1 to 16384"),
        ("cuda", torch.float32, 0, AngleMap(), "not 0"),
        ("cuda", torch.bfloat16, 16384, AngleMap(post=torch.tensor(0.5), max_angle=3.0), ""),
        ("cuda", torch.float32, 8, AngleMap(power=2.0), "no p atan"),
        ("cuda", torch.float32, 8, AngleMap(pre=0.5, power=1.0).level(), ""),
        ("cuda", torch.float32, 8, AngleMap(pre=torch.ones(1), power=1.0).level(), "no learned scalars"),
        ("cuda", torch.float32, 8, AngleMap(gain=0.0), "no bias"),
        ("cuda", torch.float32, 8, AngleMap(post=torch.ones(1, requires_grad=True)), "no learned scalars"),
        ("cuda", torch.float32, 8, AngleMap(gain=torch.ones(1)), "no learned scalars"),
        ("cuda", torch.float32, 8, AngleMap(bias=0.1), "no bias"),
        ("cuda", torch.float32, 8, AngleMap(pre=0.5), "no decay before the clamp"),
    ],
)
def test_why_not_triton(
    device: str, dtype: torch.dtype, dim: int, angles: AngleMap, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(available, "HAS_TRITON", True)
    reason = available.why_not_triton(torch.device(device), (torch.float32, dtype), dim, angles)
    assert says in reason and bool(says) == bool(reason) and "\n" not in reason


def test_whether_the_kernels_can_run_is_asked_inside_a_compiled_graph() -> None:
    """On a GPU every residual asks. A question that cannot be traced breaks the graph there (torch 2.11), or warns."""

    def ask(x: torch.Tensor) -> torch.Tensor:
        return x + bool(available.why_not_triton(torch.device("cuda"), (x.dtype, x.dtype), x.shape[-1], AngleMap()))

    torch.compile(ask, fullgraph=True, backend="eager")(torch.ones(2, 8))


def test_a_decay_that_nobody_learns_now_goes_through_the_kernels() -> None:
    angles = AngleMap(post=torch.ones(1, requires_grad=True))
    with torch.no_grad():
        assert available.fusible(angles)
    assert not available.fusible(angles)


def test_asking_for_kernels_that_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x, u = (t.detach().float() for t in pair())
    monkeypatch.setattr(available, "HAS_TRITON", False)  # which installing would not help
    with pytest.raises(ConfigError, match="on cpu, not cuda"):
        geodesic_update(x, u, backend="triton")
    monkeypatch.setenv("GEONORM_BACKEND", "triton")
    with pytest.raises(ConfigError, match="unset GEONORM_BACKEND"):
        geodesic_update(x, u)
    assert geodesic_update(x, u, backend="closed").shape == x.shape  # an argument beats the environment


def test_backends_say_what_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GEONORM_BACKEND", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert backends("cpu")["auto"] == "closed"
    monkeypatch.setattr(available, "HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert backends("cuda")["auto"] == backends()["auto"] == "triton"
    monkeypatch.setattr(available, "HAS_TRITON", False)
    assert backends("cuda")["auto"] == "closed" and "not installed" in backends("cuda")["reason"]
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    assert backends("cuda") == {"auto": "reference", "reason": "GEONORM_BACKEND asks for it"}


def test_inputs_are_not_written_to() -> None:
    x, u = (t.detach() for t in pair())
    x.requires_grad_(), u.requires_grad_()
    copies = x.clone(), u.clone()
    weights = torch.randn_like(x)
    kept = weights.clone()
    geodesic_update(x, u).backward(weights)
    assert torch.equal(x, copies[0]) and torch.equal(u, copies[1]) and torch.equal(weights, kept)


@each(
    "arguments, says",
    [
        ({"u": torch.ones(3, 5)}, "one shape"),
        ({"u": torch.ones(4)}, "one shape"),
        ({"x": torch.tensor(1.0), "u": torch.tensor(1.0)}, "one shape"),
        ({"x": torch.ones(3, 4, dtype=torch.int64)}, "floating-point"),
        ({"u": torch.ones(3, 4, dtype=torch.bool)}, "floating-point"),
        *(({"decay": decay}, "decay must be") for decay in (0.0, -1.0, nan, inf, torch.ones(2, 1), torch.ones(0))),
        *(({"max_angle": angle}, "max_angle") for angle in (0.0, -1.0, 3.2, nan)),
        ({"backend": "refernce"}, "did you mean 'reference'"),
    ],
)
def test_bad_arguments_are_one_line(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as error:
        geodesic_update(**({"x": torch.ones(3, 4), "u": torch.ones(3, 4)} | arguments))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_environment_chooses_what_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(backend: str = "auto") -> str:
        x, u = pair()
        return type(geodesic_update(x, u, backend=backend).grad_fn).__name__

    closed, reference = path("closed"), path("reference")
    assert closed != reference
    monkeypatch.delenv("GEONORM_BACKEND", raising=False)
    assert path() == closed
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    assert path() == reference and path("closed") == closed
    monkeypatch.setenv("GEONORM_BACKEND", "fast")
    with pytest.raises(ConfigError, match=r"unknown backend 'fast' .* in \$GEONORM_BACKEND$"):
        path()
