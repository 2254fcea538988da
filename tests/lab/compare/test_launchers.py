"""Comparisons beyond one machine: SLURM scripts run by a stand-in scheduler, Ray with a worker that is killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from geonorm import report
from geonorm.cli.main import main
from geonorm.lab.compare import slurm
from geonorm.lab.compare.slurm import GOES_ON
from geonorm.lab.config import CompareConfig

from ..conftest import results

FAST = ["--steps", "4", "--evaluation.every", "4", "--jobs", "3"]
SBATCH = """#!/bin/bash
# notes its arguments and a copy of the script, and answers with the number of the job
number=$(( $(ls {queue} | wc -l) + 1 ))
for script; do :; done
cp "$script" {queue}/"$number".sh
printf '%s\\n' "$@" > {queue}/"$number".args
sleep 0.01
echo "$((number * 7));cluster"
"""


def executable(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


class Cluster:
    """sbatch and squeue that only take notes, and a scheduler that runs what was submitted, job by job. The scripts run
    under bash as they are; a `python` that takes notes stands for the interpreter, and its commands run in this
    process, which is faster."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue, self.calls, self.patch = folder / "queue", folder / "calls", monkeypatch
        self.queue.mkdir(parents=True)
        self.busy = folder / "busy"
        tools = folder / "tools"
        tools.mkdir()
        executable(tools / "sbatch", SBATCH.format(queue=self.queue).replace("wc -l", "grep -c sh"))
        executable(tools / "squeue", f'#!/bin/bash\ngrep -x "$3" {self.busy} 2>/dev/null || true\n')
        python = executable(folder / "python", f'#!/bin/bash\nprintf "%s\\n" "$@" > {self.calls}\necho said\n')
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        monkeypatch.setattr(slurm.sys, "executable", str(python))
        self.trained: list[str] = []
        self.fail: set[str] = set()
        self.ended = 0

    def job(self, number: int) -> tuple[str, list[str]]:
        return (self.queue / f"{number}.sh").read_text(), (self.queue / f"{number}.args").read_text().split("\n")[:-1]

    def bash(self, number: int, **variables: str) -> list[str]:
        """Runs a submitted script as SLURM would and returns what it asked of `python`."""
        self.calls.unlink(missing_ok=True)
        path = self.queue / f"{number}.sh"
        done = subprocess.run(["bash", str(path)], env={**os.environ, **variables}, capture_output=True, text=True)
        assert done.returncode == 0 and done.stdout == done.stderr == "", done
        return self.calls.read_text().split("\n")[:-1]

    def run_all(self) -> int:
        """Runs jobs in the order of their numbers until none is left; returns how many there have been."""
        while (self.queue / f"{self.ended + 1}.sh").exists():
            self.ended = number = self.ended + 1
            script, words = self.job(number)
            if tasks := re.search(r"#SBATCH --array=0-(\d+)%3\n", script):
                for task in range(int(tasks.group(1)) + 1):
                    call = self.bash(number, SLURM_ARRAY_TASK_ID=str(task))
                    assert call[:4] == ["-m", "geonorm", "train", "--config"]
                    name = Path(call[4]).stem
                    self.trained.append(name)
                    assert Path(call[4]).with_suffix(".log").read_text().endswith("said\n")
                    if name not in self.fail:
                        assert main(call[2:]) == 0
            else:
                assert words[1] == f"--dependency=afterany:{7 * (number - 1)}"
                call = self.bash(number)
                assert call[:4] == ["-m", "geonorm", "compare", "--config"]
                with self.patch.context() as patch:
                    patch.setenv(GOES_ON, "1")  # the script's own `export` was in its own process
                    main(call[2:])
        return self.ended


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(report, "build", lambda dirs, out, figures: out)  # drawing takes longer than training
    return Cluster(tmp_path / "cluster", monkeypatch)


@pytest.fixture
def compare(call: Any, tiny: list[str]) -> Any:
    def run(out: Path, *options: Any) -> Any:
        return call("compare", *tiny, "--out", out, *FAST, "--launcher", "slurm", *options)

    return run


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


def test_slurm_goes_through_all_phases(cluster: Cluster, compare: Any, tmp_path: Path) -> None:
    """Tuning that is extended, then final runs: every phase an array, the next behind it; and nothing twice."""
    out = tmp_path / "with space"
    words = ["--schemes", "pre", "post", "--seeds", 2, "--lrs", "3e-2", "3e-1", "--tune", "--slurm.submit"]
    first = compare(out, *words)
    assert first.status == 0 and first.out == f"4 runs submitted as job 7; job 14 goes on behind them in {out}\n"
    assert not (out / "results.json").exists()
    jobs = cluster.run_all()
    assert jobs >= 6 and jobs % 2 == 0, "tuning, at least one extension, final runs"
    found = results(out)
    assert len(cluster.trained) == len(set(cluster.trained)) == len(found["runs"])
    assert {run["status"] for run in found["runs"]} == {"finished"}
    final = [run for run in found["runs"] if run["phase"] == "final"]
    assert len(final) == 4 and {run["scheme"] for run in final} == {"pre", "post"}
    for scheme in ("pre", "post"):
        tried = {run["lr"]: run["val_loss"] for run in found["runs"] if run["scheme"] == scheme and run not in final}
        best = min(tried, key=tried.__getitem__)
        assert {run["lr"] for run in final if run["scheme"] == scheme} == {best}
        assert len(tried) > 2
    again = compare(out, *words)
    assert again.status == 0 and "4 of 4 runs are finished already" in again.out and cluster.run_all() == jobs
    wider = compare(out, *words[:4], 3, *words[5:])
    assert wider.status == 0 and wider.out.endswith(f"2 runs submitted as job {7 * (jobs + 1)}; "
        f"job {7 * (jobs + 2)} goes on behind them in {out}\n")  # fmt: skip


def test_slurm_counts_failures_and_ends(cluster: Cluster, compare: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    cluster.fail = {"post-lr0.005-seed0"}
    words = ["--schemes", "pre", "post", "--seeds", 1, "--slurm.submit", "--slurm.retries", 2]
    assert compare(out, *words).status == 0
    assert cluster.run_all() == 6  # three arrays: the first, and two more for the run that fails
    assert cluster.trained == ["pre-lr0.005-seed0", *["post-lr0.005-seed0"] * 3]
    assert [run["status"] for run in results(out)["runs"]] == ["finished", "failed"]
    cluster.fail = set()
    assert compare(out, *words).status == 0, "by hand, the same command tries again"
    cluster.run_all()
    assert [run["status"] for run in results(out)["runs"]] == ["finished", "finished"]


def test_slurm_script(cluster: Cluster, compare: Any, tmp_path: Path) -> None:
    """Without submitting: a script that bash and shellcheck accept, with what was asked for in it."""
    out = tmp_path / "out"
    options = ["--slurm.partition", "gpu", "--slurm.time", "02:00:00", "--slurm.gpus", 2, "--slurm.memory", "16G",
               "--slurm.account", "lab", "--slurm.options", "qos=high", "constraint=a100",
               "--slurm.setup", "module load cuda", "--runtime.threads", 3]  # fmt: skip
    result = compare(out, "--schemes", "pre", "post", "--seeds", 2, *options)
    assert result.status == 0, result.err
    assert result.out.startswith(f"4 runs: sbatch {out / 'slurm' / 'runs.sh'}; when they have ended")
    assert not list(cluster.queue.iterdir()) and not (out / "runs").exists()
    text = (out / "slurm" / "runs.sh").read_text()
    for line in ("partition=gpu", "account=lab", "time=02:00:00", "gpus-per-task=2", "mem=16G", "qos=high",
                 "constraint=a100", "array=0-3%3", "cpus-per-task=6", "requeue", "signal=B:TERM@120"):  # fmt: skip
        assert f"\n#SBATCH --{line}\n" in text, line
    assert "\nexport TORCH_ELASTIC_SHUTDOWN_TIMEOUT=120\n" in text and "--signal=B:TERM@120\n" in text
    assert "\nmodule load cuda\n" in text and "torch.distributed.run --standalone --nproc-per-node 2 -m geonorm" in text
    own = "\nexport OMP_NUM_THREADS=3 TOKENIZERS_PARALLELISM=false PYTHONSAFEPATH=1\n"
    assert own in text and own in (out / "slurm" / "next.sh").read_text()
    assert text.index("#SBATCH --signal") < text.index("runs=("), "sbatch reads no option behind the first command"
    for name in ("runs.sh", "next.sh"):
        subprocess.run(["bash", "-n", str(out / "slurm" / name)], check=True)
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", "--severity=warning", str(out / "slurm" / name)], check=True)
    listed = [line.strip() for line in text[text.index("runs=(") : text.index("\n)\n")].splitlines()[1:]]
    assert [yaml.safe_load(Path(path).read_text())["seed"] for path in listed] == [0, 0, 1, 1]


def test_slurm_refusals(cluster: Cluster, compare: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    words = ["--schemes", "pre", "--seeds", 1, "--slurm.submit"]
    assert compare(out, *words).status == 0
    cluster.busy.write_text("14\n")
    busy = compare(out, *words)
    assert busy.status == 2 and f"jobs 14 of {out} are queued or running" in busy.err
    cluster.busy.unlink()
    executable(Path(shutil.which("sbatch") or ""), "#!/bin/bash\necho 'sbatch: error: invalid partition' >&2\nexit 1\n")
    refused = compare(out, *words)
    assert refused.status == 2 and refused.err == "geonorm compare: sbatch: sbatch: error: invalid partition\n"
    monkeypatch.setenv("PATH", "/nowhere")
    missing = compare(out, *words)
    assert missing.status == 2 and "sbatch is not here" in missing.err and len(missing.err.splitlines()) == 1


def test_a_run_that_gets_further_is_not_counted(tmp_path: Path) -> None:
    """A time limit shorter than the run: every array brings it further, and it is submitted as often as that takes."""
    config = CompareConfig(schemes=["pre"], seeds=1, out=str(tmp_path), launcher="slurm")
    from geonorm.lab.compare.compare import run_config

    run = run_config(config, "pre", 1e-3, 0)
    assert slurm.newest_step(run) == 0
    for step in (5, 40, 1000):
        (Path(run.out) / "checkpoints" / f"step-{step}").mkdir(parents=True)
    (Path(run.out) / "checkpoints" / "step-x").mkdir()
    assert slurm.newest_step(run) == 1000


@pytest.fixture
def on_ray(call: Any, tiny: list[str]) -> Any:
    def run(out: Path, *options: Any) -> Any:
        return call("compare", *tiny, "--out", out, "--launcher", "ray", *options)

    return run


def test_ray_is_missing(on_ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    result = on_ray(tmp_path / "out", "--schemes", "pre")
    assert result.status == 2 and "Ray is missing: pip install 'geonorm[cluster]'" in result.err
    assert len(result.err.splitlines()) == 1 and not (tmp_path / "out").exists()


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
            victim = killed(out, "pre-lr0.005-seed1", process)
            assert process.wait() == 0, (tmp_path / "log").read_text()
        except BaseException:
            process.send_signal(signal.SIGINT)
            raise
    text = (out / "configs" / f"{victim}.log").read_text()
    workers = re.findall(r"worker (\d+) on", text)
    assert len(workers) == 2 and workers[0] != workers[1] and "resuming" in text, text
    runs = results(out)["runs"]
    assert len(runs) == 8 and {(run["scheme"], run["seed"]) for run in runs} == {
        (scheme, seed) for scheme in ("pre", "geonorm") for seed in range(4)
    }
    for run in runs:
        alone = tmp_path / "alone" / run["run"]
        assert main(["train", "--config", str(out / "configs" / f"{run['run']}.yaml"), "--out", str(alone)]) == 0
        assert run["status"] == "finished"
        assert losses(out / "runs" / run["run"]) == losses(alone), "bit for bit"
    capsys.readouterr()
    assert main([*words, "--out", str(out)]) == 0, "and any launcher knows what another has finished"
    assert "8 of 8 runs are finished already" in capsys.readouterr().out


def killed(out: Path, name: str, process: subprocess.Popen[bytes]) -> str:
    """Waits until a run has a checkpoint and is on its way to the next, then kills its worker; returns its name."""
    log, checkpoints = out / "configs" / f"{name}.log", out / "runs" / name / "checkpoints"
    while True:
        assert process.poll() is None, "the comparison ended before its worker could be killed"
        if list(checkpoints.glob("step-*")):
            (pid,) = re.findall(r"worker (\d+) on", log.read_text())
            os.kill(int(pid), signal.SIGKILL)
            return name
        time.sleep(0.02)
