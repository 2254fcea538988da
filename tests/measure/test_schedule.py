"""Planted schedules are found, with their scale, and nothing is found where nothing was planted."""

import random
from math import exp, log, sqrt

import numpy as np
import pytest
from scipy.special import fdtr

from geonorm.measure.schedule import LAWS, LEAST_R2, fit, implied, trend_p

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
    assert found["power"]["low"] <= found["power"]["exponent"] <= found["power"]["high"]


def test_between_the_laws_and_in_noise_none_fits() -> None:
    draw = random.Random(0)
    for values in (
        [t**-0.75 for t in range(1, DEPTH + 1)],
        [t**0.5 for t in range(1, DEPTH + 1)],
        [exp(draw.gauss(0, 1)) for _ in range(DEPTH)],
    ):
        found = fit(list(enumerate(values, 1)), DEPTH)
        assert found is not None and found["best"] == "none"
    assert found["power"]["low"] < 0 < found["power"]["high"]
    assert found["power"]["high"] - found["power"]["low"] > 0.5
    # 5 % of noise leave a constant a constant
    found = fit([(t, 0.3 * exp(draw.gauss(0, 0.05))) for t in range(1, DEPTH + 1)], DEPTH)
    assert found is not None and found["best"] == "constant"


DRIFTS = {
    "1/(t (1 + log t))": lambda t: 1 / (t * (1 + log(t))),
    "1/(sqrt t (1 + log t))": lambda t: 1 / (sqrt(t) * (1 + log(t))),
    "(1 + log t)/t": lambda t: (1 + log(t)) / t,
    "harmonic from t = 4 on": lambda t: 1 / (t + 3),
}


@pytest.mark.parametrize("drift", list(DRIFTS))
def test_a_power_that_drifts_slowly_is_no_law(drift: str) -> None:
    """However much of the variance the nearest law explains; at 10 % of scatter, and without any."""
    depth, draw = 32, random.Random(0)
    clean = fit([(t, DRIFTS[drift](t)) for t in range(1, depth + 1)], depth)
    assert clean is not None and clean["best"] == "none"
    assert max(clean[law]["r2"] for law in LAWS) > LEAST_R2
    named = [
        fit([(t, DRIFTS[drift](t) * exp(draw.gauss(0, 0.1))) for t in range(1, depth + 1)], depth) for _ in range(100)
    ]
    assert sum(found is not None and found["best"] == "none" for found in named) >= 95


def test_the_course_that_scatter_leaves_is_as_rare_as_it_says() -> None:
    """The tail of F(2, n - 3), against scipy and against draws."""
    draw, low = random.Random(0), 0
    logs = [log(t) for t in range(2, 14)]
    for _ in range(500):
        points = [(a, draw.gauss(0, 0.3)) for a in logs]
        a, b = np.array(points).T
        left = b - np.polyval(np.polyfit(a, b, 2), a)
        whole = ((b - b.mean()) ** 2).sum()
        ratio = (whole - (left**2).sum()) / 2 / ((left**2).sum() / 9)
        assert trend_p(points) == pytest.approx(1 - fdtr(2, 9, ratio), abs=1e-9)
        low += trend_p(points) < 0.05
    assert 15 <= low <= 36
    assert trend_p([(a, a * a) for a in logs[:5]]) == 1.0


def test_the_interval_of_the_power_holds_the_truth_as_often_as_it_says() -> None:
    draw, hits = random.Random(1), 0
    for _ in range(400):
        found = fit([(t, t**-0.8 * exp(draw.gauss(0, 0.2))) for t in range(1, 9)], 8)
        assert found is not None
        hits += found["power"]["low"] <= 0.8 <= found["power"]["high"]
    assert 0.92 <= hits / 400 <= 0.98
    named = [fit([(t, t**-0.5 * exp(draw.gauss(0, 0.3))) for t in range(1, 33)], 32) for _ in range(100)]
    assert all(found is not None and found["best"] == "none" for found in named)  # scatter leaves too little explained


def test_too_few_depths_have_no_law() -> None:
    assert fit([(1, 0.5), (2, 0.3), (2, 0.2)], 2) is None
    assert fit([(1, 0.5), (2, 0.3), (3, 0.0)], 3) is None  # a site that does nothing


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
