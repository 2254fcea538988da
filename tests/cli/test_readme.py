"""What the documents tell people to run, runs."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
import zstandard

from geonorm import __version__, names, parse
from geonorm.cli.arguments import read
from geonorm.cli.main import COMMANDS, main
from geonorm.schemes.combine import Nested

from ..rows import each

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
GUIDE, VISION = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("guide.md", "vision.md"))
PAGES_TEXT = "".join(path.read_text("utf-8") for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))))
SCRIPTS = sorted((ROOT / "experiments").glob("*/run.sh"))


BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README + GUIDE + VISION, re.DOTALL | re.MULTILINE)
PYTHON = [block for language, block in BLOCKS if language == "python"]
SHELL = [line for language, block in BLOCKS if not language for line in block.replace("\\\n", " ").splitlines()]
SMALL = {"--steps": ["4"], "--seeds": ["1"], "--lrs": ["6e-3"], "--time": ["2"], "--tokens": ["32"]}
TINY = (
    "--model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 300 "
    "--evaluation.tokens 256 --evaluation.trace_tokens 64 --runtime.tensorboard false --runtime.device cpu"
)
WITH = {"compare": TINY.split(), "probe": ["--device", "cpu"]}


def commands_of(text: str) -> list[list[str]]:
    """Words of every command of a text after `geonorm`, shell variables left as words."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = re.findall(rf"(?:^|-m )geonorm ((?:{'|'.join(COMMANDS)}) [^\n]+)", joined, re.MULTILINE)
    return [[word for word in shlex.split(line, comments=True) if word != "$@"] for line in lines]


@each("number", range(len(PYTHON)))
def test_a_python_block_runs_alone(number: int) -> None:
    exec(compile(PYTHON[number], "README.md", "exec"), {"__name__": "readme"})


def shrink(verb: str, words: list[str]) -> list[str]:
    """A command of the README at a tiny size: options in SMALL get other values, nothing is tuned, models that are no
    folder here (on the hub, then) are left out, comparisons train the smallest model."""
    groups: list[list[str]] = [[]]
    for word in [*words, *WITH.get(verb, ())]:
        if word.startswith("--"):
            groups.append([])
        groups[-1].append(word)
    models, *options = groups
    here = [str(path) for model in models for path in Path().glob(model)]
    cut = [[option[0], *SMALL[option[0]]] if SMALL.get(option[0]) else option for option in options]
    return here + [word for option in cut if option[0] != "--tune" for word in option]


def test_shell_blocks_run_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md"))]
    Path("my.txt").write_text("\n".join(texts), encoding="utf-8")
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    Path("my_corpus.jsonl.zst").write_bytes(zstandard.compress(lines.encode()))
    commands = [shlex.split(line) for line in SHELL if not line.startswith(("make ", "pip "))]
    assert [words[:2] for words in commands] == [
        ["geonorm", verb] for verb in "compare compare export generate simulate simulate probe".split()
    ]
    for _, verb, *words in commands:
        assert main([verb, *shrink(verb, words)]) == 0, words


@each("text", [PAGES_TEXT, *(script.read_text(encoding="utf-8") for script in SCRIPTS)])
def test_commands_are_valid(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands_of(text):
        verb = " ".join(words[: 1 + (words[0] == "bench")])
        if "--config" not in words or Path(words[words.index("--config") + 1]).exists():
            config: Any = read(COMMANDS[verb], f"geonorm {verb}", words[len(verb.split()) :])
            for scheme in getattr(config, "schemes", None) or ():
                assert "./" in scheme or parse(scheme)
    assert commands_of(text)


def test_where_the_tokenizers_of_the_configs_come_from_is_told() -> None:
    """docs/data.md has a command that writes every tokenizer file that a config names."""
    found = 0
    for path in (ROOT / "configs").glob("*.yaml"):
        name = (yaml.safe_load(path.read_text(encoding="utf-8")).get("tokens") or {}).get("tokenizer", "")
        if name.endswith(".json"):
            assert f"-o {name} " in (ROOT / "docs" / "data.md").read_text(encoding="utf-8"), path
            found += 1
    assert found


EVERY = {page for place in ("", "docs/**/", "experiments/**/") for page in ROOT.glob(f"{place}*.md")}
PAGES = sorted(page for page in EVERY if "generated" not in page.parts)  # those by `make docs`, which checks its links


def prose(page: Path) -> str:
    return re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What a link into a page may name: its headings as GitHub writes them, the second of a name with -1."""
    seen, found = Counter[str](), set[str]()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.strip().lower())
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@each("page", PAGES)
def test_links_point_at_files_and_their_headings(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists() or "generated" in there.parts, target
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), target


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make ([\w-]+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


PLAIN = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"<[^>]*>", "", prose(ROOT / "README.md")))
"""The README without code, tags and addresses."""


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 150
    before = PLAIN[: PLAIN.index("From a clone")]
    assert "## Install" in before and sum(bool(re.search(r"\w", word)) for word in before.split()) <= 120


def test_citations_have_the_version() -> None:
    for name in ("CITATION.cff", "docs/project.md"):
        assert re.search(rf"version[:= {{]+{re.escape(__version__)}\b", (ROOT / name).read_text("utf-8")), name


def test_the_number_of_schemes_is_right() -> None:
    """Those that are neither combinators nor wrappers of others."""
    schemes = [name for name in names() if not isinstance(parse(name), Nested)]
    assert f"geonorm has {len(schemes)} of them" in README


def test_which_scheme_when_is_words_and_links() -> None:
    page = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8")
    rows = page[page.index("| you want |") :].partition("\n<!--")[0].splitlines()[2:]
    assert 5 < len(rows) <= 8 and all(re.search(r"\]\([^)]+\) \|$", row) for row in rows)
    assert not [row for row in rows if re.search(r"\d", re.sub(r"\]\([^)]*\)", "]", row))]
