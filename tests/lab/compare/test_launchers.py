"""Comparisons beyond one machine: submitit in this process and in others, Ray with a worker that is killed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from geonorm import report
from geonorm.cli.main import main
from geonorm.lab.compare.clusters import SubmititExecutor
from geonorm.lab.compare.executors import LocalExecutor
from geonorm.lab.config import Runtime
from geonorm.report.render import save_figures

from ...rows import each
from ..conftest import results, small_config


def test_processes_import_nothing_of_the_working_directory(
    call: Any, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a scheme that is named so. A file with the name of a library's module stays what it is, a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "build", lambda dirs, out, figures: out)
    (tmp_path / "random.py").write_text("open('it-ran', 'w').close()\nraise SystemExit(1)\n")
    (tmp_path / "rule_in_folder.py").write_text("from geonorm.schemes import Pre\nclass Own(Pre):\n    pass\n")
    found = call("compare", *tiny, "--out", "out", "--schemes", "rule_in_folder:Own", "--seeds", 1, "--steps", 1)
    assert found.status == 0, found.err
    assert not (tmp_path / "it-ran").exists() and len(list((tmp_path / "out" / "runs").iterdir())) == 1


@each("visible, wanted", [("4,7", "474"), ("", "010")])
def test_runs_take_turns_at_visible_gpus(visible: str, wanted: str, tmp_path: Path, monkeypatch: Any) -> None:
    seen = list[str]()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(subprocess, "Popen", lambda *_, env, **more: seen.append(env["CUDA_VISIBLE_DEVICES"]))
    executor = LocalExecutor(tmp_path, Runtime(), 3, print, False)
    for place in range(3):
        executor.start(small_config(tmp_path / "text.txt", out=str(tmp_path / f"{place}")), place)
    assert "".join(seen) == wanted


@pytest.fixture
def on_submitit(call: Any, tiny: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    submitit = pytest.importorskip("submitit")
    monkeypatch.setattr(submitit.AutoExecutor, "which", staticmethod(lambda: "debug"))
    monkeypatch.setattr(report, "build", lambda dirs, out, figures: out)  # drawing takes longer than training
    monkeypatch.setattr(SubmititExecutor, "wait", 0.0)
    own = signal.getsignal(signal.SIGUSR2)

    def run(out: Path, *options: Any) -> Any:
        return call("compare", *tiny, "--out", out, "--launcher", "submitit", "--steps", 4, *options)

    yield run
    signal.signal(signal.SIGUSR2, own)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # files that submitit leaves open
def test_submitit_goes_through_all_phases(on_submitit: Any, tmp_path: Path) -> None:
    """Tuning that is extended, then final runs; and nothing twice."""
    out = tmp_path / "with space"
    words = ["--schemes", "pre", "post", "--seeds", 2, "--lrs", "3e-2", "3e-1", "--tune"]
    first = on_submitit(out, *words)
    assert first.status == 0, first
    found = results(out)
    assert {run["status"] for run in found["runs"]} == {"finished"} and len({run["lr"] for run in found["runs"]}) > 2
    final = [run for run in found["runs"] if run["phase"] == "final"]
    assert len(final) == 4 and {run["scheme"] for run in final} == {"pre", "post"}
    again = on_submitit(out, *words)
    assert again.status == 0 and "4 of 4 runs are finished already" in again.out and results(out) == found


def test_a_gpu_that_was_named_has_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    for device, jobs in (("auto", 4), ("cuda", 4), ("cuda:1", 1)):
        assert LocalExecutor(tmp_path, Runtime(device=device), None, print, False).jobs == jobs


def test_no_link_of_a_stranger_is_written_through(tmp_path: Path) -> None:
    executor, config = LocalExecutor(tmp_path, Runtime(), 1, print, False), small_config(tmp_path, out="run")
    for file in (executor.log_file(config), tmp_path / "figures" / "noise.svg"):
        file.parent.mkdir()
        file.symlink_to(tmp_path / "target")
    executor.save_settings(config)
    executor.add_to_log(config, "died")
    save_figures({"noise": {"data": {"values": []}, "mark": "point"}}, tmp_path / "figures")
    assert not (tmp_path / "target").exists()


def test_a_job_that_is_told_to_end_is_saved_and_goes_on(
    tiny: list[str], tmp_path: Path, losses: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """SIGUSR2, as SLURM sends before the time limit: a second job goes on from the save. One that fails says why."""
    pytest.importorskip("submitit")
    assert main(["compare", *tiny, *f"--launcher submitit --slurm.gpus 3 --out {tmp_path / 'new'}".split()]) == 2
    assert "must be a multiple of 3 ranks" in capsys.readouterr().err
    words = ["compare", *tiny, "--seeds", "1", "--steps", "600", "--checkpoint.every", "20", "--evaluation.every",
             "600", "--schemes", "pre"]  # fmt: skip
    out, name = tmp_path / "jobs", "pre-lr0.005-seed0"
    command = [sys.executable, "-m", "geonorm", *words, "--launcher", "submitit", "--out", str(out)]
    with (tmp_path / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            send(out, name, process, signal.SIGUSR2)
            assert process.wait() == 0, (tmp_path / "log").read_text()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    text = (out / "configs" / f"{name}.log").read_text()
    assert len(re.findall(r"worker (\d+) on", text)) == 2 and "saved in" in text and "resuming" in text, text
    alone = tmp_path / "alone"
    assert main(["train", "--config", str(out / "configs" / f"{name}.yaml"), "--out", str(alone)]) == 0
    assert losses(out / "runs" / name) == losses(alone), "bit for bit"
    other = name.replace("pre", "post")
    (out / "runs" / other).mkdir()
    (out / "runs" / other / "letter.txt").touch()
    assert main([*words, "post", "--launcher", "submitit", "--out", str(out)]) == 2
    assert re.search(rf"{other}: failed: .*{other}.* not empty", capsys.readouterr().out)


@each("need, module", [("--launcher submitit", "submitit"), ("--launcher ray", "ray"), ("a file of settings", "yaml")])
def test_a_missing_package_is_one_line(
    call: Any, tiny: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, need: str, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    words, extra = (need.split(), "cluster") if module != "yaml" else ([], "train")
    result = call("compare", *tiny, "--out", tmp_path / "out", "--schemes", "pre", *words)
    assert result.err == f"geonorm compare: {need} needs {module}: pip install 'geonorm[{extra}]'\n"
    assert result.status == 2 and not list((tmp_path / "out").glob("[!.]*"))  # but for a lock


@pytest.mark.slow
def test_ray_finishes_a_grid_though_a_worker_is_killed(
    tiny: list[str], tmp_path: Path, losses: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two workers, eight runs, SIGKILL to one of them in the middle of a run: all eight end as they do without it."""
    pytest.importorskip("ray")
    words = ["compare", *tiny, "--schemes", "pre", "geonorm", "--seeds", "4", "--steps", "200", "--checkpoint.every",
             "20", "--evaluation.every", "200"]  # fmt: skip
    out = tmp_path / "ray"
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    command = [sys.executable, "-m", "geonorm", *words, "--launcher", "ray", "--ray.address", "local"]
    log = open(tmp_path / "log", "w")  # noqa: SIM115 closed below
    with (
        log,
        subprocess.Popen(
            [*command, "--jobs", "2", "--out", str(out)], stdout=log, stderr=log, env=environment
        ) as process,
    ):
        try:
            victim = "pre-lr0.005-seed1"
            send(out, victim, process, signal.SIGKILL)
            assert process.wait() == 0, (tmp_path / "log").read_text()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    text = (out / "configs" / f"{victim}.log").read_text()
    workers = re.findall(r"worker (\d+) on", text)
    assert len(workers) == 2 and workers[0] != workers[1] and "resuming" in text, text
    runs = results(out)["runs"]
    wanted = [(scheme, seed) for scheme in ("geonorm", "pre") for seed in range(4)]
    assert sorted((run["scheme"], run["seed"]) for run in runs) == wanted
    for run in runs:
        alone = tmp_path / "alone" / run["run"]
        assert main(["train", "--config", str(out / "configs" / f"{run['run']}.yaml"), "--out", str(alone)]) == 0
        assert run["status"] == "finished"
        assert losses(out / "runs" / run["run"]) == losses(alone), "bit for bit"
    capsys.readouterr()
    assert main([*words, "--out", str(out)]) == 0, "and any launcher knows what another has finished"
    assert "8 of 8 runs are finished already" in capsys.readouterr().out


def send(out: Path, name: str, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Waits until a run has a checkpoint and is on its way to the next, then sends its worker a signal."""
    log, checkpoints = out / "configs" / f"{name}.log", out / "runs" / name / "checkpoints"
    while not list(checkpoints.glob("step-*")):
        assert process.poll() is None, "the comparison ended before its worker got the signal"
        time.sleep(0.02)
    (pid,) = re.findall(r"worker (\d+) on", log.read_text())
    os.kill(int(pid), number)
