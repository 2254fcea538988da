"""The mean-variance split (arXiv:2605.06169), made for diffusion transformers: a scheme for models that see all tokens.

    geonorm schemes ./examples/mean_split.py:MeanSplit --trust-code
    geonorm train --objective mlm --scheme ./examples/mean_split.py:MeanSplit --trust-code --steps 300

It is no scheme of the library because it averages over all tokens of a sequence. A decoder would read the future by it,
and a padded batch its padding.
"""

from dataclasses import dataclass

from geonorm import Placement
from geonorm.schemes import About


@dataclass(frozen=True)
class MeanSplit(Placement):
    """Pre-Norm that adds what tokens do not share with weight b, and replaces their mean with weight a."""

    about = About(
        equation="x + b (u - mean u) + a (mean u - mean x), means over tokens, b = 0.03 and a = 0 at the start",
        source="Lu 2026, arXiv:2605.06169",
        claim="Diffusion transformers of 1,000 layers train, whose tokens become alike under Pre-Norm.",
        checked="the equation as x-transformers has it (MVSplitResidualUpdate), in fp64; not the paper's code",
        lawless="a token moves with the mean of all tokens, not in the plane of x and u",
    )
    parts = {"input": "norm", "a": (0.0, "dim"), "b": (0.03, "dim")}

    def write(self, x, u, p, site, h=1.0):
        mean_x, mean_u = x.mean(-2, keepdim=True), u.mean(-2, keepdim=True)
        return x + h * (p.b * (u - mean_u) + p.a * (mean_u - mean_x))
