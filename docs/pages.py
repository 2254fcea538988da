"""Pages that are made from the code when the site is built: schemes, commands and their settings, Python names."""

import inspect
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING
from pathlib import Path
from textwrap import dedent
from typing import Any

import transformers

import geonorm
from geonorm.cli.arguments import FOR_ALL
from geonorm.cli.catalogue import DEPTH, DIM, format_theory, join_pairs, look_up
from geonorm.cli.main import COMMANDS
from geonorm.cli.pictures import draw_schemes
from geonorm.hf.rules import read_rules
from geonorm.report.render import Figure
from geonorm.schemes import find
from geonorm.schemes.combine import Nested
from geonorm.settings import choices, options

HERE = Path(__file__).parent
PLACE = HERE / "generated"
sys.path[:0] = [str(HERE), str(HERE.parent)]
import charts  # noqa: E402
import diagrams  # noqa: E402
from equations import clauses  # noqa: E402
from evidence.claims import Evidence  # noqa: E402
from evidence.pages import Book  # noqa: E402

DRAWN = [name for name in geonorm.names() if not isinstance(geonorm.parse(name), Nested)]
"""Schemes with a diagram: combinators show that of what they combine."""
PEOPLE = {
    "beam": "Beam-501B", "deepseek_v4": "DeepSeek-V4", "glm5_next_text": "GLM-5.3-Flash", "hy_v4": "Hy4-preview",
    "inkling2_text": "Inkling-2", "muse_spark_text": "Muse-Spark", "zaya": "ZAYA1-8B", "qwen4_exp": "Qwen4-Exp",
    "glm_moe_dsa": "GLM-5", "mistral_large4_text": "Mistral Large 4",
}  # fmt: skip
"""Models of families that have another name."""
SYMBOLS = "x is the state, u what the sub-layer returns, v its part across x, N a norm, t the block (from 1) of L."
REASONS = {
    "no tiny|validator": "no small model could be built",
    "takes no ids alone": "needs more input than ids",
    "returns more": "blocks return a second value",
    "handed more|handed k|not computed": "sub-layers read more than x",
    "no sum|sum with|adds nothing": "its sums are not ours",
    "once each": "its blocks run in loops",
    "begins again": "the state restarts as a norm",
    "several kinds": "blocks of several schemes",
    "two sub-layers": "two MLPs in a block",
}
"""What a refusal says, in five words."""
RETURNED = """lab.load.Comparison lab.load.Run lab.load.Ladder lab.load.SavedStudy lab.probe.ProbeResult
dynamics.simulate.Simulation equality.Same"""
COSTS = {
    row.get("scheme", row.get("row")): "{:.2f} ({:.2f} to {:.2f})".format(*row["ratio"])
    for file in ("scheme", "stream")  # of two measurements the newer
    for row in json.loads((HERE.parent / "benchmarks" / "results" / f"{file}_cost.json").read_text("utf-8"))["rows"]
}
"""Time of a training step over that of Pre-Norm, by scheme."""


def write(name: str, text: str) -> None:
    """A page. One that is already there with the same text is left alone, so that a second build is short."""
    path = PLACE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")


def write_all() -> None:
    claims = Book(Evidence(HERE.parent))
    write("gallery.md", gallery())
    if not (PLACE / "register.json").exists():  # half a minute
        transformers.logging.set_verbosity_error()
        write("register.json", json.dumps(read_rules([], lambda *_: None)))
    write("register.md", "\n".join(register(json.loads((PLACE / "register.json").read_text("utf-8")))) + "\n")
    for file in (HERE.parent / "experiments").rglob("*.md"):
        write(str(file.relative_to(HERE.parent)), file.read_text("utf-8"))
    draw_schemes(None, PLACE / "pictures")
    for name, draw in charts.FIGURES.items():
        path = PLACE / "figures" / f"{name}.svg"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            Figure(draw()).save(path)
    for name in geonorm.names():
        if name in DRAWN:
            write(f"diagrams/{name}.svg", diagrams.diagram(geonorm.parse(name)))
        write(f"moves/{name}.svg", diagrams.moves(name))
        filled = "\n".join(line.text for line in claims.blocks("\n".join(scheme_page(name, look_up(name)))))
        write(f"schemes/{name}.md", filled.replace("](results/", "](../../results/"))
    for command in COMMANDS:
        write(f"commands/{command.replace(' ', '-')}.md", "\n".join(command_page(command)) + "\n")
    for name in geonorm.PUBLIC:
        kind = "class" if isinstance(getattr(geonorm, name), type) else "function"
        members = "\n   :members:" if kind == "class" and name != "DecoderConfig" else ""
        write(f"python/{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. auto{kind}:: geonorm.{name}{members}\n")
    blocks = [f".. autoclass:: geonorm.{name}\n   :members:\n   :inherited-members:\n\n" for name in RETURNED.split()]
    write("python/returned.rst", f"What functions return\n=====================\n\n{''.join(blocks)}")


CARD = """:::{{grid-item-card}} {name}
:link: schemes/{name}
:link-type: doc
{block}
{rule}{note}

![How {name} moves a token](moves/{name}.svg)

{year}
:::
"""
GALLERY = """# Schemes

[Which scheme when](../schemes.md) · [who ships what](register.md). Each card, top: the attention of block 4 of 12,
with state x, norm N, addition +, turn ↻, and ⊥, the output's part across x. Bottom: how block 1 moves a token, right
along x, up across it, for four lengths of the update; dotted: the sphere through x.

::::{{grid}} 1 2 3 3
:gutter: 3

{cards}
::::

## Family tree

```{{raw}} html
<div class="family">{tree}</div>
```

```{{toctree}}
:hidden:

../schemes
register
{pages}
```
"""


def gallery() -> str:
    """A card for each scheme: its block, its rule, how it moves a token, its year; then the family tree."""
    cards = []
    for name in geonorm.names():
        block = f":img-top: diagrams/{name}.svg\n:img-alt: Block diagram of {name}\n" if name in DRAWN else ""
        note = ", without embedding norm" * (getattr(find(name), "entry", "") == "embedding")
        rule, rest = clauses(find(name).about.equation)
        rule = rule.replace(" s ", " ") if rest == "$s = 1$" else rule
        rule = re.sub(r" ?\\text\{ ([^{}]*) \}", r"$ \1 $", rule).removesuffix(" $$")
        rule = re.sub(r" (?=\+ (?!(?:[^(){}]|\([^()]*\))*[)}]))", "$ ${}", rule.removeprefix("$$ "))
        cards.append(CARD.format(name=name, block=block, rule=rule, note=note, year=diagrams.year(name)))
    pages = "\n".join(f"schemes/{name}" for name in geonorm.names())
    return GALLERY.format(cards="".join(cards), tree=diagrams.tree(), pages=pages)


def register(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rules of the causal families of transformers, the rarest first, and why the others are refused."""
    groups, refused = defaultdict(list), []
    for row in rows:
        if "scheme" in row:
            groups[row["scheme"]].append(row)
        else:
            why = next(text for reason, text in REASONS.items() if re.search(reason, row["refused"]))
            refused.append((row["model"], why))
    yield "# Who ships what\n"
    yield f"The rule of {len(rows) - len(refused)} of {len(rows)} causal families of transformers"
    yield f"{transformers.__version__}, verified on numbers of tiny models. Angles are degrees by which a sub-layer"
    yield "turns the hidden state before training; *entry* is the embedding's share of the squared length at the end."
    yield "Embeddings are taken to have root mean square 1. Real ones mostly start shorter, so rules that norm only"
    yield "updates turn more at first, and *entry* is smaller. A span is over families. ~: updates as long as the"
    yield "embedding. All have `entry=embedding`: a norm inside an embedding, as BERT's, is no part of the rule."
    yield "`geonorm register MODEL` shows every sub-layer, of a checkpoint with what it learned.\n"
    lines = []
    for scheme, group in sorted(groups.items(), key=lambda item: len(item[1])):
        angles = ([row["sublayers"][place]["angle"] for row in group] for place in (0, -1))
        spans = [*map(span, angles), span([100 * row["entry"] for row in group])]
        who = ", ".join(PEOPLE.get(row["model"], row["model"]) for row in group)
        rule = scheme.replace("(entry=embedding)", "").replace("entry=embedding, ", "")
        link = f"[`{rule}`](schemes/{rule.partition('(')[0]}.md)"
        lines.append((link, *("~" * (not group[0]["unit"]) + text for text in spans), who))
    yield from table(("rule", "first sub-layer", "last", "entry, %", "models or families"), lines)
    yield from ("\n````{dropdown} Not recognised\n", *table(("family", "why"), refused), "````")


def span(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{end:.2g}" if end > 0.005 else "0" for end in (min(values), max(values))))


def code(kind: type) -> str:
    """What a scheme does to a token, or which of its parts it stands for, as its definition has it."""
    names = ("read", "terms", "write", "choose")
    own = next(each for each in map(vars, kind.__mro__) if each.keys() & {*names[1:]})
    return dedent("\n".join(inspect.getsource(own[name]) for name in names if name in own))


def bibtex(source: str) -> Iterator[str]:
    """An entry for each paper or repository of a source."""
    entry = r"(\w[\w.-]*(?: [\w.-]+){0,3}?),? (20\d\d)[^,;]*, (arXiv:)?([\w./-]+)"
    for author, year, arxiv, place in re.findall(entry, source.replace("et al.", "and others")):
        where = f"eprint = {{{place}}}, archiveprefix = {{arXiv}}" if arxiv else f"url = {{https://{place}}}"
        yield f"@misc{{{author.split()[0].lower()}{year},\n  author = {{{author}}}, year = {{{year}}},\n  {where}\n}}"


def scheme_page(name: str, about: Mapping[str, Any]) -> Iterator[str]:
    """A scheme: what it is, diagram, equation, code, source, fields, law, cost, parity, claims, who ships it."""
    kind, (rule, rest) = find(name), clauses(about["equation"])
    text = " ".join((kind.__doc__ or "").partition(">>>")[0].split())
    yield f"# {name}{' (scheme)' * (name == 'geonorm')}\n\n::::{{grid}} 1 1 2 2"
    if name in DRAWN:
        yield f":::{{grid-item}}\n:columns: 12 12 4 4\n![Block diagram of {name}](../diagrams/{name}.svg)\n:::"
    yield f":::{{grid-item}}\n:columns: 12 12 8 8\n\n{text}\n"
    rest = f"where {rest}" if rest.startswith("$") else rest
    yield (f"${rule}$" if "=" in rule else rule) + f"\n\n{rest}\n\n{SYMBOLS}\n:::\n::::\n"
    yield f"```python\n{code(kind)}```\n\n![How {name} moves a token](../pictures/{name}.svg)\n"
    yield f"**Source.** {about['source']}.\n\n:::{{dropdown}} BibTeX\n```"
    yield from (*bibtex(about["source"]), "```\n:::\n")
    rows = [(f"`{key}`", *([*field.values()])) for key, field in about["fields"].items()]
    yield from (*table(("field", "default", "values", "meaning"), rows), "") if rows else ()
    scalars = "; ".join(f"`{key}` {value}" for key, value in about["initial_scalars"].items())
    law = kind.about.lawless or "that of the schemes inside"
    std, recipe = join_pairs(about["initial_std"]), join_pairs(about["own_recipe"])
    facts = {
        "Law ([derived](../../theory.md))": format_theory(about["theory"]) if about["theory"] else f"none: {law}",
        f"Initial standard deviation over the base, block 2 of {DEPTH}": std and f"{std}; others 1",
        f"Learned vectors and scalars, initial value (shape at width {DIM})": scalars,
        "Own recipe": recipe,
        "[Cost](../../performance.md)": name in COSTS and f"{COSTS[name]} of a training step of `pre`, nano on a CPU",
        "[Parity](../../parity.md)": about["checked"] or "not checked against other code yet",
        "Reported by its source": about["claim"].rstrip("."),
    }
    yield from (f"**{title}.** {text}.\n" for title, text in facts.items() if text)
    yield f"<!-- claim scheme:{name} --><!-- / -->\n"
    yield f"**Models.** {about['shipped'] or 'none known'} ([who ships what](../register.md)).\n"


def command_page(command: str) -> Iterator[str]:
    """What a command does, its examples and all its options."""
    kind = COMMANDS[command]
    about = re.sub(r"docs/([\w-]+)\.md", r"[\1](../../\1.md)", " ".join((kind.__doc__ or "").split()))
    yield f"# geonorm {command}\n\n{about}\n"
    yield "```\n" + "\n".join(kind.examples) + "\n```\n"
    rows = [
        (f"`{option.name.upper() if option.name in kind.words else option.flag}`",
         "must be given" if option.default is MISSING else f"`{option.default}`" if option.default != "" else "",
         ", ".join(f"`{word}`" for word in choices(option.hint)), option.text)
        for option in (*options(kind).values(), *FOR_ALL)
    ]  # fmt: skip
    yield from table(("option", "default", "values", "meaning"), rows)


def table(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield from ("| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles))
    for row in rows:
        yield "| " + " | ".join(" ".join(re.sub(r"\|", r"\\|", str(value)).split()) for value in row) + " |"
