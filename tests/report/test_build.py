"""The page and the figures: complete, self-contained, escaped, and honest about what is missing."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import geonorm
from geonorm.errors import GeonormError
from geonorm.lab.probe import probe_files, save
from geonorm.report import build, checks, write_figures
from geonorm.report.comparison_charts import figures_of
from geonorm.report.formats import csv_text
from geonorm.report.runs import load
from geonorm.report.tables import LIMITS

MakeRun = Callable[..., Path]
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Checks that tags balance, and collects text, tags and attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.stack, f"left open: {self.stack}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.stack):
            self.text += data + " "

    def values(self, name: str) -> list[str]:
        return [attrs[name] or "" for _, attrs in self.tags if name in attrs]


def read(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def file(comparison_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(comparison_dir, tmp_path_factory.mktemp("page") / "sub" / "report.html")


@pytest.fixture(scope="module")
def full(file: Path) -> Page:
    return read(file)


def test_the_page_fetches_nothing_and_no_coordinate_is_nan(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\((?!#)|<link|<img|\bsrc=|fetch\(", text)
    assert "default-src 'none'" in text and len(text) < 2e6
    assert not re.search(r'(?:d|transform|x|y|points)="[^"]*(?:nan|inf)', text, re.IGNORECASE)


def test_the_noise_between_seeds_comes_first(full: Page) -> None:
    titles = [
        "Noise between seeds",
        "Paired differences",
        "Table",
        "Loss against tokens seen",
        "Loss against training time",
    ]
    titles += ["Learning rates", "Radius of the stream", "Angle of each write", "Clamped tokens", "Gradient per site"]
    titles += ["Gradient norm and spikes", "Recipe", "Repeat it"]
    places = [full.text.index(title) for title in titles]
    assert places == sorted(places)
    assert "validation loss of the tuning runs" in full.text  # which are shorter than those that are judged


def test_every_section_repeats_size_depth_tokens_seeds_and_data(full: Page) -> None:
    caption = "1.05M parameters · 4 layers · 819k tokens per run · 5 seeds · data books-small"
    assert full.text.count(caption) == 1 + sum(tag == "section" for tag, _ in full.tags) == 8


def test_the_page_states_findings_failures_and_departures(full: Page) -> None:
    assert re.search(r"geonorm is 0\.0\d\d \(0\.0\d\d to 0\.0\d\d\) nats below pre at 5 seeds", full.text)
    assert "pre: 1 diverged run at another learning rate" in full.text
    assert "peri: the mean leaves out 1 interrupted run at the same learning rate" in full.text
    assert "post: the best learning rate, 1e-3, is an edge of the grid" in full.text
    assert "optim.warmup" in full.text and "geonorm compare --schemes pre geonorm post peri" in full.text
    assert "data_sha256" in full.text and "weight_decay: 0.1" in full.text
    assert re.search(r"post: its paper asks for warmup 0(\.0)? \(not applied here\)", full.text)


def test_each_counted_run_is_a_mark_of_the_first_chart_and_each_scheme_can_be_hidden(full: Page) -> None:
    tips = full.values("data-tip")
    assert sum(bool(re.fullmatch(r"geonorm · seed \d · lr 0\.003: 3\.\d{4}", tip)) for tip in tips) == 5
    assert full.values("data-toggle") == ["0", "1", "2", "3"]
    assert {"0", "1", "2", "3"} == set(full.values("data-s"))
    charts = [attrs for tag, attrs in full.tags if tag == "svg" and attrs.get("class") == "chart"]
    assert len(charts) >= 12 and all(chart["tabindex"] == "0" and chart["aria-label"] for chart in charts)


def test_the_page_is_the_same_every_time(file: Path, comparison_dir: Path, tmp_path: Path) -> None:
    assert build([comparison_dir], tmp_path / "again.html").read_bytes() == file.read_bytes()


def test_a_hostile_scheme_stays_text(make_run: MakeRun, tmp_path: Path) -> None:
    hostile = '</title><script>alert("1")</script><svg onload=alert(2)>\'|$x$'
    for seed in range(2):
        make_run("pre", seed)
        make_run(hostile, seed)
    page = read(build(tmp_path, tmp_path / "report.html", figures=tmp_path / "figures"))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any("onload" in attrs for _, attrs in page.tags)
    assert hostile in page.text and any(hostile in tip for tip in page.values("data-tip"))
    assert (tmp_path / "figures" / "final_loss.svg").exists()


def test_one_seed_gives_no_interval(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("pre"), make_run("geonorm")]
    page = read(build(runs, tmp_path / "report.html"))
    assert "not resolved, one seed gives no interval" in page.text
    assert "1 seed: a claim needs at least 5. One seed shows no spread" in page.text
    assert "The learning rate was not tuned for pre, geonorm" in page.text


def test_missing_trace_and_metrics_are_said(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run("pre", parts={"trace": False, "metrics": False})
    page = read(build(run, tmp_path / "report.html"))
    assert "No trace was recorded" in page.text and "No metrics were recorded" in page.text


def test_a_comparison_in_which_nothing_finished(make_run: MakeRun, tmp_path: Path) -> None:
    make_run("pre", status="diverged", val_loss=None)
    make_run("geonorm", status="failed", val_loss=None, parts={"metrics": False})
    page = read(build(tmp_path, tmp_path / "report.html"))
    assert "pre: no run finished (1 diverged)" in page.text and "nothing to compare yet" in page.text
    names = {path.stem for path in write_figures(tmp_path, tmp_path / "figures")}
    assert names == {"loss_curves", "geometry", "law"}


def test_runs_that_are_not_one_comparison_are_named(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in range(5):
        make_run("pre", seed)
        make_run("geonorm", seed, tokens=10_000, matmul_parameters=900_000)
    page = read(build(tmp_path, tmp_path / "report.html"))
    assert "The budgets differ, from 10k to 819k tokens" in page.text
    assert "The numbers of matmul parameters differ by 14.4 %" in page.text


def test_there_must_be_a_run(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run directory"):
        build([tmp_path], tmp_path / "report.html")
    with pytest.raises(FileNotFoundError, match=r"no run directory in .*gone$"):
        build([make_run("pre", 0), tmp_path / "gone"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_figures_come_as_png_svg_and_pdf_and_are_the_same_every_time(comparison_dir: Path, tmp_path: Path) -> None:
    first = write_figures(comparison_dir, tmp_path / "a")
    names = ["final_loss", "loss_curves", "geometry", "law", "learning_rates"]
    assert [path.name for path in first] == [f"{name}.{suffix}" for name in names for suffix in ("png", "svg", "pdf")]
    for path, again in zip(first, write_figures(comparison_dir, tmp_path / "b"), strict=True):
        assert path.suffix == ".pdf" or path.read_bytes() == again.read_bytes()
    assert all("dc:date" not in path.read_text() for path in first if path.suffix == ".svg")


def test_a_trace_without_the_law_still_builds(make_run: MakeRun, tmp_path: Path) -> None:
    """Runs from before the definition's prediction was recorded: the old figures, and no word of the new."""
    new = {"radius_after", "law_radius", "law_angle", "law_start", "speed"}
    for with_law in (True, False):
        path = make_run("pre") / "trace.jsonl"
        if not with_law:
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            path.write_text("".join(json.dumps({k: v for k, v in row.items() if k not in new}) + "\n" for row in rows))
        page = read(build(path.parent, tmp_path / "report.html"))
        names = {file.stem for file in write_figures(path.parent, tmp_path / f"figures-{with_law}")}
        assert ("law" in names) is with_law and "geometry" in names
        assert ("Lines: what the scheme's definition predicts" in page.text) is with_law
        assert ("Turning per update" in page.text) is with_law and "Angle of each write" in page.text


def test_a_report_never_imports_torch(comparison_dir: Path, tmp_path: Path) -> None:
    code = (
        "import sys, geonorm.report as report\n"
        f"report.build({str(comparison_dir)!r}, {str(tmp_path / 'r.html')!r}, {str(tmp_path)!r})\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_subset_of_schemes_is_said_as_the_whole_says_it(comparison_dir: Path, tmp_path: Path) -> None:
    """Leaving schemes out makes no difference more significant, and the order is the one asked for."""
    whole = load(comparison_dir)
    part = whole.only(["peri", "geonorm"])
    assert part.rows == [whole.row("peri"), whole.row("geonorm")] and part.baseline == "pre"
    assert len(part.counted("pre")) == 5 and not part.of("post")
    with pytest.raises(GeonormError, match="unknown scheme 'perry': did you mean 'peri'"):
        build(comparison_dir, tmp_path / "none.html", schemes=["perry"])


def test_latex_csv_and_pdf(comparison_dir: Path, tmp_path: Path) -> None:
    tex = build(comparison_dir, tmp_path / "r.tex", format="latex", sort="loss").read_text()
    rows = [line.split(" & ")[0] for line in tex.splitlines() if line.endswith(r"\\")]
    assert rows == ["scheme", "geonorm", "peri", "pre", "post"] and r"\toprule" in tex and r" $\pm$ " in tex
    with open(build(comparison_dir, tmp_path / "r.csv", format="csv")) as file:
        records = list(csv.DictReader(file))
    assert [record["scheme"] for record in records] == ["pre", "geonorm", "post", "peri"]
    assert float(records[1]["difference"]) < 0 and records[0]["n"] == "5"
    said = checks.limits(load(comparison_dir))
    assert said and all(record["limits"] == " ".join(said) for record in records)
    assert all(f"% {LIMITS}: {limit}" in tex.splitlines() for limit in said)
    fit = {"n": 1, "fit": {"lr": 0.5}}  # the page has a column of it
    fitted = SimpleNamespace(title="a", limits=[], records=[fit])
    assert csv_text([fitted]) == "source,n,fit_lr\na,1,0.5\n"
    assert build(comparison_dir, tmp_path / "r.pdf", format="pdf").read_bytes().startswith(b"%PDF")
    with pytest.raises(GeonormError, match=r"r\.tex is no csv report of geonorm"):
        build(comparison_dir, tmp_path / "r.tex", format="csv")


def test_figures_name_their_series(comparison_dir: Path) -> None:
    """In print there is no page around a figure: one legend tells schemes apart by colour, dash and marker."""
    law = figures_of(load(comparison_dir))["law"]
    keys = [layer["encoding"]["color"]["legend"] for part in law["concat"] for layer in part["layer"]]
    assert keys and all(key["values"] for key in keys)


def test_csv_of_a_probe_has_numbers(tmp_path: Path) -> None:
    """As they were measured, not as the page shows them: laws among them."""
    shape = geonorm.DecoderConfig(scheme="pre", layers=4, width=16, heads=2, hidden=16, vocab_size=32)
    found = geonorm.probe(geonorm.Decoder(shape), torch.randint(0, 32, (4, 16)))
    save(tmp_path / "probe", {}, {}, probe_files([found]))
    with open(build(tmp_path / "probe", tmp_path / "p.csv", format="csv")) as file:
        (row,) = csv.DictReader(file)
    ratios = [site["ratio"] for site in found.sites]
    assert float(row["ratio"]) == pytest.approx(sum(ratios) / len(ratios), rel=1e-12)
    assert (int(row["sites"]), row["scheme"], int(row["depth"])) == (8, "pre", 4)
    assert float(row["power_low"]) <= float(row["power_of_t"]) <= float(row["power_high"])
    assert float(row["rotation"]) < 3.2
