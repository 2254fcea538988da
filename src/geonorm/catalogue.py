"""Text about schemes, generated from the registry: tables for the terminal, JSON, and docs/schemes.md."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any, Literal, get_origin, get_type_hints

from .schemes import Scheme, find, names, parse
from .schemes.parse import described, format_value, options, takes_scheme


def entry(name: str) -> dict[str, Any]:
    """Everything the registry knows about a scheme. ConfigError with the nearest name if there is none."""
    scheme = parse(name)
    cls = type(scheme)
    return {
        "name": name,
        "title": (cls.__doc__ or "").strip().splitlines()[0],
        "equation": cls.equation,
        "source": cls.source,
        "streams": scheme.streams,
        "planar": scheme.planar,
        "fields": {
            f.name: {"default": plain(getattr(scheme, f.name)), "values": values(cls, f.name)} for f in fields(cls)
        },
        "own_recipe": scheme.recipe(),
    }


def values(cls: type[Scheme], name: str) -> str:
    hint = get_type_hints(cls)[name]
    if takes_scheme(hint):
        return "a scheme"
    return described(options(hint)) if get_origin(hint) is not Literal else described((hint,))


def plain(value: Any) -> str | float | int | bool:
    return format_value(value) if isinstance(value, (float, Scheme)) else value


def catalogue() -> str:
    """One line per scheme."""
    rows = [(name, find(name).equation) for name in names()]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:{width}}  {equation}" for name, equation in rows]
    notes = "x stream, u(y) output of the sub-layer that reads y, N norm, v part of u tangential to x, t = layer + 1"
    return "\n".join([*lines, "", notes, "geonorm schemes NAME: source, fields, values"])


def describe(name: str) -> str:
    """All about one scheme."""
    about = entry(name)
    lines = [name, f"  {about['title']}", f"  {about['equation']}", f"  {about['source']}", "  fields:"]
    for field, detail in about["fields"].items():
        lines.append(f"    {field} = {detail['default']}    {detail['values']}")
    if about["own_recipe"]:
        lines.append(f"  own recipe: {about['own_recipe']}")
    return "\n".join(lines)


def json_text(name: str | None) -> str:
    return json.dumps(entry(name) if name else [entry(each) for each in names()], indent=1)
