"""From the size of an update to the angle of the step: the one scalar function inside the geodesic update.

    angle = min(post * (gain * min(R(pre * ratio), max_angle) + bias), max_angle),   ratio = |v| / |x|

R is the angle of the retraction. The decay of a scheme stands in `post` (after the clamp) or in `pre` (before it).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import atan, inf, pi

import torch
from torch import Tensor

from .. import sphere


def bias_softness() -> float:
    """The bias turns even a vanishing update, whose direction is noise. It acts as bias * ratio / sqrt(ratio^2 +
    this^2), so that the step and its gradient stay finite at v = 0; it lacks 5e-7 / ratio^2 of the paper's constant:
    half a percent at a ratio of 0.01.

    No constant of the module: with dynamic=True torch.compile makes an input of such a number, and fails where a second
    step reads it.
    """
    return 1e-3


@dataclass(frozen=True)
class AngleMap:
    """Parameters of the angle. `pre`, `post`, `gain`, `bias`: floats or tensors of one number (learned or per layer);
    `max_angle` likewise, in radians, but it cannot be learned: the closed form gives it no gradient; `power` p of the
    retraction phi_p(t) = p atan(t / p), infinity for the exponential map.

    >>> geonorm.ops.AngleMap(post=0.5)(torch.tensor([0.2, 10.0]))  # half of the ratio; clamped at pi/4, halved
    tensor([0.1000, 0.3927])
    """

    pre: float | Tensor = 1.0
    post: float | Tensor = 1.0
    gain: float | Tensor = 1.0
    bias: float | Tensor = 0.0
    max_angle: float | Tensor = pi / 4
    power: float = inf
    below: bool = False
    """True if what post is multiplied with is at most max_angle and post at most 1, so that the last minimum never
    binds."""

    @property
    def bare(self) -> bool:
        """True if it only clamps the ratio and then multiplies with a decay."""
        numbers = (self.pre, self.gain, self.bias, self.power)
        return not any(isinstance(n, Tensor) for n in numbers) and numbers == (1.0, 1.0, 0.0, inf)

    @property
    def plain(self) -> bool:
        """True for the paper's: a decay, at most 1, after the clamp of the ratio itself."""
        return self.bare and not isinstance(self.post, Tensor) and self.post <= 1

    @property
    def levelled(self) -> bool:
        """True for a map of `level` with nothing learned before `post`: one angle for all tokens."""
        numbers = (self.pre, self.gain, self.bias)
        return not any(isinstance(n, Tensor) for n in numbers) and numbers[:2] == (1.0, 0.0) and self.biased

    @property
    def biased(self) -> bool:
        return isinstance(self.bias, Tensor) or self.bias != 0

    def __call__(self, ratio: Tensor) -> Tensor:
        """Angle in radians for ratio >= 0 of any shape: plain differentiable PyTorch, the definition."""
        if self.plain:
            return ratio.clamp(max=self.max_angle) * self.post
        turn = self.gain * self.unclamped(ratio).clamp(max=self.max_angle)
        if self.biased:
            turn = turn + self.bias * ratio * torch.rsqrt(ratio * ratio + bias_softness() ** 2)
        return (self.post * turn).clamp(max=self.max_angle)

    def chain_rule(self, ratio: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
        """The gradient of the angle, of the shape of ratio, times the derivative of the angle by the ratio; unless the
        map is plain also by pre, post, gain and bias. All are 0 where a minimum binds. NaN passes through."""
        if self.plain:
            return ((grad * self.post).masked_fill_(ratio >= self.max_angle, 0.0),)
        free = self.unclamped(ratio)
        inner = free.clamp(max=self.max_angle)  # to the last bit where it binds, or rounding says if the outer one does
        bend = (1 / (1 + (self.pre * ratio / self.power) ** 2)).masked_fill(free >= self.max_angle, 0.0)
        root = torch.rsqrt(ratio * ratio + bias_softness() ** 2)
        total = self.gain * inner + self.bias * ratio * root
        grad = grad.masked_fill(self.post * total >= self.max_angle, 0.0)
        turn = self.post * grad
        slope = self.gain * self.pre * bend + self.bias * bias_softness() ** 2 * root**3
        return turn * slope, turn * self.gain * ratio * bend, grad * total, turn * inner, turn * ratio * root

    def unclamped(self, ratio: Tensor) -> Tensor:
        """Angle of the retraction, before any clamp."""
        turn = self.pre * ratio
        return turn if self.power == inf else self.power * torch.atan(turn / self.power)

    def share(self, h: float | Tensor) -> AngleMap | None:
        """The map whose angle is h times that of this one, for h from 0 to 1: the same with h post, where the last
        minimum never binds; else None."""
        return replace(self, post=h * self.post) if self.below else None

    def level(self) -> AngleMap:
        """The map whose angle is that of ratio 1 for every token. At ratio 0, where no direction is, it is softened as
        the bias is: x' = x there, and d angle / d ratio is 1 / bias_softness() of the angle, large but finite."""
        if isinstance(both := self.pre * self.max_angle, Tensor):  # where either is one
            angle: float | Tensor = self.unclamped(torch.ones_like(both)).clamp(max=self.max_angle)
        else:
            turn = self.pre if self.power == inf else self.power * atan(self.pre / self.power)
            angle = min(turn, self.max_angle)
        return AngleMap(
            post=self.post, gain=0.0, bias=self.gain * angle + self.bias, max_angle=self.max_angle, below=self.below
        )

    def clamped(self, ratio: Tensor) -> Tensor:
        """True where either minimum binds, boolean, same shape as ratio."""
        return (self.unclamped(ratio) >= self.max_angle) | (self(ratio) >= self.max_angle)

    def quotient(self, squared: Tensor) -> Tensor:
        """angle / ratio for ratio^2 of any shape: smooth through 0, where a ratio is a root and has no derivatives, so
        that those of every order are right there too. Where a minimum binds, the angle is constant."""

        def clamp(turn: Tensor) -> Tensor:
            binds = turn >= self.max_angle * torch.rsqrt(squared)
            # differentiated only there: elsewhere the ratio may be 0, or so small that a derivative overflows
            limit = self.max_angle * torch.rsqrt(torch.where(binds, squared, 1.0))
            return torch.where(binds, limit, turn)

        turn = self.gain * clamp(self.pre * sphere.retraction_quotient(self.pre * self.pre * squared, self.power))
        if self.biased:
            turn = turn + self.bias * torch.rsqrt(squared + bias_softness() ** 2)
        return clamp(self.post * turn)
