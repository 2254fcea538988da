"""How alike the streams of two depths are, on the same random tokens: mean cosine of a token with itself, and linear
CKA (Kornblith et al., arXiv:1905.00414), which knows nothing of directions and compares who is near to whom.

CKA is the one without bias (Nguyen et al., arXiv:2010.15327, by the HSIC of Song et al., JMLR 2012): between streams
that have nothing in common it is 0 on average, whatever the width; the plain one would be near 1 where dimensions
outnumber tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..sphere import radius, safe_divide


def centred_gram(rows: Tensor) -> Tensor:
    """Gram matrix of (tokens, dim) in fp64, its diagonal 0 and U-centred: rows sum to 0 without it. (tokens, tokens)"""
    n = rows.shape[0]
    gram = rows.double() @ rows.double().mT
    gram.fill_diagonal_(0)
    mean = gram.sum(1) / (n - 2)
    gram = gram - mean[:, None] - mean + gram.sum() / ((n - 1) * (n - 2))
    return gram.fill_diagonal_(0)


def likeness(states: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Of every two of the states (tokens, dim), the same tokens in each: {first, second, cos, cka}.

    Numbers of states, first < second; cka None below four tokens, and where one state is not finite or a point.
    """
    n = states[0].shape[0]
    known = [bool(torch.isfinite(state).all()) and n > 3 for state in states]
    grams = [centred_gram(state).flatten() if fine else None for state, fine in zip(states, known, strict=True)]
    unit = [safe_divide(state, radius(state)) for state in states]
    found = []
    for second in range(len(states)):
        for first in range(second):
            one, other = grams[first], grams[second]
            cosine = (unit[first] * unit[second]).sum(-1, dtype=torch.float64).mean()
            cka = None
            if one is not None and other is not None and (size := (one.norm() * other.norm()).item()) > 0:
                cka = ((one @ other) / size).item()
            about = {"first": first, "second": second, "cos": cosine.item() if torch.isfinite(cosine) else None}
            found.append(about | {"cka": cka})
    return found
