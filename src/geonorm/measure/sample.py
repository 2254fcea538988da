"""Measures that need many tokens at a time, taken on a random sample of at most 512 of them: O(dim^2) or sorting."""

from __future__ import annotations

from math import isfinite, sqrt
from typing import Any

import torch
from torch import Tensor

from .. import sphere

SAMPLE = 512
"""Tokens of a sample. The effective rank cannot exceed it."""
MASSIVE_SIZE, MASSIVE_RATIO = 100.0, 1000.0
"""A massive activation is larger than 100 and than 1000 times the median magnitude (arXiv:2402.17762)."""


def effective_rank(rows: Tensor) -> float | None:
    """exp of the entropy of the singular values of the centred rows, scaled to sum 1 (Roy and Vetterli, 2007)."""
    rows = rows.double()
    if not bool(torch.isfinite(rows).all()):
        return None
    rows = rows - rows.mean(0)
    gram = rows @ rows.mT if rows.shape[0] < rows.shape[1] else rows.mT @ rows
    values = torch.linalg.eigvalsh(gram)
    # a Gram matrix knows singular values to the root of its precision: smaller ones are rounding
    values = values[values > values[-1].clamp(min=1e-300) * 1e-14].sqrt()
    if values.numel() == 0:
        return 0.0
    share = values / values.sum()
    return float((-(share * share.log()).sum()).exp())


def principal(rows: Tensor) -> dict[str, float | None]:
    """The direction that tokens share most: the top singular vector of their unit rows, not centred, from the
    eigenvectors of the smaller Gram matrix.

    cos_principal: mean |cos| of tokens to it (no fixed direction has a larger mean of cos^2); cos_ones_principal: |cos|
    of the uniform vector to it.
    """
    rows = rows.double()
    if rows.shape[0] == 0 or not bool(torch.isfinite(rows).all()):
        return {"cos_principal": None, "cos_ones_principal": None}
    unit = sphere.safe_divide(rows, sphere.radius(rows))
    few = rows.shape[0] < rows.shape[1]
    v = torch.linalg.eigh(unit @ unit.mT if few else unit.mT @ unit).eigenvectors[:, -1]
    if few:
        v = unit.mT @ v
        v = v / v.norm().clamp(min=1e-300)
    return {
        "cos_principal": (unit @ v).abs().mean().item(),
        "cos_ones_principal": float(v.sum().abs() / sqrt(v.numel())),
    }


def many(rows: Tensor, largest: float) -> dict[str, Any]:
    """What a site's sample (tokens, dim) says; largest: the largest |x_i| over all tokens, not the sample alone."""
    median = rows.double().abs().median().item()
    ratio = largest / median if median > 0 and isfinite(largest) else None
    return {
        "effective_rank": effective_rank(rows),
        **principal(rows),
        "sample": rows.shape[0],
        "abs_median": median if isfinite(median) else None,
        "massive_ratio": ratio,
        "massive": ratio is not None and largest > MASSIVE_SIZE and ratio > MASSIVE_RATIO,
    }


def concentration(resultant: float, dim: int) -> float | None:
    """kappa of the von Mises-Fisher distribution with this resultant length (Banerjee et al., JMLR 2005).

    The approximation R (d - R^2) / (1 - R^2); None where all directions agree.
    """
    return None if resultant >= 1 else resultant * (dim - resultant**2) / (1 - resultant**2)
