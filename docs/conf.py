"""The site: `make docs`. Pages about commands, settings, schemes and the Python names are made here from the code."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import MISSING
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx_gallery.sorting import FileNameSortKey

import geonorm
from geonorm.cli import catalogue
from geonorm.cli.main import COMMANDS
from geonorm.report.charts import Figure
from geonorm.settings import options

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "playground"))
import laws  # noqa: E402

REPOSITORY = "https://example.org/geonorm"  # the one place where the project's address stands
project, author, copyright = "geonorm", "The geonorm developers", "The geonorm developers"
version = release = geonorm.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx_gallery.gen_gallery",
    "sphinx_design",
    "sphinx_copybutton",
]
exclude_patterns = ["design", "playground", "results/figures", "tutorials/*.md"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]
html_theme, html_title = "pydata_sphinx_theme", "geonorm"
html_theme_options = {"header_links_before_dropdown": 9, "show_toc_level": 2, "navigation_with_keys": False, "secondary_sidebar_items": ["page-toc"]}
html_sidebars = {"index": []}
html_show_sourcelink = False
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
    yield "| option | default | |\n| --- | --- | --- |"
    for option in options(kind).values():
        default = "must be given" if option.default is MISSING else f"`{cell(option.default)}`"
        yield f"| `{option.flag}` | {default} | {cell(option.text)} |"


def gallery() -> Iterator[str]:
    """A card for each scheme: its equation and how it moves a token."""
    yield "# Schemes\n\n[Which scheme when](../schemes.md). Each picture shows how one step moves a token x for updates u of"
    yield "several lengths.\n\n::::{grid} 1 2 3 3\n:gutter: 3\n"
    for name in geonorm.names():
        about = catalogue.look_up(name)
        yield f":::{{grid-item-card}} {name}\n:link: schemes/{name}\n:link-type: doc\n:img-bottom: ../figures/schemes/{name}.svg"
        yield f":img-alt: How {name} moves a token\n\n`{about['equation']}`\n:::\n"
    yield "::::\n\n```{toctree}\n:hidden:\n\n../schemes"
    yield from (f"schemes/{name}" for name in geonorm.names())
    yield "```"


def pages() -> None:
    """Writes the pages that are made from the code."""
    write("gallery.md", "\n".join(gallery()) + "\n")
    for name in geonorm.names():
        text = catalogue.section(name).replace("figures/schemes", "../../figures/schemes").replace("](theory", "](../../theory")
        write(f"schemes/{name}.md", re.sub(r"^## ", "# ", text, count=1))
    for command in COMMANDS:
        write(f"commands/{command.replace(' ', '-')}.md", "\n".join(command_page(command)) + "\n")
    for name in geonorm.PUBLIC:
        kind = "class" if isinstance(getattr(geonorm, name), type) else "function"
        members = "\n   :members:" if kind == "class" else ""
        write(f"python/{name}.rst", f"{name}\n{'=' * len(name)}\n\n.. auto{kind}:: geonorm.{name}{members}\n")


def link(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to what is no page of the site lead to the repository; the page of results has those by question below it."""
    here = (HERE / page).parent
    if page == "results":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```\n"

    def address(match: re.Match[str]) -> str:
        target = match[1].partition("#")[0]
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
    lines[:] = [re.sub(r"([*_|\\])", r"\\\1", line) if not line.lstrip().startswith((">>>", "...")) else line for line in lines]


def finish(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.name == "html":
        there = Path(app.outdir) / "playground"
        shutil.copytree(HERE / "playground", there, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
        (there / "laws.js").write_text(laws.script(), encoding="utf-8")


def setup(app: Sphinx) -> None:
    pages()
    app.add_html_math_renderer("mathml", (math, None), (math, None))
    app.connect("source-read", link)
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("build-finished", finish)
