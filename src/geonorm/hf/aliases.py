"""Names in a piece of Python: what a statement defines, what it takes from outside."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dis import get_instructions
from types import CodeType
from typing import NamedTuple

from ..errors import ConfigError


class Use(NamedTuple):
    """A name that is bound nowhere around it: its line, from 1, and columns in bytes."""

    name: str
    attribute: str | None
    """What is asked of it: dot in sphere.dot."""
    line: int
    start: int
    end: int
    eager: bool
    """Whether it is needed when the definition is made, and not only when a function runs."""


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def defined(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    target = node.target if isinstance(node, ast.AnnAssign) else target
    return target.id if isinstance(target, ast.Name) else None


def free_names(code: CodeType, eager: bool = True) -> Iterator[Use]:
    """As the compiler sees them, in functions inside too. The code is compiled without annotations as text."""
    if code.co_flags & inspect.CO_OPTIMIZED:  # a function; what is in <brackets> is a comprehension, which runs at once
        eager = eager and code.co_name.startswith("<") and code.co_name not in ("<lambda>", "<genexpr>")
    steps = list(get_instructions(code))
    own = {step.argval for step in steps if step.opname == "STORE_NAME"} if code.co_name != "<module>" else set()
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval not in own and step.positions:
            asked = after.argval if after is not None and after.opname in ("LOAD_ATTR", "LOAD_METHOD") else None
            line, _, start, end = step.positions
            if line is None or start is None or end is None:
                raise ConfigError("--remote-code needs Python's columns: unset PYTHONNODEBUGRANGES")
            yield Use(step.argval, asked, line, start, end, eager)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from free_names(inner, eager)
