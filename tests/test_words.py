"""The pages by hand: how many words they have, how long sentences and cells are, and which words they do without."""

import re
from pathlib import Path

from .rows import each

ROOT = Path(__file__).parents[1]
GENERATED = ("<!-- Written by `python -m evidence build`", "<!-- from here on: geonorm schemes")
WORDS = 25_000
"""The most that the pages in docs/ may have, generated ones apart."""
NOT_OURS = re.compile(
    r"\b(octaves?|ceilings?|twins?|trunks?|site-tokens?|(?:residual|clamped) sites?|at length|sphere entry"
    r"|through a norm|raw (?:entry|embedding|geonorm|pre-norm|rule)|\w+ less \w+norm)\b",
    re.IGNORECASE,
)
"""Words of our own where the field has one: factor 2, clamp, paired run, shared prefix, sub-layer, embedding norm."""


def by_hand(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return min((text.partition(mark)[0] for mark in GENERATED), key=len)


PAGES = {
    str(page.relative_to(ROOT)): by_hand(page)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if not {"build", "generated"} & {*page.relative_to(ROOT).parts}
}


def count(text: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def plain(page: str) -> str:
    """A page without blocks of code, addresses and tags; a name in code, a formula or a claim is one word."""
    text = re.sub(r"(?ms)^ *```.*?^ *```|^:.*?$|^#+ ", "\n\n", PAGES.get(page) or (ROOT / page).read_text("utf-8"))
    text = re.sub(r"(?s)<!-- claim .*?<!-- / -->|`[^`]*`|\[\d{3}\]\([^)]*\)", "it", text)
    text = re.sub(r"(?s)\$\$.*?\$\$|\$[^$]*\$", "it", text)
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"<[^>]*>", "", text))


def test_the_pages_are_short() -> None:
    assert sum(count(plain(page)) for page in PAGES if page != "README.md") <= WORDS


@each("page", PAGES)
def test_sentences_and_cells_are_short(page: str) -> None:
    """A sentence: 30 words, two numbers; a cell: 15 words."""
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n|\n(?=\s*(?:- |\||\d+\. ))", plain(page))]
    cells = [cell for block in blocks if block.startswith("|") for cell in block.split(" | ")]
    texts = [re.sub(r"^\d+\. ", "", block) for block in blocks if not block.startswith("|")]
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=[.!?])[*)]*\s+", text)]
    assert not [cell for cell in cells if count(cell) > 15]
    assert not [sentence for sentence in sentences if count(sentence) > 30]
    assert not [sentence for sentence in sentences if len(re.findall(r"(?<![\w.])[\d.,]*\d", sentence)) > 2]
    assert not NOT_OURS.findall(plain(page))
    assert not re.search(r"(?m)^\|(?:.*\|)? +\|.*\n\| ?-", PAGES[page]), "each column has a title"


def test_code_and_experiments_do_without_our_own_words() -> None:
    measured = {ROOT / "src/geonorm/bench/candidates.py"}  # its labels stand in results on record
    files = {*(ROOT / "experiments").rglob("README.md"), *(ROOT / "src").rglob("*.py")} - measured
    assert not {str(file): words for file in files if (words := NOT_OURS.findall(plain(str(file))))}
