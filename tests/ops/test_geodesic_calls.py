"""How the geodesic update is called: shapes, memory, compilation, what is refused."""

from __future__ import annotations

import math
from math import inf

import pytest
import torch
from torch import Tensor

from geonorm import geodesic_update
from geonorm.errors import ConfigError
from geonorm.ops import backends

from ..rows import each
from .geodesic_cases import pair


@each("decay", [0.0, -1.0, math.nan, inf, torch.ones(2, 1), torch.ones(0)])
def test_a_decay_that_is_no_positive_number_is_refused(decay: float | Tensor) -> None:
    x, u = pair(count=2)
    with pytest.raises(ConfigError, match="decay must be") as error:
        geodesic_update(x, u, decay=decay)
    assert "\n" not in str(error.value)


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
        ({"max_angle": 0.0}, "max_angle"),
        ({"max_angle": -1.0}, "max_angle"),
        ({"max_angle": 3.2}, "max_angle"),
        ({"max_angle": math.nan}, "max_angle"),
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
    assert path() == closed and backends("cpu")["auto"] == "closed"
    monkeypatch.setenv("GEONORM_BACKEND", "reference")
    assert path() == reference and path("closed") == closed and backends("cpu")["auto"] == "reference"
    monkeypatch.setenv("GEONORM_BACKEND", "fast")
    with pytest.raises(ConfigError, match=r"unknown backend 'fast' .* in \$GEONORM_BACKEND$"):
        path()
