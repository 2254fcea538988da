"""Muon without bfloat16 on CPUs, so that it is as fast there as its matrix products."""

from collections.abc import Callable
from math import sqrt

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch.optim.Muon with rates that mean AdamW's ("match_rms_adamw"); on a CPU it iterates in the dtype of the
    weight, fp32 or fp64.

    torch's runs in bfloat16 everywhere. A CPU without instructions for it multiplies such matrices in software, some
    twenty times slower, and one with them rounds otherwise: two machines would train two models.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        if closure is not None or any(p.device.type != "cpu" for group in self.param_groups for p in group["params"]):
            return super().step(closure)
        for group in self.param_groups:
            weights: list[Tensor] = []
            gradients: list[Tensor] = []
            momenta: list[Tensor] = []
            self._init_group(group, weights, gradients, momenta)
            for weight, gradient, momentum in zip(weights, gradients, momenta, strict=True):
                momentum.lerp_(gradient, 1 - group["momentum"])
                ahead = gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum
                update = orthogonalize(ahead, group["ns_coefficients"], group["ns_steps"], group["eps"])
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-0.2 * sqrt(max(weight.shape)) * group["lr"])
        return None


def orthogonalize(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The matrix with singular values near 1, in its own dtype: steps of the odd quintic polynomial
    a s + b s^3 + c s^5 of each singular value s (Newton-Schulz; Jordan et al. 2024, "Muon")."""
    a, b, c = coefficients
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x
