"""Pages that are made from the code when the site is built: schemes, commands and their settings, Python names."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import transformers

import geonorm
from geonorm.cli.catalogue import DEPTH, DIM, format_motion, format_theory, join_pairs, look_up
from geonorm.cli.main import COMMANDS
from geonorm.cli.pictures import draw_schemes
from geonorm.hf.register import read_rules
from geonorm.report.charts import Figure
from geonorm.schemes import find
from geonorm.schemes.combine import Nested
from geonorm.settings import options

HERE = Path(__file__).parent
PLACE = HERE / "generated"
sys.path[:0] = [str(HERE), str(HERE.parent)]
import charts  # noqa: E402
import diagrams  # noqa: E402
from evidence.claims import Evidence  # noqa: E402
from evidence.pages import Book  # noqa: E402

DRAWN = [name for name in geonorm.names() if not isinstance(geonorm.parse(name), Nested)]
"""Schemes with a diagram: combinators show that of what they combine."""
LONG = re.compile(r"^(?:no tiny \S+|\S+ \(\w+\)): |; seen.*|\. .*| neither in <.*| \(\w+Error.*")


def write(name: str, text: str) -> None:
    """A page. One that is already there with the same text is left alone, so that a second build is short."""
    path = PLACE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_all() -> None:
    claims = Book(Evidence(HERE.parent))
    write("gallery.md", gallery())
    if not (PLACE / "register.md").exists():  # half a minute
        write("register.md", "\n".join(register()) + "\n")
    draw_schemes(None, PLACE / "pictures")
    for name, draw in charts.FIGURES.items():
        path = PLACE / "figures" / f"{name}.svg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Figure(draw()).save(path)
    for name in geonorm.names():
        if name in DRAWN:
            write(f"diagrams/{name}.svg", diagrams.diagram(geonorm.parse(name)))
        page = "\n".join(scheme_page(name, look_up(name)))
        filled = "\n".join(line.text for line in claims.blocks(page))
        write(f"schemes/{name}.md", filled.replace("](results/", "](../../results/"))
    for command in COMMANDS:
        write(f"commands/{command.replace(' ', '-')}.md", "\n".join(command_page(command)) + "\n")
    for name in geonorm.PUBLIC:
        kind = "class" if isinstance(getattr(geonorm, name), type) else "function"
        members = "\n   :members:" if kind == "class" else ""
        write(f"python/{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. auto{kind}:: geonorm.{name}{members}\n")


def gallery() -> str:
    """A card for each scheme: its block diagram and its equation."""
    cards = []
    for name in geonorm.names():
        card = [f":::{{grid-item-card}} {name}", f":link: schemes/{name}", ":link-type: doc"]
        if name in DRAWN:
            card += [
                f":img-top: diagrams/{name}.svg",
                f":img-alt: Block diagram of {name}",
                ":class-img-top: dark-light",
            ]
        note = ", without embedding norm" * (getattr(find(name), "entry", "") == "embedding")
        cards += [*card, f"\n`{look_up(name)['equation'].replace('`', '')}`{note}", ":::"]
    text = (
        "In a diagram x is the hidden state, N a norm, + an addition, ↻ a turn of the token, ⊥ what is left of the "
        "output across x; weights are those of block 4 of 12."
    )
    pages = [f"schemes/{name}" for name in geonorm.names()]
    tree = ["```{toctree}", ":hidden:", "", "../schemes", "register", *pages, "```", ""]
    start = [
        "# Schemes",
        "",
        f"[Which scheme when](../schemes.md) · [who ships what](register.md). {text}",
        "",
        "::::{grid} 2 3 4 4",
        ":gutter: 3",
    ]
    family = ["## Family tree", "", "```{raw} html", f'<div class="family">{diagrams.tree()}</div>', "```", ""]
    return "\n".join([*start, *cards, "::::", "", *family, *tree])


def register() -> Iterator[str]:
    """The rules of the causal families of transformers, the rarest first, and why the others are refused."""
    transformers.logging.set_verbosity_error()
    rules = read_rules([], lambda *_: None)
    known = defaultdict(list)
    for row in rules:
        if "scheme" in row:
            known[row["scheme"], row["equation"]].append(row["model"])
    count = sum(map(len, known.values()))
    yield "# Who ships what\n"
    yield f"The rule of {count} of {len(rules)} causal families of transformers {transformers.__version__}, each"
    yield "verified on the numbers of a tiny model. `geonorm register FAMILY` shows its angles by sub-layer; with a"
    yield "checkpoint in place of a family it reads the learned part, without loading the model.\n"
    rows = sorted(known.items(), key=lambda item: len(item[1]))
    shipped = [(f"`{rule}`", step, ", ".join(who), geonorm.parse(rule).about.shipped) for (rule, step), who in rows]
    yield from table(("rule", "one step", "families", "models of this scheme"), shipped)
    refused = [(row["model"], LONG.sub("", row["refused"])) for row in rules if "refused" in row]
    yield from ("\n````{dropdown} Not recognised by its code alone\n", *table(("family", "why"), refused), "````")


def scheme_page(name: str, about: Mapping[str, Any]) -> Iterator[str]:
    """A scheme: diagram, equation, how it moves a token, source, law, claims, fields."""
    yield f"# {name}\n"
    if name in DRAWN:
        yield f"```{{image}} ../diagrams/{name}.svg\n:class: dark-light\n:width: 230px\n:align: right"
        yield f":alt: Block diagram of {name}\n```\n"
    yield f"```\n{about['equation']}\n```\n"
    yield " ".join((find(name).__doc__ or "").partition(">>>")[0].split()) + "\n"
    yield f"![How {name} moves a token](../pictures/{name}.svg)\n"
    scalars = "; ".join(f"`{key}` {value}" for key, value in about["initial_scalars"].items())
    std, recipe = join_pairs(about["initial_std"]), join_pairs(about["own_recipe"])
    for title, text in {
        "Source": about["source"],
        "Reported": about["claim"].rstrip("."),
        "Checked against": about["checked"] or "nothing yet",
        "Shipped in": about["shipped"],
        "Direction and radius": format_motion(about["motion"]),
        "Theory ([derived](../../theory.md))": about["theory"] and format_theory(about["theory"]),
        f"Initial standard deviation over the base, block 2 of {DEPTH}": std and f"{std}; others 1",
        f"Learned vectors and scalars, initial value (shape at width {DIM})": scalars,
        "Own recipe": recipe,
    }.items():
        if text:
            yield f"**{title}.** {text}.\n"
    yield f"<!-- claim scheme:{name} --><!-- / -->\n"
    rows = [
        (f"`{key}`", detail["default"], detail["values"], detail["meaning"]) for key, detail in about["fields"].items()
    ]
    yield from table(("field", "default", "values", "meaning"), rows) if rows else ()


def command_page(command: str) -> Iterator[str]:
    """What a command does, its examples and all its options."""
    kind = COMMANDS[command]
    about = re.sub(r"docs/([\w-]+)\.md", r"[\1](../../\1.md)", " ".join((kind.__doc__ or "").split()))
    yield f"# geonorm {command}\n\n{about}\n"
    yield "```\n" + "\n".join(kind.examples) + "\n```\n"
    rows = [
        (f"`{option.flag}`", "must be given" if option.default is MISSING else f"`{option.default}`", option.text)
        for option in options(kind).values()
    ]
    yield from table(("option", "default", "meaning"), rows)


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield from ("| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles))
    for row in rows:
        yield "| " + " | ".join(" ".join(re.sub(r"\|", r"\\|", str(value)).split()) for value in row) + " |"
