"""The equation of a scheme, plain text in its definition, as LaTeX."""

from __future__ import annotations

import re

NAMED = {"alpha", "beta", "pi", "cos", "sin", "tanh", "exp", "min", "sum"}
"""What LaTeX calls by the same name."""
WORD = r"(?!sqrt\b)[A-Za-z]{2,}(?:-[a-z]+)?"
WORDS = rf"(?<!_)\b{WORD}(?:(?: a)? {WORD}\b(?![(_]))*"
STEPS = (
    (r"(?<![\w.])([a-z])(\d)\b", r"\1_{\2}"),
    (r"_([A-Za-z]{2,})", r"_{\\text{\1}}"),
    (r"\^\(([^()]*)\)", r"^{\1}"),
    (r"sqrt\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}"),
    (r"<([^<>=]*)>", r"\\langle \1\\rangle "),
    (r"<=", r"\\le "),
    (r"\.(?!\d)", r"\\cdot "),
)
"""Indices, powers, roots, products and places, in this order."""


def latex(text: str) -> str:
    """Words stand upright, as operators where a bracket or an index follows."""

    def word(match: re.Match[str]) -> str:
        if match[0] in NAMED:
            return rf"\{match[0]} "
        kind = "operatorname{%s}" if match.string[match.end() :][:1] in ("(", "_") else "text{ %s }"
        return "\\" + kind % match[0]

    text = re.sub(WORDS, word, text.replace("`", ""))
    for old, new in STEPS:
        text = re.sub(old, new, text)
    return text


def clauses(equation: str) -> tuple[str, str]:
    """The rule, and what is said of its letters, LaTeX between dollars."""
    parts = re.split(r"([,;]) (?!\w[,;]|(?:[^()]|\([^()]*\))*\))", re.sub(r"(<\w+,) ", r"\1", equation))
    first, *rest = [re.sub(r"^\$\\text\{ ([^{}]*) \}\$$", r"\1", f"${latex(part)}$") for part in parts[::2]]
    rule = first if re.search(r"=|text\{|_k|^\w", first) else f"$x' = {first[1:]}"
    return rule, "".join(f"{mark} {part}" for mark, part in zip(parts[1::2], rest, strict=True))[2:]
