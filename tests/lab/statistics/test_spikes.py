"""Spikes are found where they were planted, and those that a batch gives every run are told from a run's own."""

import math
from typing import Any

import numpy as np
from hypothesis import given, settings, strategies as st

from geonorm.lab.runs.records import MetricRow
from geonorm.lab.statistics.spikes import find_spikes, spikes


def test_spikes_finds_each_of_two_neighbours() -> None:
    values = np.random.default_rng(3).normal(3.0, 0.1, 300)
    values[[150, 151, 220]] = 8.0
    values[250] = math.nan
    assert spikes(values) == [150, 151, 220, 250]


def test_spikes_waits_for_twenty_values_and_ignores_constants() -> None:
    assert spikes([1.0] * 10 + [50.0] + [1.0] * 5) == []
    assert spikes([0.1] * 400) == []
    assert spikes([math.inf, 1.0, math.nan]) == [0, 2]


def test_spikes_accepts_a_new_level_after_a_whole_window() -> None:
    noise = np.random.default_rng(4).normal(0.0, 0.1, 600)
    noise[300:] += 5.0
    assert spikes(noise, window=50) == list(range(300, 350))


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), max_size=150), st.floats(0.1, 10), st.floats(-5, 5))
def test_spikes_never_falls_for_a_drop(values: list[float], scale: float, shift: float) -> None:
    falling = np.sort(np.array(values) * scale + shift)[::-1]
    assert spikes(falling) == []


def test_steps_of_spikes_stand_beside_their_number() -> None:
    """Steps are logged from 1; a loss that is not finite is a spike of the loss alone."""
    rows: list[Any] = [{"step": n + 1, "loss": 3 + 0.1 * (n % 7), "grad_norm": 1.0} for n in range(60)]
    rows[40]["loss"], rows[50]["loss"] = 9.0, None
    rows[40]["grad_norm"] = 4.0
    rows = [MetricRow.read(row) for row in rows]
    assert find_spikes(rows) == {"spikes": 2, "spike_steps": [41, 51], "grad_spikes": 1, "grad_spike_steps": [41]}
    assert find_spikes([]) == {"spikes": 0, "spike_steps": [], "grad_spikes": 0, "grad_spike_steps": []}
