"""Comparisons: end to end, extension, failures, tuning, signals. Most runs are done in this process, not their own."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from geonorm import report
from geonorm.errors import ConfigError
from geonorm.lab.compare import compare as lab, executors as team
from geonorm.lab.compare.config import CompareConfig
from geonorm.lab.runs.folder import read_rows, slug, write_json
from geonorm.schemes import parse

from ...rows import each
from ..conftest import results, small_config, summary as read_summary

ROW = set("scheme n lr val_loss_mean val_loss_std difference difference_low difference_high".split())
BUILD = report.build
FAST = ["--steps", "4", "--evaluation.every", "4"]


@pytest.fixture
def compare(call: Any, tiny: list[str]) -> Any:
    return lambda out, *options: call("compare", *tiny, "--out", out, *FAST, *options)


def test_end_to_end_and_extension(
    processes: Any, compare: Any, call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "comparison"
    with monkeypatch.context() as patch:
        patch.setattr(report, "build", BUILD)
        first = compare(out, "--schemes", "pre", "geonorm(decay=sqrt)", "--seeds", 2)
    assert first.status == 0, first.err
    assert len(processes.started) == 4 and "geonorm(decay=sqrt)" in first.out and "report.html" in first.out
    page = (out / "report.html").read_text()
    for limit in ("2 seeds: a claim needs at least 5", "The learning rate was not tuned", "tokens per parameter"):
        assert limit in first.out and limit in page
    assert {"config.yaml", "configs", "runs", "results.json", "report.html", "figures"} <= {
        p.name for p in out.iterdir()
    }
    found = results(out)
    assert found["command"][:2] == ["geonorm", "compare"] and "geonorm(decay=sqrt)" in found["command"]
    assert [run["scheme"] for run in found["runs"]] == ["pre"] * 2 + ["geonorm(decay=sqrt)"] * 2
    assert all(
        run["status"] == "finished" and (out / "runs" / run["run"] / "summary.json").exists() for run in found["runs"]
    )
    assert [row["scheme"] for row in found["schemes"]] == ["pre", "geonorm(decay=sqrt)"]
    assert all(set(row) >= ROW and row["n"] == 2 for row in found["schemes"])
    assert found["schemes"][0]["difference"] == 0.0 and found["schemes"][1]["pairs"] == 2

    again = compare(out, "--schemes", "pre", "geonorm(decay=sqrt)", "--seeds", 2)
    assert again.status == 0 and "4 of 4 runs are finished already" in again.out and len(processes.started) == 4

    moved = out.rename(tmp_path / "moved")
    wider = compare(moved, "--schemes", "post", "pre", "--seeds", 3)
    assert wider.status == 0, wider.err
    assert len(processes.started) == 4 + 4 and "2 of 6 runs are finished already" in wider.out
    found = results(moved)
    assert [row["scheme"] for row in found["schemes"]] == ["post", "pre", "geonorm(decay=sqrt)"]
    assert [row["n"] for row in found["schemes"]] == [3, 3, 2] and found["schemes"][1]["baseline"] == "post"

    before = {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    other = compare(moved, "--schemes", "pre", "--optim.clip", 2)
    assert other.status == 2 and "holds a comparison with optim.clip 1.0, not 2.0" in other.err
    assert len(other.err.splitlines()) == 1
    assert before == {path: path.read_bytes() for path in moved.rglob("*") if path.is_file()}
    repeated = call("compare", "--config", moved / "config.yaml", "--out", moved)
    assert repeated.status == 0 and "6 of 6" in repeated.out


def test_failed_runs_are_named_and_tried_again(processes: Any, compare: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    processes.fail = staticmethod(lambda name: name.startswith("pre"))
    first = compare(out, "--schemes", "pre", "post", "--seeds", 1)
    assert first.status == 2 and len(first.err.splitlines()) == 1
    assert first.err.startswith("geonorm compare: runs that did not finish: pre-lr0.005-seed0; the same command")
    assert "pre-lr0.005-seed0: failed: Killed" in first.out
    assert [run["status"] for run in results(out)["runs"]] == ["failed", "finished"]
    processes.fail = staticmethod(lambda name: False)
    second = compare(out, "--schemes", "pre", "post", "--seeds", 1)
    assert second.status == 0 and "1 of 2 runs are finished already" in second.out
    assert processes.started == ["pre-lr0.005-seed0", "post-lr0.005-seed0", "pre-lr0.005-seed0"]
    processes.fail = staticmethod(lambda name: True)
    result = compare(tmp_path / "tuned", "--schemes", "pre", "--seeds", 1, "--lrs", "1e-3", "2e-3")
    assert result.status == 2 and "no learning rate finished" in result.out, result


def test_failed_runs_that_nobody_asks_for_again_are_named_apart(processes: Any, compare: Any, tmp_path: Path) -> None:
    """A comparison with a scheme that cannot be trained would end in status 2 for ever."""
    out = tmp_path / "out"
    assert compare(out, "--schemes", "pre", "post", "--seeds", 1).status == 0
    (out / "runs" / "post-lr0.005-seed0" / "summary.json").unlink()  # as if it had been killed
    second = compare(out, "--schemes", "pre", "--seeds", 1)
    assert (second.status, second.err) == (0, "")
    assert "runs of earlier commands that did not finish: post-lr0.005-seed0" in second.out
    requested = {run["run"]: run["requested"] for run in results(out)["runs"]}
    assert requested == {"pre-lr0.005-seed0": True, "post-lr0.005-seed0": False}


@each(
    "name, content, said",
    [
        ("thesis.tex", "x", "is not empty and holds no comparison"),
        ("config.yaml", "steps: 4\nscheme: pre\n", "is not empty and holds no comparison"),
        ("config.yaml", "[", "is not readable YAML"),
    ],
)
def test_directories_that_are_refused(compare: Any, tmp_path: Path, name: str, content: str, said: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / name).write_text(content)
    result = compare(out, "--schemes", "pre")
    assert result.status == 2 and said in result.err and [path.name for path in out.iterdir()] == [name]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_comparison_that_was_stopped_goes_on(
    call: Any, tiny: list[str], tmp_path: Path, number: signal.Signals
) -> None:
    """The real thing, in the middle of a run: SIGKILL of the parent alone, whose run saves and ends by itself,
    or Ctrl-C. The same command, tried until nothing is in use, goes on from there to the end."""
    out, name = tmp_path / "out", "pre-lr0.005-seed0"
    options = ["--schemes", "pre", "--seeds", "1", "--jobs", "1", "--steps", "1000", "--evaluation.every", "1000"]
    command = ["compare", *tiny, "--out", str(out), *options]
    run = out / "runs" / name
    with subprocess.Popen(
        [sys.executable, "-m", "geonorm", *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not ((run / "metrics.jsonl").exists() and (run / "metrics.jsonl").stat().st_size):
                assert process.poll() is None, process.communicate()
                time.sleep(0.01)
            process.send_signal(number)
            if number == signal.SIGINT:
                _, err = process.communicate()
                assert err == f"stopped; every run is saved in {out}; the same command goes on from there\n"
                assert process.returncode == 130 and read_summary(run)["status"] == "interrupted"
                assert not (out / "results.json").exists()
        finally:
            process.kill()
    ended = call(*command)
    while "try the same command" in ended.err:
        assert ended.status == 2 and len(ended.err.splitlines()) == 1, ended
        time.sleep(0.2)
        ended = call(*command)
    assert ended.status == 0, ended
    log = (out / "configs" / f"{name}.log").read_text()
    stopped = re.search(r"stopped at step (\d+) of 1000; saved", log)
    assert stopped and f"at step {stopped[1]} of 1000" in log[stopped.end() :] and "Traceback" not in log, log
    assert [row["step"] for row in read_rows(run / "metrics.jsonl")] == list(range(1, 1001))
    assert [run["status"] for run in results(out)["runs"]] == ["finished"]


def test_a_rate_of_a_recipe_is_not_tuned(
    processes: Any, compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every run of the scheme would train at it, whatever its name says."""
    monkeypatch.setattr(type(parse("post")), "recipe", lambda scheme: {"lr": 1e-3})
    words = ["--schemes", "pre", "post", "--lrs", "2e-3", "4e-3", "--recipe", "own", "--seeds", 1]
    assert compare(tmp_path / "out", *words).status == 0
    runs = results(tmp_path / "out")["runs"]
    assert [run["lr"] for run in runs if run["scheme"] == "post"] == [1e-3] and len(runs) == 4


@each("status", ["finished", "diverged", "interrupted", "failed"])
def test_a_divergence_is_a_result_too(status: str, text: Path, tmp_path: Path) -> None:
    config = small_config(text, out=str(tmp_path))
    write_json(tmp_path / "summary.json", team.outcome(config).row() | {"status": status})
    assert team.done(config) is (status in ("finished", "diverged"))


def test_names_of_runs_are_files_and_unique() -> None:
    schemes = ["pre", "geonorm(alpha=1)", "geonorm(alpha=-1)", "geonorm(alpha=1_)", "mix(a=post, b=pre, share=0.5)" * 4]
    slugs = [slug(scheme) for scheme in schemes]
    assert slugs[0] == "pre" and len(set(slugs)) == len(slugs)
    assert all(len(slug) < 80 and "/" not in slug and " " not in slug for slug in slugs)


def test_what_the_page_says_repeats_it(
    processes: Any, text: Path, tiny: list[str], call: Any, losses: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    """With a relative path of the data, after a tuning. Where nobody watches, lines say how far it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(team, "QUIET", 0.0)
    Path("small.txt").write_text(text.read_text())
    monkeypatch.setattr(report, "build", BUILD)
    words = [word.replace(str(text), "small.txt") for word in tiny] + ["--schemes", "pre", "post", "--seeds", "1"]
    made = call("compare", *words, *FAST, "--lrs", "1e-3", "3e-3", "--out=runs/mine")
    assert made.status == 0 and re.search(r"^tuning runs: step [\d,]+ of [\d,]+ in all", made.out, re.MULTILINE)
    page = Path("runs/mine/report.html").read_text()
    said = [shlex.split(unescape(words)) for words in re.findall("<pre>geonorm (.*?)</pre>", page)]
    assert [words[0] for words in said] == ["compare", "train"]
    assert call(*(word.replace("NEW", "again") for word in said[0])).status == 0
    first, second = (json.loads((Path(each) / "results.json").read_text()) for each in ("runs/mine", "again"))
    assert [run["val_loss"] for run in first["runs"]] == [run["val_loss"] for run in second["runs"]]
    assert call(*(word.replace("NEW", "one") for word in said[1])).status == 0
    (run,) = (each for each in first["runs"] if each["run"] in said[1][2])
    assert run["phase"] == "final" and losses(Path("one")) == losses(Path("runs/mine/runs") / run["run"])


def test_two_runs_of_one_folder_are_refused() -> None:
    """The second was told as finished, with the loss of the first."""
    with pytest.raises(ConfigError, match="names a learning rate twice"):  # to the digits of the folder's name
        CompareConfig(schemes=["pre"], lrs=[0.00123456, 0.001234561])


def test_the_baseline_of_a_folder_stays_unless_it_is_named_behind_another(tmp_path: Path) -> None:
    assert lab.order_schemes(tmp_path, ["post", "pre"]) == ["post", "pre"]
    write_json(tmp_path / "results.json", {"order": ["pre", "geonorm(decay=sqrt)"]})
    assert lab.order_schemes(tmp_path, ["post"]) == ["pre", "geonorm(decay=sqrt)", "post"]
    assert lab.order_schemes(tmp_path, ["post", "pre"]) == ["post", "pre", "geonorm(decay=sqrt)"]
    for damaged in ("[]", '{"order": 1}', "{"):
        (tmp_path / "results.json").write_text(damaged)
        assert lab.order_schemes(tmp_path, ["peri"]) == ["peri"]
