"""One answer from several settings: a pooled difference, the range to expect elsewhere, a verdict and its certainty.

Settings differ in more than their seeds, so their true differences scatter. A random-effects mean takes that into
account (Paule and Mandel 1982, doi:10.6028/jres.087.022, for the variance between settings; Hartung and Knapp 2001,
doi:10.1002/sim.791, for the interval, never narrower than without that variance). The prediction interval says where
the difference of one more setting would lie. Grades of certainty follow GRADE (Guyatt 2008,
doi:10.1136/bmj.39489.470347.AD): each doubt takes one step. Pure functions of numbers.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtrit

from .moderated import LEVEL, MARGIN, Contrast, Estimate, contrast, equal_p

ZERO = Estimate(0.0, 0.0, math.inf)
GRADES = ("high", "moderate", "low", "very low")
SETTINGS = 5
"""Fewer settings than these are a doubt."""


class Pooled(NamedTuple):
    """The mean difference of several settings, the standard deviation between them, and the interval in which one more
    setting is expected: 95 % by Student's t, which holds in 89 % with six settings, since their spread is estimated."""

    mean: Contrast
    between: float
    low: float
    high: float
    n: int


def pool(effects: Sequence[Estimate]) -> Pooled | None:
    """The random-effects mean of the differences of settings; None with fewer than two that have an error.

    >>> pooled = pool([Estimate(-0.02, 1e-4, 4), Estimate(-0.01, 1e-4, 4), Estimate(-0.03, 1e-4, 2)])
    >>> round(pooled.mean.difference, 3), round(pooled.between, 3), pooled.n
    (-0.02, 0.0, 3)
    """
    known = [effect for effect in effects if effect.error2 > 0]
    n = len(known)
    if n < 2:
        return None
    y, v = (np.array(column) for column in zip(*((effect.value, effect.error2) for effect in known), strict=True))

    def excess(between2: float) -> float:
        weights = 1 / (v + between2)
        return float(np.sum(weights * (y - np.average(y, weights=weights)) ** 2)) - (n - 1)

    between2 = float(brentq(excess, 0.0, np.var(y, ddof=1))) if excess(0.0) > 0 else 0.0
    total = float(np.sum(1 / (v + between2)))
    scale = max(1.0, excess(between2) / (n - 1) + 1)
    mean = contrast(Estimate(float(np.sum(y / (v + between2))) / total, scale / total, n - 1), ZERO)
    reach = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * math.sqrt(between2 + mean.error**2)
    return Pooled(mean, math.sqrt(between2), mean.difference - reach, mean.difference + reach, n)


def judge(difference: Contrast | None, margin: float = MARGIN) -> str:
    """The verdict on a difference of losses, one of: better, worse, equal within the margin, not resolved, one run.
    A difference that is resolved is never called equal. None stands for a single run, which has no interval.

    >>> judge(contrast(Estimate(-0.05, 1e-4, 8), ZERO)), judge(None)
    ('better', 'one run')
    """
    if difference is None:
        return "one run"
    if difference.high < 0:
        return "better"
    if difference.low > 0:
        return "worse"
    return f"equal within {margin:g}" if equal_p(difference, margin) < 1 - LEVEL else "not resolved"


def grade(pooled: Pooled, margin: float, doubts: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The certainty of a pooled answer, and why it is not higher. doubts: those that the numbers do not show, such as
    a confound.

    >>> pooled = pool([Estimate(-0.02, 1e-4, 4), Estimate(-0.01, 1e-4, 4), Estimate(-0.03, 1e-4, 2)])
    >>> grade(pooled, 0.02, ["small models"])
    ('low', ['3 settings', 'small models'])
    """
    mean, reasons = pooled.mean, list[str]()
    if pooled.n < SETTINGS:
        reasons.append(f"{pooled.n} settings")
    if judge(mean, margin) in ("better", "worse") and pooled.low < 0 < pooled.high:
        reasons.append("another setting may turn the sign")
    if mean.high - mean.low > 4 * margin:
        reasons.append("a wide interval")
    reasons += doubts
    return GRADES[min(len(reasons), len(GRADES) - 1)], reasons
