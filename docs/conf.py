"""The site: `make docs`. pages.py makes its pages about schemes, commands and Python names from the code."""

from __future__ import annotations

import re
import shutil
import sys
import tomllib
from functools import partialmethod
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from pandas import DataFrame
from sphinx.application import Sphinx
from sphinx_gallery.sorting import FileNameSortKey

import geonorm
from geonorm.report.render import Figure

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "playground")]
import laws  # noqa: E402
import pages  # noqa: E402

REPOSITORY = tomllib.loads((HERE.parent / "pyproject.toml").read_text("utf-8"))["project"]["urls"]["Repository"]
project, author, copyright = "geonorm", "The geonorm developers", "The geonorm developers"
version = release = geonorm.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["design", "playground", "results/figures", "tutorials"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["config.cache"]
html_theme, html_title = "pydata_sphinx_theme", "geonorm"
html_theme_options = {
    "header_links_before_dropdown": 9,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "navigation_depth": 1,
    "secondary_sidebar_items": {"**": ["page-toc"], "generated/gallery": []},
}
html_sidebars: dict[str, list[str]] = {"index": [], "playground": [], "start": [], "project": []}
html_show_sourcelink = False
html_static_path, html_css_files = ["static"], ["site.css"]
html_math_renderer = "mathml"
autodoc_typehints, autodoc_member_order = "description", "bysource"
add_module_names = smartquotes = False
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


def link(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to what is no page of the site lead to the repository; below the page of results are those by question and
    the experiments, whose tables get a title."""
    root, copied = HERE.parent, page.startswith("generated/experiments/")
    here = ((root / page.removeprefix("generated/")) if copied else (HERE / page)).parent
    if copied and not source[0].startswith("# "):
        source[0] = f"# {here.name}: {Path(page).name}\n\n{source[0]}"
    patterns = ["results/*.md", "generated/experiments/README.md"] if page == "results" else ["*.md", "*/README.md"]
    below = [file for pattern in patterns for file in sorted(here.glob(pattern)) if file != here / "README.md"]
    if below and (page == "results" or (copied and page.endswith("/README"))):
        names = "\n".join(str(file.relative_to(here)) for file in below)
        source[0] += f"\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"

    def address(match: re.Match[str]) -> str:
        target, mark, anchor = match[1].partition("#")
        if "tutorials/plot_" in target:
            return f"](/generated/tutorials/{Path(target).stem}.rst)"
        path = (here / target).resolve()
        if not target or "://" in target or not path.is_relative_to(root):
            return match[0]
        path = readme if (readme := path / "README.md").is_file() else path
        if path.is_relative_to(root / "experiments") and path.suffix in (".md", ".svg"):
            return f"](/{'generated' if path.suffix == '.md' else '..'}/{path.relative_to(root)}{mark}{anchor})"
        if path.is_file() and path.is_relative_to(HERE) and not path.is_relative_to(HERE / "design"):
            return f"](/{path.relative_to(HERE)}{mark}{anchor})"
        kind = "tree" if path.is_dir() else "blob"
        return match[0] if path.suffix == ".cff" else f"]({REPOSITORY}/{kind}/main/{path.relative_to(root)})"

    source[0] = re.sub(r"\]\(([^)\s]+)\)", address, source[0])


MEND = {
    "<mo>&#x0007C;</mo>": '<mo lspace="0" rspace="0" stretchy="false">|</mo>',
    "<mi>&#x02032;</mi>": "<mo>&#x02032;</mo>",
    "<mo>&#x002D9;</mo></mover>": '<mo stretchy="false">&#x002D9;</mo></mover>',
}
"""Bars without the space of an operator; primes and dots as accents."""


def math(translator: Any, node: Any) -> None:
    """Mathematics as MathML, which browsers draw without a script."""
    display = "inline" if isinstance(node, nodes.math) else "block"
    text = convert(node.astext(), display=display)
    for old, new in MEND.items():
        text = text.replace(old, new)
    translator.body.append(text if display == "inline" else f'<div class="equation" tabindex="0">{text}</div>')
    raise nodes.SkipNode


def plain_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: what reStructuredText would take for markup is shown as it stands. What is indented
    after a blank line is code."""
    plain = (line if re.match("    |>>>|[.]{3}", line) else re.sub(r"([*_|\\])", r"\\\1", line) for line in lines)
    lines[:] = re.sub(r"(?m)(^\S.*\n\n)(?=    (?!>>>))", r"\1::\n\n", "\n".join(plain)).split("\n")


JUNK = re.compile(
    r' (?:aria-[a-z]+|role|class|pointer-events|font-family)="[^"]*"| (?:[xy]2="0"|(?:opacity|stroke-width)="1"'
    r'|stroke-dasharray="1,0"|text-anchor="start"|font-weight="normal"|transform="translate\(0,0\)")'
    r'|<path class="(?:fore|back)ground"[^>]*/>|<clipPath .*?</clipPath>'
)
"""What an image has no use for: names of its parts, empty frames, defaults."""
LIMIT = 100_000


def shrink(text: str) -> str:
    """An image below the limit: without junk, each frame once, and with every second point of its longest lines."""
    frames: dict[str, str] = {}
    for name, frame in re.findall(r'<clipPath id="([^"]*)">(.*?)</clipPath>', text):
        text = text.replace(f"url(#{name})", f"url(#{frames.setdefault(frame, f'c{len(frames)}')})")
    text = JUNK.sub("", text).replace("<svg", '<svg font-family="Arial, Helvetica, sans-serif"', 1)
    clips = "".join(f'<clipPath id="{name}">{frame}</clipPath>' for frame, name in frames.items())
    text = re.sub("<g><g>(<g clip.*?</g>)</g></g>", r"\1", text.replace("<defs>", f"<defs>{clips}"))
    text = re.sub(' (?:d|transform)="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), text)
    long = 4096
    while len(text) > LIMIT and long > 64:
        text = re.sub(rf'(?<= d=")M[^"Z]{{{long},}}', lambda m: re.sub("(L[^L]*)L[^L]*(?=L)", r"\1", m[0]), text)
        long //= 2
    return text


def finish(app: Sphinx, error: Exception | None) -> None:
    if not error and app.builder.name == "html":
        there = Path(app.outdir) / "playground"
        ignore = shutil.ignore_patterns("*.py", "__pycache__")
        shutil.copytree(HERE / "playground", there, dirs_exist_ok=True, ignore=ignore)
        (there / "laws.js").write_text(laws.script(), encoding="utf-8")
        for image in (Path(app.outdir) / "_images").glob("*.svg"):
            if image.stat().st_size > LIMIT:
                image.write_text(shrink(image.read_text("utf-8")), encoding="utf-8")


def setup(app: Sphinx) -> None:
    pages.write_all()
    app.add_html_math_renderer("mathml", (math, None), (math, None))
    app.connect("source-read", link)
    app.connect("autodoc-process-docstring", plain_docstring)
    app.connect("build-finished", finish)
