"""Fifty changes to the evidence, each of which has to fail `make test` in a line that names the claim.

python tests/evidence/mutate.py makes them in a copy, one at a time: a sign flipped on a page, two claims swapped, a
verdict edited, a number changed in results.jsonl, a run deleted that a claim uses. `check` is what the test runs.
"""

import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from evidence.check import check  # noqa: E402
from evidence.claims import Evidence  # noqa: E402

Change = tuple[str, Path, Callable[[str], str], str]
"""A kind, a file, what becomes of its text, and the claim that has to be named; without one, any."""
WORDS = ("better", "worse", "not resolved")


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs" / "results").glob("*.md")), root / "docs" / "results.md"]


def replace_line(line: str, new: str) -> Callable[[str], str]:
    return lambda text: text.replace(line, new, 1)


def row_of(page: Path, draw: random.Random, pattern: str) -> str:
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ") and re.search(pattern, line)]
    return draw.choice(rows)


def changes(root: Path, each: int = 10) -> Iterator[Change]:
    draw = random.Random(0)
    evidence = Evidence(root)
    claims = root / "evidence" / "claims.yaml"
    text = claims.read_text("utf-8")
    table = [page for page in pages(root) if page.name not in ("geometry.md", "results.md", "negative.md")]
    for _ in range(each):
        page = draw.choice(table)
        line = row_of(page, draw, r"[+−]0\.\d+ \(")
        sign = re.search(r"[+−](?=0\.\d+ \()", line)
        assert sign
        new = line[: sign.start()] + ("−" if sign[0] == "+" else "+") + line[sign.end() :]
        yield "sign", page, replace_line(line, new), ""
    for _ in range(each):
        one, two = draw.sample([name for name, claim in evidence.claims.items() if claim.first], 2)
        lines = {
            name: next(row for row in text.splitlines() if row.strip().startswith((f"{name}: {{", f'"{name}": {{')))
            for name in (one, two)
        }
        bodies = {name: line.partition(": ")[2] for name, line in lines.items()}
        swapped = text.replace(lines[one], f'  "{one}": {bodies[two]}').replace(lines[two], f'  "{two}": {bodies[one]}')
        yield "swap", claims, lambda _, swapped=swapped: swapped, one
    for number in range(each):
        if number % 2:
            page = draw.choice(table)
            line = row_of(page, draw, rf"\| ({'|'.join(WORDS)}) \|")
            word = next(word for word in WORDS if f"| {word} |" in line)
            other = draw.choice([w for w in WORDS if w != word])
            yield "verdict", page, replace_line(line, line.replace(f"| {word} |", f"| {other} |")), ""
        else:
            name = draw.choice([name for name, claim in evidence.claims.items() if claim.status in WORDS])
            line = next(row for row in text.splitlines() if row.strip().startswith((f"{name}: {{", f'"{name}": {{')))
            status = evidence.claims[name].status
            other = draw.choice([word for word in WORDS if word != status])
            yield "verdict", claims, replace_line(line, line.replace(f"status: {status}", f"status: {other}")), name
    for kind in ("number", "run"):
        for _ in range(each):
            several = [claim for claim in evidence.claims.values() if claim.first and claim.measure == "val_loss"]
            claim = draw.choice(several)
            name = claim.name
            setting, (arm, other) = evidence.settings[claim.setting], evidence.arms(claim)
            seeds = evidence.results[name]["pairs"]
            shared = arm.losses.keys() & other.losses.keys()
            pair = draw.choice(sorted((p for p in shared if (p[1] if isinstance(p, tuple) else p) in seeds), key=str))
            path = root / "experiments" / setting.experiment / setting.results
            lines = path.read_text("utf-8").splitlines(keepends=True)
            row = next(
                r for r in map(json.loads, lines) if r.get("val_loss") == arm.losses[pair] and r["run"] in arm.runs
            )
            line = next(line for line in lines if json.loads(line)["run"] == row["run"])
            changed = json.dumps({**row, "val_loss": row["val_loss"] + draw.choice((-0.002, 0.002))}) + "\n"
            yield kind, path, replace_line(line, changed if kind == "number" else ""), name


def copy(root: Path) -> None:
    for pattern in ("README.md", "docs/**/*.md", "docs/results/figures/*", "evidence/*", "experiments/**/README.md",
                    "experiments/*/*.jsonl"):  # fmt: skip
        for file in ROOT.glob(pattern):
            if file.is_file():
                (root / file.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, root / file.relative_to(ROOT))


def run(each: int = 10) -> list[tuple[str, str, str]]:
    """Of every change its kind, the claim, and the first line of `check` that names it; empty where none does."""
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy(root)
        assert not check(root)
        for kind, path, change, name in list(changes(root, each)):
            before = path.read_text("utf-8")
            after = change(before)
            assert after != before, (kind, path, name)
            path.write_text(after, "utf-8")
            named = re.compile(rf"claim .*\b{re.escape(name)}(?![\w-])" if name else r"claim \w")
            lines = [line for line in check(root) if named.search(line)]
            path.write_text(before, "utf-8")
            outcomes.append((kind, name or path.name, lines[0] if lines else ""))
    return outcomes


if __name__ == "__main__":
    outcomes = run()
    for kind, name, line in outcomes:
        print(f"{kind:8} {name:36} {line[:150] or 'NOT FOUND'}")
    found = sum(bool(line) for *_, line in outcomes)
    print(f"{found} of {len(outcomes)} found")
    sys.exit(found < len(outcomes))
