"""python -m evidence build | check

build computes every claim from the runs on record and writes evidence/results.json, the pages of docs/results, their
figures, and what stands between marks (<!-- claim NAME:FORM --> ... <!-- / -->) in other pages. check compares all of
that with the runs and names each claim that differs.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from geonorm.report.charts import Figure

from .claims import ROOT, ClaimError, Evidence, plain, same, unregistered
from .pages import BLOCK, Book, Line


def marked_pages(root: Path) -> Iterator[Path]:
    """Pages by hand in which claims stand."""
    for pattern in ("*.md", "docs/**/*.md", "experiments/**/README.md"):
        pages = (page for page in sorted(root.glob(pattern)) if "generated" not in page.parts)
        yield from (page for page in pages if BLOCK.search(page.read_text("utf-8")))


def texts(book: Book, root: Path) -> dict[str, list[Line]]:
    """By path, the lines that should stand there."""
    marked = {str(page.relative_to(root)): book.blocks(page.read_text("utf-8")) for page in marked_pages(root)}
    return marked | {path: [*lines, Line("")] for path, lines in book.pages().items()}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def build(root: Path = ROOT) -> None:
    evidence = Evidence(root)
    book = Book(evidence)
    for path, lines in texts(book, root).items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("\n".join(line.text for line in lines), "utf-8")
    figures = {}
    (root / "docs" / "results" / "figures").mkdir(exist_ok=True)
    for key in evidence.file["questions"]:
        spec, file = book.charts(key), root / "docs" / "results" / "figures" / f"{key}.svg"
        Figure(spec).save(file)
        figures[key] = {"data": digest(json.dumps(plain(spec))), "file": digest(file.read_text("utf-8"))}
    results = {"claims": plain(evidence.results), "pools": plain(evidence.pools), "figures": figures}
    (root / "evidence" / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


def changed(evidence: Evidence) -> Iterator[str]:
    """Where a claim cannot be computed: all whose pairs are not those of results.json."""
    stored = json.loads((evidence.root / "evidence" / "results.json").read_text("utf-8"))["claims"]
    for name, claim in evidence.claims.items():
        try:
            if not same(plain(evidence.compare(claim)["pairs"]), stored.get(name, {}).get("pairs")):
                yield f"claim {name}: its pairs are not those of results.json"
        except (ClaimError, KeyError) as error:
            yield f"claim {error}"


def check(root: Path = ROOT) -> list[str]:
    """What differs from the runs on record, a line each."""
    evidence = Evidence(root)
    try:
        problems = [*evidence.problems(), *unregistered(evidence)]
        book = Book(evidence)
    except (ClaimError, KeyError) as error:
        return [f"claim {error}", *changed(evidence)]
    for path, lines in texts(book, root).items():
        new, old = [line.text for line in lines], (root / path).read_text("utf-8").split("\n")
        for kind, first, last, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if kind != "equal":
                names = ", ".join(dict.fromkeys(name for line in lines[start:end] for name in line.claims))
                stands, should = " ".join(old[first:last]), " ".join(new[start:end])
                problems.append(f"{path}:{first + 1}: claim {names or '–'}: {stands!r} is not {should!r}")
    stored = json.loads((root / "evidence" / "results.json").read_text("utf-8"))["figures"]
    for key in evidence.file["questions"]:
        file = root / "docs" / "results" / "figures" / f"{key}.svg"
        drawn = {"data": digest(json.dumps(plain(book.charts(key)))), "file": digest(file.read_text("utf-8"))}
        if drawn != stored.get(key):
            problems.append(f"{file.name}: the figure of question {key} is not that of its claims")
    return problems


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        build()
    elif sys.argv[1:] == ["check"]:
        problems = check()
        print("\n".join(problems) or "every claim is what its runs give")
        sys.exit(bool(problems))
    else:
        sys.exit(__doc__)
