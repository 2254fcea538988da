"""The best learning rate from every run: a parabola in log2(rate), its minimum, and how well both are known.

The lowest of a few noisy means is too low, and lies on a grid. A fit over all rates and seeds uses each run, and two
schemes can be compared at their minima. Standard errors are those of the delta method, and take runs of one seed at two
rates for independent: where 0.3 of the variance is the seed's, intervals for 95 % hold 87 to 92 % of the time.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtrc, stdtrit

from .moderated import LEVEL, Estimate


class Parabola(NamedTuple):
    """loss = a + b z + c z^2 in z = log2(rate / centre), with the covariance of (a, b, c) for a variance of 1."""

    coefficients: np.ndarray[Any, Any]
    covariance: np.ndarray[Any, Any]
    variance: float
    """Of one run about the curve; 0 where df is 0."""
    df: float
    lowest: float
    highest: float
    centre: float
    misfit: float | None
    """p of the test that the means of the rates lie on a parabola; None with three rates, or without repeats."""


class Minimum(NamedTuple):
    """The best rate with its 95 % interval, and the loss there; what could not be found is None, and `problem` says
    why. `log_error` is the standard error of ln(rate)."""

    lr: float | None
    lr_low: float | None
    lr_high: float | None
    log_error: float | None
    loss: Estimate | None
    problem: str | None


def fit_parabola(lrs: ArrayLike, losses: ArrayLike) -> Parabola | None:
    """Least squares over all runs, one rate and one loss each; None with fewer than three different rates."""
    rates, y = np.asarray(lrs, dtype=float), np.asarray(losses, dtype=float)
    tried, place = np.unique(rates, return_inverse=True)
    if tried.size < 3:
        return None
    centre = float(np.exp(np.log(tried).mean()))
    z = np.log2(rates / centre)
    design = np.stack([np.ones_like(z), z, z * z], axis=1)
    covariance = np.linalg.inv(design.T @ design)
    coefficients = covariance @ (design.T @ y)
    left = float(np.sum((y - design @ coefficients) ** 2))
    df = y.size - 3
    repeats, groups = y.size - tried.size, tried.size - 3
    misfit = None
    if repeats and groups:
        means = np.bincount(place, y) / np.bincount(place)
        noise = float(np.sum((y - means[place]) ** 2))
        ratio = max(0.0, left - noise) / groups / (noise / repeats) if noise else math.inf if left > 1e-18 else 0.0
        misfit = float(fdtrc(groups, repeats, ratio))
    variance = left / df if df else 0.0
    return Parabola(coefficients, covariance, variance, df, float(tried[0]), float(tried[-1]), centre, misfit)


def find_minimum(curve: Parabola, variance: float | None = None, df: float | None = None) -> Minimum:
    """Where the parabola is lowest, if it has a lowest point among the rates tried.

    `variance` and `df` may come from elsewhere (moderated over schemes); without any degrees of freedom there is no
    standard error: the loss's is then NaN, the rate's None.
    """
    variance, df = (curve.variance, curve.df) if variance is None or df is None else (variance, df)
    _, b, c = (float(number) for number in curve.coefficients)
    if c <= 0:
        return Minimum(None, None, None, None, None, "the parabola is not convex")
    z = -b / (2 * c)
    low, high = (math.log2(end / curve.centre) for end in (curve.lowest, curve.highest))
    if not low <= z <= high:
        beyond = f"below the lowest rate tried, {curve.lowest:g}" if z < 0 else f"above the highest, {curve.highest:g}"
        return Minimum(None, None, None, None, None, f"the minimum lies {beyond}")
    lr = curve.centre * 2**z
    at = np.array([1.0, z, z * z])  # the slope is 0 there, so that the loss moves with the coefficients alone
    along = np.array([0.0, -1.0, -2 * z]) / (2 * c)
    bent = curve.misfit is not None and curve.misfit < 1 - LEVEL
    problem = f"the losses do not lie on a parabola (p = {curve.misfit:.2g})" if bent else None
    loss = float(curve.coefficients @ at)
    if not df:
        return Minimum(lr, None, None, None, Estimate(loss, math.nan, 0.0), problem)
    error = math.log(2) * math.sqrt(variance * float(along @ curve.covariance @ along))
    reach = math.exp(min(700.0, float(stdtrit(df, (1 + LEVEL) / 2)) * error))
    error2 = variance * float(at @ curve.covariance @ at)
    return Minimum(lr, lr / reach, lr * reach, error, Estimate(loss, error2, df), problem)
