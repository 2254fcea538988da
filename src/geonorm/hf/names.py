"""Names in a piece of Python: what a statement defines, what it takes from outside."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def defined(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def free_names(node: ast.AST, scopes: list[set[str]]) -> Iterator[ast.Name]:
    """Names below a node that no enclosing function binds; a class body binds its own statements' names only."""
    if isinstance(node, ast.Name):
        if not any(node.id in scope for scope in scopes):
            yield node
        return
    if isinstance(node, (ast.FunctionDef, ast.Lambda)):
        for child in [*getattr(node, "decorator_list", []), *signature(node)]:
            yield from free_names(child, scopes)
        inner = [*scopes, bound(node)]
        for child in node.body if isinstance(node.body, list) else [node.body]:
            yield from free_names(child, inner)
        return
    if isinstance(node, ast.ClassDef):
        for child in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            yield from free_names(child, scopes)
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef):
                yield from free_names(statement, scopes)
            else:
                yield from free_names(statement, [*scopes, {n for s in node.body if (n := defined(s))}])
        return
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        scopes = [*scopes, {n.id for g in node.generators for n in ast.walk(g.target) if isinstance(n, ast.Name)}]
    for child in ast.iter_child_nodes(node):
        yield from free_names(child, scopes)


def signature(node: ast.FunctionDef | ast.Lambda) -> Iterator[ast.AST]:
    """Defaults and types of the arguments and of the result: read outside the function."""
    a = node.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
    yield from (arg.annotation for arg in every if arg.annotation)
    yield from (value for value in [*a.defaults, *a.kw_defaults] if value)
    if isinstance(node, ast.FunctionDef) and node.returns:
        yield node.returns


def bound(node: ast.FunctionDef | ast.Lambda) -> set[str]:
    """Names that a function binds: arguments, assignments, definitions inside it."""
    a = node.args
    names = {arg.arg for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]}
    body = node.body if isinstance(node.body, list) else [node.body]
    for statement in body:
        for child in ast.walk(statement):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                names.add(child.id)
            elif isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                names.add(child.name)
            elif isinstance(child, ast.arg):
                names.add(child.arg)
            elif isinstance(child, ast.ExceptHandler) and child.name:
                names.add(child.name)
    return names
