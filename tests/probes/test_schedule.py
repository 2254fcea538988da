"""Planted schedules are found, with their scale."""

from __future__ import annotations

from math import sqrt

import pytest

from geonorm.probes.schedule import LAWS, fit, implied

DEPTH = 12
SHAPES = {
    "harmonic": lambda t: 1 / t,
    "sqrt": lambda t: 1 / sqrt(t),
    "linear": lambda t: 1 - (t - 1) / DEPTH,
    "constant": lambda t: 1.0,
}


@pytest.mark.parametrize("law", list(SHAPES))
def test_planted_law(law: str) -> None:
    found = fit([(t, 0.3 * SHAPES[law](t)) for t in range(1, DEPTH + 1)], DEPTH)
    assert found is not None and found["best"] == law
    assert found[law]["alpha"] == pytest.approx(0.3)
    if law != "constant":
        assert found[law]["r2"] == pytest.approx(1.0)
        assert all(found[other]["r2"] < 0.999 for other in LAWS if other != law)
        assert found["constant"]["r2"] == pytest.approx(0.0)
    power = {"harmonic": 1.0, "sqrt": 0.5, "constant": 0.0}
    if law in power:
        assert found["power"]["exponent"] == pytest.approx(power[law], abs=1e-12)
    else:
        assert found["power"]["r2"] < 0.99


def test_too_few_depths_have_no_law() -> None:
    assert fit([(1, 0.5), (2, 0.3), (2, 0.2)], 2) is None


def test_laws_of_a_trace() -> None:
    rows = [
        {"stack": "decoder", "kind": kind, "t": t, "ratio": scale / t}
        for t in range(1, 7)
        for kind, scale in (("attn", 0.2), ("mlp", 0.4))
    ]
    found = implied([*rows, {"kind": "mlp", "t": 3, "ratio": None}])["decoder"]
    assert found["attn"]["harmonic"]["alpha"] == pytest.approx(0.2) and found["mlp"]["best"] == "harmonic"
    assert found["all"]["harmonic"]["alpha"] == pytest.approx(0.3)
    assert found["all"]["harmonic"]["r2"] == pytest.approx(1.0)  # of the means of blocks
