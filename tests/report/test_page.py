"""The page and the other formats: complete, self-contained, escaped, and honest about what is missing."""

import csv
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from geonorm.errors import GeonormError
from geonorm.report import build, draw, formats, summarize
from geonorm.report.comparison import load_comparison
from geonorm.report.page import html_table

from .conftest import run_summary, write_run

MakeRun = Callable[..., Path]
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks that tags balance, and collects text, tags and attributes."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.stack):
            self.text += data + " "

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def file(comparison_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(comparison_dir, tmp_path_factory.mktemp("page") / "sub" / "report.html")


@pytest.fixture(scope="module")
def full(file: Path) -> Page:
    return Page(file)


def test_the_page_fetches_nothing_has_no_nan_and_is_the_same_every_time(
    file: Path, comparison_dir: Path, tmp_path: Path
) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)|<link|<img|\bsrc=|fetch\(", text)
    assert "default-src 'none'" in text and len(text) < 2e6
    assert not re.search(r'(?:d|transform|x|y|points)="[^"]*(?:nan|inf)', text, re.IGNORECASE)
    assert build([comparison_dir], tmp_path / "again.html").read_bytes() == file.read_bytes()


def test_the_page_is_complete(full: Page) -> None:
    """The answer is the title; noise between seeds comes before differences; limits, recipes and commands."""
    title = "Against pre, geonorm is better; post is worse; peri is equal within 0.01"
    assert [attrs for tag, attrs in full.tags if tag == "h1"] and full.text.count(title) == 3
    titles = ["Seeds of a scheme differ by", "expect about 0.15", "verdict", "At the last evaluation", "Best learning"]
    places = [full.text.index(title) for title in titles]
    assert places == sorted(places)
    caption = "1.05M parameters · 4 layers · 819k tokens per run · 5 seeds · data books-small"
    assert full.text.count(caption) == 1
    for text in ("pre: 1 diverged run at another learning rate", "post: the best learning rate, 1e-3, is an edge",
                 "peri: the mean leaves out 1 interrupted run", "geonorm compare --schemes pre geonorm post peri",
                 "data_sha256", "post: its paper asks for warmup 0"):  # fmt: skip
        assert text in full.text, text


def test_links_lead_somewhere_columns_can_be_shown_and_numbers_be_taken(full: Page, file: Path) -> None:
    ids = full.values("id")
    targets = {href[1:] for href in full.values("href") if href.startswith("#")}
    assert len(ids) == len(set(ids)) and targets <= set(ids)
    assert {"term-moderated", "term-clamped"} <= targets and {"noise", "loss", "radius", "table"} <= {*ids}
    text = file.read_text(encoding="utf-8")
    heads = re.findall(r"<th scope=\"col\"( class=\"more\")?>(.*?)</th>", text)
    assert [bool(more) for more, head in heads if "(95 %)" in head] == [False, True]  # one primary interval
    assert text.count("<em>") == text.count("<figure id=") == 11  # what follows from each chart
    files = dict(zip(full.values("download"), (href for href in full.values("href") if "csv" in href), strict=True))
    rows = list(csv.DictReader(unquote(files["noise.csv"]).partition(",")[2].splitlines()))
    assert sum(row["series"] == "geonorm" and row["kind"] == "mark" for row in rows) == 5
    assert {attrs["tabindex"] for tag, attrs in full.tags if attrs.get("class") in ("scroll", "chart")} == {"0"}
    assert full.values("data-toggle") == ["0", "1", "2", "3"] and {"0", "1", "2", "3"} == set(full.values("data-s"))
    assert len(re.findall(r"geonorm · seed \d · lr 0\.003: 3\.\d{4}\n", "\n".join(full.values("data-tip")))) == 5


def test_a_paper_has_panels_labels_and_sizes_of_its_own(comparison_dir: Path, tmp_path: Path) -> None:
    paper: dict[str, Any] = {"labels": {"pre": "Pre-Norm"}, "size": (60, 30)}
    (drawn,) = draw(comparison_dir, ["radius"], **paper).values()
    (part,) = drawn.spec["concat"]
    assert (part["width"], part["height"]) == (227, 113) and "title" not in part and "title" not in drawn.spec
    assert ["Pre-Norm"] in (texts := [layer["mark"].get("text") for layer in part["layer"]]) and ["pre"] not in texts
    assert list(draw(comparison_dir, ["geometry"])) == ["geometry"]
    build(comparison_dir, tmp_path / "r.pdf", tmp_path / "f", format="pdf", panels=["noise"], **paper)
    assert sorted(file.name for file in (tmp_path / "f").iterdir()) == ["noise.pdf", "noise.png", "noise.svg"]
    assert "Pre-Norm &" in build(comparison_dir, tmp_path / "r.tex", format="latex", **paper).read_text()
    for wrong, says in ({"panels": ["radios"]}, "did you mean 'radius'"), ({"labels": {"pree": "x"}}, "unknown scheme"):
        with pytest.raises(GeonormError, match=says):
            build(comparison_dir, tmp_path / "none.pdf", format="pdf", **wrong)


def test_a_hostile_scheme_stays_text(make_run: MakeRun, tmp_path: Path) -> None:
    hostile = '</title><script>alert("1")</script><svg onload=alert(2)>\'|$x$'
    for seed in range(2):
        for run in make_run("pre", seed), make_run(hostile, seed, paper_recipe={hostile: 1}):
            for name, text in ("config.yaml", "books-small"), ("environment.json", '"cpu"'):
                (run / name).write_text((run / name).read_text().replace(text, json.dumps(hostile)))
    (tmp_path / "results.json").write_text(json.dumps({"command": ["geonorm", hostile]}))
    page = Page(build(tmp_path, tmp_path / "report.html"))
    assert [tag for tag, _ in page.tags].count("script") == 1 and not any("onload" in attrs for _, attrs in page.tags)
    assert hostile in page.text and any(hostile in tip for tip in page.values("data-tip"))
    assert "<script>" not in html_table([hostile], [])


def test_what_is_missing_is_stated(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run(scheme, parts={"trace": False, "metrics": False}) for scheme in ("pre", "geonorm")]
    text = Page(build(runs, tmp_path / "report.html")).text
    for sentence in ("one seed gives no interval", "No trace was recorded", "No metrics were recorded",
                     "1 seed: a claim needs at least 5. One seed shows no spread",
                     "The learning rate was not tuned for pre, geonorm"):  # fmt: skip
        assert sentence in text, sentence
    lost = [make_run("post", status="diverged", val_loss=None), make_run("peri", status="failed", val_loss=None)]
    text = Page(build(lost, tmp_path / "report.html", figures=tmp_path / "fig")).text
    assert "post: no run finished (1 diverged)" in text and "nothing to compare yet" in text
    assert {path.stem for path in (tmp_path / "fig").iterdir()} == {"loss_curves", "geometry"}
    with pytest.raises(FileNotFoundError, match=r"no run directory in .*gone$"):
        build([runs[0], tmp_path / "gone"], tmp_path / "none.html")
    assert not (tmp_path / "none.html").exists()


def test_latex_csv_and_pdf(comparison_dir: Path, tmp_path: Path) -> None:
    order = ["geonorm", "peri", "pre", "post"]
    tex = build(comparison_dir, tmp_path / "r.tex", format="latex", schemes=order).read_text()
    rows = [line.split(" & ")[0] for line in tex.splitlines() if line.endswith(r"\\")]
    assert rows == ["scheme", *order] and r"\toprule" in tex and r" $\pm$ " in tex
    with open(build(comparison_dir, tmp_path / "r.csv", format="csv")) as file:
        records = list(csv.DictReader(file))
    assert [record["scheme"] for record in records] == ["pre", "geonorm", "post", "peri"]
    assert float(records[1]["difference"]) < 0 and records[0]["n"] == "5"
    limits = load_comparison([comparison_dir]).limits()
    assert limits and all(record["limits"] == " ".join(limits) for record in records)
    assert all(f"% What limits this comparison: {limit}" in tex.splitlines() for limit in limits)
    assert build(comparison_dir, tmp_path / "r.pdf", format="pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(GeonormError, match=r"r\.tex does not end in \.csv"):
        build(comparison_dir, tmp_path / "r.tex", format="csv")
    with pytest.raises(GeonormError, match="unknown scheme 'perry': did you mean 'peri'"):
        build(comparison_dir, tmp_path / "none.html", schemes=["perry"])


def test_names_are_no_commands_and_folders_of_this_machine_stay_here(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a\r\\input{b}", run_summary("=pre", 0))
    (folder / "config.yaml").write_text(f"data: {tmp_path}/my.txt\n")
    tex = build(folder, tmp_path / "r.tex", format="latex").read_bytes()
    assert b"\r" not in tex and b"\n% a \\input{b}" in tex
    assert ",'=pre," in build(folder, tmp_path / "r.csv", format="csv").read_text()
    other = write_run(tmp_path / "c", run_summary(f"{tmp_path}/mine.py:Mine", 0))
    assert str(tmp_path) not in (page := build(folder, tmp_path / "r.html").read_text()) and "data: my.txt" in page
    numbers = re.findall(r"data:text/csv,[^\"]*", build([folder, other], tmp_path / "r.html").read_text())
    assert numbers and str(tmp_path) not in unquote("".join(numbers))
    assert all(formats.as_text(text) == f"'{text}" for text in ("=1", " =1", "@a", "\t=1", "-x"))
    assert all(formats.as_text(same) == same for same in ("-1.5e-3", "+2", "pre", -1.5))


def test_the_terminal_has_the_table_the_sentences_and_the_limits_of_the_page(comparison_dir: Path) -> None:
    comparison = load_comparison([comparison_dir])
    limits = comparison.limits()
    for width in (100, 80):
        lines = summarize(comparison_dir, width)
        text = " ".join(line.strip() for line in lines)
        assert "What limits this comparison:" in lines and len(limits) >= 4 and max(map(len, lines)) <= width
        assert all(sentence in text for sentence in [*limits, *(sentence for _, sentence in comparison.findings())])
        assert ("p, Holm" in lines[0]) is (width == 100) and "difference (95 %)" in lines[0]
