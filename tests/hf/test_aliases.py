"""What a piece of Python takes from outside: what the modeling file is put together by."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from geonorm.hf.remote import Use, free_names

CODE = """
@register(NAME)
class Rule(Base):
    share: float = SHARE
    parts = {share: [each + OFFSET for each in ROWS]}

    def write(self, x: Tensor, u=DEFAULT):
        share, inner = sphere.dot(x, u), lambda each: each + BIAS
        return share + sum(scale(y) for y in inner(u)) + LATE
"""
EAGER = {"register", "NAME", "Base", "float", "SHARE", "OFFSET", "ROWS", "Tensor", "DEFAULT"}


def test_free_names() -> None:
    """Not what functions and class bodies bind; annotations and what runs at once are needed at once."""
    found = [use for use in free_names(compile(CODE, "code", "exec", dont_inherit=True)) if use.name[:2] != "__"]
    assert {use.name for use in found if use.eager} == EAGER
    assert {use.name for use in found if not use.eager} == {"sphere", "BIAS", "sum", "scale", "LATE"}
    (dot,) = (use for use in found if use.name == "sphere")
    line = CODE.splitlines()[dot.line - 1]
    assert dot == Use("sphere", "dot", 8, line.index("sphere"), line.index(".dot"), False)
    assert all(CODE.splitlines()[use.line - 1][use.start : use.end] == use.name for use in found)
