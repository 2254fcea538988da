"""`same`: which rules are one function, which are not, and which part only once they are trained."""

from __future__ import annotations

from typing import Any

import pytest

import geonorm
from geonorm.cli.main import main
from geonorm.equality import TOLERANCE, Same, sort_into_classes
from geonorm.schemes.hybrid import Hybrid

EQUAL = [
    ("beam", "peri"),
    ("pre", "polar"),
    ("sandwich", "peri(entry=embedding)"),
    ("mix(post, pre, share=0)", "pre(final=norm)"),
    (
        "geonorm(max_angle=pi, retraction=projection, decay=constant)",
        "geonorm(max_angle=pi, retraction=1, decay=constant)",
    ),
]
DIFFERENT = [
    ("pre", "post"),
    ("pre", "pre(entry=embedding)"),
    ("pre", "pre(final=none)"),
    ("geonorm", "geonorm(alpha=1.001)"),
    ("geonorm", "geonorm(max_angle=0.8)"),
]
ALIKE_AT_THE_START = [("pre", "affine"), ("pre", "hyper"), ("geonorm", "geonorm(learn=gain)")]


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


def test_a_norm_that_is_missing_inside_a_branch_is_seen() -> None:
    answer = geonorm.same("hybrid", BareHybrid())
    assert not answer and "q in attn of block 0 sees" in answer.reason


def test_an_answer_is_a_condition() -> None:
    rule = geonorm.parse("pre")
    assert Same(rule, rule, TOLERANCE, "") and not Same(rule, rule, 2 * TOLERANCE, "")
    assert not Same(rule, rule, float("nan"), "")


def test_classes() -> None:
    rules = sort_into_classes(["pre", "sqrt", "peri", "polar", "beam", "post(decay=sqrt)"])
    named = [[str(rule) for rule in each] for each in rules]
    assert named == [["pre", "polar"], ["sqrt", "post(decay=sqrt)"], ["peri", "beam"]]
    assert geonorm.same("mhc(n=2, mix=kronecker)", "mhc(n=2, mix=permutation)").error < TOLERANCE


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert [main(["same", *pair]) for pair in (["peri", "beam"], ["pre", "post"], ["pre"], ["pre", "pots"])] == [
        0,
        1,
        2,
        2,
    ]
    assert main(["same", "pre", "peri", "beam"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("pre\nperi = beam\n") and "did you mean 'post'" in err and "geonorm same A B" in err
