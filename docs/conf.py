"""The site: `make docs`. Pages about commands, settings, schemes and the Python names are made here from the code."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import MISSING
from functools import partialmethod
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from pandas import DataFrame
from sphinx.application import Sphinx
from sphinx_gallery.sorting import FileNameSortKey

import geonorm
from geonorm.cli import catalogue
from geonorm.cli.main import COMMANDS
from geonorm.report.charts import Figure
from geonorm.schemes.combine import Nested
from geonorm.settings import options

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "playground"), str(HERE.parent)]
import diagrams  # noqa: E402
import laws  # noqa: E402
from evidence.claims import Evidence  # noqa: E402
from evidence.pages import Book  # noqa: E402

CLAIMS = Book(Evidence(HERE.parent))

REPOSITORY = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
project, author, copyright = "geonorm", "The geonorm developers", "The geonorm developers"
version = release = geonorm.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["design", "playground", "results/figures", "tutorials"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]
html_theme, html_title = "pydata_sphinx_theme", "geonorm"
html_theme_options = {
    "header_links_before_dropdown": 9,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
}
html_sidebars: dict[str, list[str]] = {"index": [], "playground": [], "start": [], "project": []}
html_show_sourcelink = False
html_static_path, html_css_files = ["static"], ["site.css"]
templates_path: list[str] = []
html_math_renderer = "mathml"
autodoc_typehints, autodoc_member_order = "description", "bysource"
add_module_names = False
# what a tutorial's last expression shows: a frame or a figure as notebooks show it
sphinx_gallery_conf = {
    "examples_dirs": "tutorials",
    "gallery_dirs": "generated/tutorials",
    "filename_pattern": "/plot_",
    "within_subsection_order": FileNameSortKey,
    "capture_repr": ("_repr_html_", "__str__"),
    "image_scrapers": (),
    "min_reported_time": 10**9,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
}
Figure._repr_html_ = Figure._repr_svg_  # type: ignore[attr-defined]
DataFrame._repr_html_ = partialmethod(DataFrame.to_html, index=False, border=0)


def write(name: str, text: str) -> None:
    """A generated page. One that is already there with the same text is left alone, so that a second build is short."""
    path = HERE / "generated" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text("utf-8") != text:
        path.write_text(text, encoding="utf-8")


def cell(text: Any) -> str:
    return " ".join(str(text).replace("|", "\\|").split())


def command_page(command: str) -> Iterator[str]:
    """What a command does, its examples and all its options."""
    kind = COMMANDS[command]
    yield f"# geonorm {command}\n\n{' '.join((kind.__doc__ or '').split())}\n"
    if kind.examples:
        yield "```\n" + "\n".join(kind.examples) + "\n```\n"
    yield "| option | default | meaning |\n| --- | --- | --- |"
    for option in options(kind).values():
        default = "must be given" if option.default is MISSING else f"`{cell(option.default)}`"
        yield f"| `{option.flag}` | {default} | {cell(option.text)} |"


def gallery() -> Iterator[str]:
    """A card for each scheme: its block diagram and its equation."""
    yield "# Schemes\n\n[Which scheme when](../schemes.md). In a diagram x is the hidden state, N a norm, + an"
    yield "addition, ↻ a turn of the token, ⊥ what is left of the output across x; weights: block 4 of 12.\n"
    yield "::::{grid} 2 3 4 4\n:gutter: 3\n"
    for name in geonorm.names():
        yield f":::{{grid-item-card}} {name}\n:link: schemes/{name}\n:link-type: doc"
        if name in DRAWN:
            yield f":img-top: diagrams/{name}.svg\n:img-alt: Block diagram of {name}\n:class-img-top: dark-light"
        yield f"\n`{catalogue.look_up(name)['equation']}`\n:::\n"
    yield "::::\n\n```{toctree}\n:hidden:\n\n../schemes"
    yield from (f"schemes/{name}" for name in geonorm.names())
    yield "```"


DRAWN = [name for name in geonorm.names() if not isinstance(geonorm.parse(name), Nested)]
"""Schemes with a diagram: combinators show that of what they combine."""


def scheme_page(name: str) -> Iterator[str]:
    filled = "\n".join(line.text for line in CLAIMS.blocks(catalogue.section(name)))
    text = re.sub(r"\]\((figures/|results/|theory)", r"](../../\1", filled)
    yield f"# {name}\n"
    if name in DRAWN:
        write(f"diagrams/{name}.svg", diagrams.diagram(geonorm.parse(name)))
        yield f"```{{image}} ../diagrams/{name}.svg\n:class: dark-light\n:width: 230px\n:align: right"
        yield f":alt: Block diagram of {name}\n```"
    yield text.partition("\n")[2]


def pages() -> None:
    """Writes the pages that are made from the code."""
    write("gallery.md", "\n".join(gallery()) + "\n")
    for name in geonorm.names():
        write(f"schemes/{name}.md", "\n".join(scheme_page(name)))
    for command in COMMANDS:
        write(f"commands/{command.replace(' ', '-')}.md", "\n".join(command_page(command)) + "\n")
    for name in geonorm.PUBLIC:
        kind = "class" if isinstance(getattr(geonorm, name), type) else "function"
        members = "\n   :members:" if kind == "class" else ""
        write(f"python/{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. auto{kind}:: geonorm.{name}{members}\n")


def link(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to what is no page of the site lead to the repository; below the page of results are those by question."""
    here = (HERE / page).parent
    if page == "results":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```\n"

    def address(match: re.Match[str]) -> str:
        target = match[1].partition("#")[0]
        if "tutorials/plot_" in target:
            return f"](/generated/tutorials/{Path(target).stem}.rst)"
        path = (here / target).resolve()
        if not target or "://" in target or not path.is_relative_to(HERE.parent):
            return match[0]
        inside = path.is_relative_to(HERE) and not path.is_relative_to(HERE / "design") and path.is_file()
        return match[0] if inside else f"]({REPOSITORY}/{path.relative_to(HERE.parent)})"

    source[0] = re.sub(r"\]\(([^)\s]+)\)", address, source[0])


def math(translator: Any, node: Any) -> None:
    """Mathematics as MathML, which browsers draw without a script."""
    from docutils import nodes

    display = "inline" if isinstance(node, nodes.math) else "block"
    translator.body.append(convert(node.astext(), display=display))
    raise nodes.SkipNode


def plain_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: what reStructuredText would take for markup is shown as it stands."""
    lines[:] = [
        re.sub(r"([*_|\\])", r"\\\1", line) if not line.lstrip().startswith((">>>", "...")) else line for line in lines
    ]


def finish(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.name == "html":
        there = Path(app.outdir) / "playground"
        shutil.copytree(
            HERE / "playground", there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__")
        )
        (there / "laws.js").write_text(laws.script(), encoding="utf-8")


def setup(app: Sphinx) -> None:
    pages()
    app.add_html_math_renderer("mathml", (math, None), (math, None))
    app.connect("source-read", link)
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("build-finished", finish)
