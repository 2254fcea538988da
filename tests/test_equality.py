"""`same`: which rules are one function, which are not, and which part only once they are trained."""

from dataclasses import dataclass
from math import pi
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import geonorm
from geonorm import sphere
from geonorm.cli.main import main
from geonorm.equality import TOLERANCE, Same, sort_into_classes
from geonorm.norms import NormSpec
from geonorm.schemes.flat import Peri
from geonorm.schemes.hybrid import Hybrid
from geonorm.schemes.shipped import Beam

EQUAL_SHARES = "geonorm(update=unit, retraction=projection, decay=sqrt, decay_on=update, index=sublayer)"
EQUAL = [
    ("beam", "peri"),
    ("sandwich", "peri(entry=embedding)"),
    ("mix(post, pre, share=0)", "pre(final=norm)"),
    (
        "geonorm(max_angle=pi, retraction=projection, decay=constant)",
        "geonorm(max_angle=pi, retraction=1, decay=constant)",
    ),
]
DIFFERENT = [
    ("pre", "post"), ("pre", "pre(entry=embedding)"), ("pre", "pre(final=none)"), ("pre", "lns"), ("peri", "olmo2"),
    ("geonorm", "geonorm(alpha=1.001)"), ("geonorm", "geonorm(index=sublayer)"),
    ("geonorm", "geonorm(max_angle=0.8)"), ("prores(geonorm)", "prores(geonorm(max_angle=0.1))"),
]  # fmt: skip
ALIKE_AT_THE_START = [("pre", "affine"), ("pre", "hyper"), ("geonorm", "geonorm(learn=gain)")]


@dataclass(frozen=True)
class TangentShares(Peri):
    """Beam's addition with the tangential part of the update at the length of the stream in place of N(u)."""

    parts: ClassVar[Any] = {}

    def write(self, x: Tensor, u: Tensor, p: Any, site: geonorm.Site, h: Any = 1.0) -> Tensor:
        _, v = sphere.frame(x, u)
        m = site.number + 1
        turned = x + h * m**-0.5 * v * sphere.radius(x) / sphere.radius(v)
        return turned * sphere.radius(x) / sphere.radius(turned)


class ScaledBeam(Beam):
    """Beam with a factor of 1.01 on the update of one sub-layer."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: geonorm.Site, h: Any = 1.0) -> Tensor:
        if int(site.layer) == 2 and site.kind == "mlp":
            p.output.weight.data.mul_(1.01)
        return super().write(x, u, p, site, h)


class BareHybrid(Hybrid):
    """HybridNorm without its norms on queries, keys and values."""

    def slot(self, *_: Any) -> None:
        return None


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_equal_rules(first: str, second: str) -> None:
    for pair in ((first, second), (second, first)):
        answer = geonorm.same(*pair)
        assert answer and answer.error <= 1e-13, answer


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_rules_that_differ_come_with_a_counter_example(first: str, second: str) -> None:
    answer = geonorm.same(first, second)
    assert not answer and answer.error > 1e-5, answer
    assert "two functions" in answer.reason and " sees " in answer.reason and "before training" not in answer.reason


@pytest.mark.parametrize(("first", "second"), ALIKE_AT_THE_START)
def test_rules_that_part_in_training(first: str, second: str) -> None:
    answer = geonorm.same(first, second)
    assert not answer and answer.reason.endswith("before training they are one function")


def test_equal_shares_are_the_tangential_form_of_beam() -> None:
    answer = geonorm.same(EQUAL_SHARES, TangentShares())
    assert answer.error < 1e-4, answer  # geonorm's angle is softer by (0.001 |x|/|v|)^2 / 2, and |v|/|x| is 0.1 or more


def test_planted_differences_are_seen() -> None:
    """A factor of 1.01 on one update; a norm that is missing inside a branch."""
    scaled, bare = geonorm.same("beam", ScaledBeam()), geonorm.same("hybrid", BareHybrid())
    assert not scaled and "attn of block 3 sees" in scaled.reason and 1e-4 < scaled.error < 1e-1
    assert not bare and "q in attn of block 0 sees" in bare.reason


def test_an_answer_is_a_condition() -> None:
    rule = geonorm.parse("pre")
    assert Same(rule, rule, TOLERANCE, "") and not Same(rule, rule, 2 * TOLERANCE, "")
    assert not Same(rule, rule, float("nan"), "")


def test_classes() -> None:
    rules = sort_into_classes(["pre", "sqrt", "peri", "beam", "post(decay=sqrt)"])
    named = [[str(rule) for rule in each] for each in rules]
    assert named == [["pre"], ["sqrt", "post(decay=sqrt)"], ["peri", "beam"]]
    assert geonorm.same("mhc(n=2, mix=kronecker)", "mhc(n=2, mix=permutation)").error < TOLERANCE


@pytest.mark.parametrize("name", ["pre(entry=embedding)", "post", "peri", "ngpt", "geonorm"])
def test_one_equation(name: str) -> None:
    """The token turns by an angle in the plane of x and u, and its length changes: docs/theory.md 2.1."""
    scheme, site, dim = geonorm.parse(name), geonorm.Site(2, "mlp", 6), 16
    x, u = (F.normalize(torch.randn(64, dim, dtype=torch.float64), dim=-1) * dim**0.5 for _ in range(2))
    u *= torch.logspace(-2, 2, 64, dtype=torch.float64)[:, None]
    x /= dim**0.5 if name == "ngpt" else 1  # nGPT's sphere has radius 1
    p = geonorm.schemes.Parts(scheme, site, NormSpec("rms", dim, eps=0.0)).double()()
    r, size = sphere.radius(x), sphere.radius(u)
    c, v = sphere.frame(x, u)
    tangent = sphere.radius(v)
    weight = 0.05 * r / size  # of the update under nGPT, whose alpha starts at 0.05
    share = dim**0.5 / size  # of the update under Peri-LN
    angle, length = {
        "pre": (torch.atan2(tangent, r * (1 + c)), (x + u).norm(dim=-1, keepdim=True)),
        "post": (torch.atan2(tangent, r * (1 + c)), r),
        "peri": (torch.atan2(share * tangent, r * (1 + share * c)), (x + share * u).norm(dim=-1, keepdim=True)),
        "ngpt": (torch.atan2(weight * tangent, r * (0.95 + weight * c)), r),
        "geonorm": ((tangent / r).clamp(max=pi / 4) / site.t, r),
    }[name.split("(")[0]]
    expected = length * (torch.cos(angle) * x / r + torch.sin(angle) * v / tangent)
    torch.testing.assert_close(geonorm.schemes.write_at(scheme, x, u, p, site), expected, rtol=1e-12, atol=1e-12)


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = ["peri", "beam"], ["pre", "post"], ["pre"], ["pre", "pots"]
    assert [main(["same", *pair]) for pair in pairs] == [0, 1, 2, 2]
    assert main(["same", "pre", "peri", "beam"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("pre\nperi = beam\n") and "did you mean 'post'" in err and "geonorm same A B" in err
