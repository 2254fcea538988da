"""Planted streams: their law is found with its order, and where none was planted none is said."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from math import exp, log, sqrt
from typing import Any

import pytest
import torch

from geonorm import Decoder, DecoderConfig
from geonorm.probes.growth import LEAST_GROWTH, ORDERS, fit_growth, growth
from geonorm.probes.subject import Subject

SITES = 24


def stream(order: float, sites: int = SITES, end: float = 3.0, noise: float = 0.0, seed: int = 0) -> list[float]:
    """Lengths whose power `order` grows from 1 to end^order by increments that scatter by lognormal factors."""
    draw, width = random.Random(seed), sqrt(log(1 + noise**2))
    whole = (end**order - 1) / order if order else log(end)
    walk = [0.0]
    for _ in range(sites):
        walk.append(walk[-1] + whole / sites * exp(draw.gauss(-(width**2) / 2, width)))
    return [(1 + order * w) ** (1 / order) if order else exp(w) for w in walk]


@pytest.mark.parametrize("law", list(ORDERS))
@pytest.mark.parametrize("end", [1.2, 3.0, 40.0])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e4])
def test_planted_law(law: str, end: float, unit: float) -> None:
    found = fit_growth([unit * r for r in stream(ORDERS[law], end=end)])
    assert found is not None and found["best"] == law and found["fits"] == [law]
    assert found["order"] == pytest.approx(ORDERS[law], abs=1e-3) and found["growth"] == pytest.approx(end)
    assert found["low"] <= found["order"] <= found["high"] < found["low"] + 0.01
    assert found[law]["spread"] < 1e-9 and found[law]["r2"] == pytest.approx(1)
    assert all(found[other]["spread"] > 1e-3 for other in ORDERS if other != law)


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.6])
def test_error_rates_on_planted_streams(noise: float) -> None:
    """The interval holds the truth as often as it says, whatever the scatter; a wrong law is named in 5 % at most."""
    for law, order in ORDERS.items():
        named, held = [], 0
        for seed in range(100):
            found = fit_growth(stream(order, noise=noise, seed=seed))
            assert found is not None
            named.append(found["best"])
            held += (found["low"] or -99) <= order <= (found["high"] or 99)
        assert 90 <= held <= 100
        assert sum(each in ORDERS and each != law for each in named) <= 5
        assert named.count(law) >= {0.1: 93, 0.3: 70, 0.6: 20}[noise]


def test_between_and_beyond_the_laws_none_fits() -> None:
    for order in (0.5, 1.5, 4.0, -1.0):
        found = fit_growth(stream(order, noise=0.02))
        assert found is not None and (found["best"], found["fits"]) == ("none", [])
        assert found["order"] == pytest.approx(order, abs=0.2)


DRIFTS = {"s/(1 + log s)": lambda s: s / (1 + log(s)), "sqrt s (1 + log s)": lambda s: sqrt(s) * (1 + log(s))}


def drifting(drift: str, noise: float, draw: random.Random) -> list[float]:
    length, width, found = DRIFTS[drift], sqrt(log(1 + noise**2)), [1.0]
    for s in range(1, SITES + 1):
        found.append(found[-1] + (length(s + 1) - length(s)) * exp(draw.gauss(-(width**2) / 2, width)))
    return found


@pytest.mark.parametrize("drift", list(DRIFTS))
def test_a_power_that_drifts_slowly_is_no_law(drift: str) -> None:
    clean = fit_growth(drifting(drift, 0.0, random.Random(0)))
    assert clean is not None and clean["best"] == "none"
    draw = random.Random(0)
    named = [fit_growth(drifting(drift, 0.1, draw)) for _ in range(100)]
    assert sum(found is not None and found["best"] == "none" for found in named) >= 90


def test_what_does_not_drift_is_named_in_nineteen_of_twenty() -> None:
    """The null of that test, at scatter where the interval alone always names the law; an order near to one, less."""
    for law, order, least in [*((law, of, 0.92) for law, of in ORDERS.items()), ("linear", 1.05, 0.85)]:
        found = [fit_growth(stream(order, noise=0.1, seed=seed)) for seed in range(200)]
        assert sum(each is not None and each["best"] == law for each in found) >= least * 200


def test_noise_is_undecided_and_a_sphere_is_constant() -> None:
    draw = random.Random(0)
    found = fit_growth([*(exp(draw.gauss(0, 0.5)) for _ in range(12)), 4.0])
    assert found is not None and found["best"] in ("undecided", "none")
    for radii in ([8.0] * 9, stream(1.0, end=1 + LEAST_GROWTH / 2), stream(1.0)[::-1]):
        found = fit_growth(radii)
        assert found is not None and found["best"] == "constant" and found["order"] is None
    assert fit_growth([1.0, 2.0, 3.0, 4.0]) is None and fit_growth([1.0, 2.0, 0.0, 4.0, 5.0]) is None


def rows(radii: Sequence[float], along: float, across: float) -> list[dict[str, Any]]:
    ends = pairwise(radii)
    return [
        {"stack": "decoder", "layer": i // 2, "radius_rest": r, "radius_after_rest": s, "aligned_rest": along,
         "squared_rest": across} for i, (r, s) in enumerate(ends)
    ]  # fmt: skip


def test_a_first_block_of_its_own_is_left_out_of_the_later_law() -> None:
    found = growth(rows([0.1, 10.0, *(10 * r for r in stream(2.0, sites=20, end=1.5))], 1.0, 3.0))["decoder"]
    assert found["later"]["best"] == "sqrt" and abs(found["all"]["order"] - 2) > 0.5
    assert found["all"]["aligned"] == 0.25
    assert growth([{"stack": "decoder", "radius": 1.0}]) == {}


def decoder(aligned: bool) -> Decoder:
    """16 blocks of `pre`: drawn, or every MLP adds one and the same vector."""
    torch.manual_seed(0)
    model = Decoder(DecoderConfig(scheme="pre", layers=16, width=64, heads=4, vocab_size=64, context=16, bias=True))
    if aligned:
        with torch.no_grad():
            for block in model.blocks:
                for weight in (block.attn.branch.o.weight, block.attn.branch.o.bias, block.mlp.branch.down.weight):
                    weight.zero_()
                block.mlp.branch.down.bias.copy_(torch.ones(64) * 40 / 8)
    return model


@pytest.mark.parametrize(("aligned", "law"), [(False, "sqrt"), (True, "linear")])
def test_both_limits_in_real_decoders(aligned: bool, law: str) -> None:
    """Weights as drawn: at right angles, r ~ sqrt(t). One vector added by each block: r ~ t."""
    subject = Subject(decoder(aligned))
    subject.measure([torch.randint(0, 64, (4, 16), generator=torch.Generator().manual_seed(1))])
    found = growth([row for row in subject.capture.rows() if not aligned or row["kind"] == "mlp"])["decoder"]["later"]
    assert found["best"] == law
    assert found["aligned"] > 0.85 if aligned else abs(found["aligned"]) < 0.15
