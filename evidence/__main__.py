"""python -m evidence build | check

build computes every claim from the runs on record and writes evidence/results.json, the pages of docs/results, their
figures, and what stands between marks (<!-- claim NAME:FORM --> ... <!-- / -->) in other pages. check compares all of
that with the runs and names each claim that differs.
"""

import json
import sys
from pathlib import Path

from geonorm.report.render import Figure

from .check import check, digest, texts
from .claims import ROOT, Evidence, plain
from .figures import charts
from .pages import Book


def build(root: Path = ROOT) -> None:
    evidence = Evidence(root)
    book = Book(evidence)
    for path, lines in texts(book, root).items():
        (root / path).parent.mkdir(exist_ok=True)
        (root / path).write_text("\n".join(line.text for line in lines), "utf-8")
    figures = {}
    (root / "docs" / "results" / "figures").mkdir(exist_ok=True)
    for key in evidence.file["questions"]:
        spec, file = charts(book, key), root / "docs" / "results" / "figures" / f"{key}.svg"
        Figure(spec).save(file)
        figures[key] = {"data": digest(json.dumps(plain(spec))), "file": digest(file.read_text("utf-8"))}
    results = {"claims": plain(evidence.results), "pools": plain(evidence.pools), "figures": figures}
    (root / "evidence" / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["build"]:
        build()
    elif sys.argv[1:] == ["check"]:
        problems = check()
        print("\n".join(problems) or "every claim is what its runs give")
        sys.exit(bool(problems))
    else:
        sys.exit(__doc__)
