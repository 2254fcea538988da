"""What differs from the runs on record: claims, sentences, pages, figures, predictions. A line each, with the claim."""

import difflib
import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .claims import ROOT, ClaimError, Evidence, plain, same
from .figures import charts
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


def misread(evidence: Evidence) -> Iterator[str]:
    """Claims whose status in claims.yaml is not the verdict of the runs, and results.json where it is another."""
    stored = json.loads((evidence.root / "evidence" / "results.json").read_text("utf-8"))
    for kind, rows in (("claims", evidence.results), ("pools", evidence.pools)):
        words = evidence.file[kind]
        for name in dict.fromkeys([*rows, *stored[kind]]):
            if name not in rows or name not in stored[kind]:
                yield f"claim {name}: in one of claims.yaml and results.json alone"
                continue
            if words[name]["status"] != rows[name]["verdict"]:
                yield f"claim {name}: claims.yaml says {words[name]['status']}, its runs {rows[name]['verdict']}"
            new, old = plain(rows[name]), stored[kind][name]
            for key in [key for key in new if key not in old or not same(new[key], old[key])][:1]:
                yield f"claim {name}: {key} is {old.get(key)} in results.json, {new[key]} by its runs"
    advice = [{"file": "docs/schemes.md", "text": f"| {row['want']} |", **row} for row in evidence.file["which"]]
    for words in [*evidence.file["sentences"], *advice]:
        if words["text"] not in (evidence.root / words["file"]).read_text("utf-8"):
            yield f"claim {', '.join(words['claims'])}: {words['file']} no longer says {words['text']!r}"
        for name, word in words["claims"].items():
            verdict = (evidence.results | evidence.pools)[name]["verdict"]
            if verdict != word:
                yield f"claim {name} is {verdict}: read again what {words['file']} says: {words['text']!r}"


def unregistered(evidence: Evidence) -> Iterator[str]:
    """Predictions whose commit, as claims.yaml names it, is not there or has the runs that decide them. Nothing where
    the history is not there: in an archive, or in a clone that has no old commits."""

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(evidence.root), *words], capture_output=True, text=True).stdout.strip()

    if git("rev-parse", "--show-prefix", "--is-shallow-repository") != "false":
        return
    known: dict[tuple[str, str], str] = {}
    for name, commit in evidence.registered.items():
        claim = evidence.claims.get(name)
        if not claim:
            continue
        claim = evidence.claims[claim.change[0]] if claim.change else claim
        place = evidence.place(claim)
        path = f"experiments/{place.experiment}"
        if not git("merge-base", commit, "HEAD").startswith(commit):
            yield f"claim {name}: the history has no commit {commit}"
        if (commit, path) not in known:
            known[commit, path] = git("show", f"{commit}:{path}/{place.results}")
        if all(any(f'"{run}"' in known[commit, path] for run in arm.runs) for arm in evidence.arms(claim)):
            yield f"claim {name}: commit {commit} has runs of both sides, so that it predicts nothing"


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
        problems = [*misread(evidence), *unregistered(evidence)]
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
        drawn = {"data": digest(json.dumps(plain(charts(book, key)))), "file": digest(file.read_text("utf-8"))}
        if drawn != stored.get(key):
            problems.append(f"{file.name}: the figure of question {key} is not that of its claims")
    return problems
