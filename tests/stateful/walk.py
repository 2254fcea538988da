"""Random walks through the life of a run's folder, every command of which an oracle judges.

    python tests/stateful/walk.py --seconds 3600 --seed 7
    python tests/stateful/walk.py --replay "wsd ngpt train:12 damage:7 train:3"

A walk trains, stops, kills, extends, reads and exports one run, and in between damages any file of its folder or
changes any of its settings. ONE invariant: a command that ends with status 0 has the result, bit for bit, of an oracle:
a run of the settings in the folder that nothing has ever disturbed. Any other ends with status 2, one line on stderr
and the folder as it was; a folder that nobody has damaged is never refused. No command takes longer than 20 s or ends
in a traceback.

Commands are forks of this process, which has imported everything: .05 to .3 s each. They are killed, interrupted, held
or out of disk at a file operation of their own that a random number chooses, so that a walk can be run again from its
words. One that fails is shortened by leaving out steps, and printed.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import hashlib
import json
import os
import random
import re
import select
import shutil
import signal
import stat
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import yaml

LIMIT = 20
WORDS = "a run that is killed at any moment goes on from its last checkpoint as if nothing had happened".split()
TINY = (
    "train --data text.txt --tokens.tokenizer byte --model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 "
    "--model.context 16 --model.vocab_size 257 --evaluation.tokens 256 --evaluation.trace_tokens 64 "
    "--evaluation.every 3 --evaluation.whole false --checkpoint.every 2 --runtime.device cpu "
    "--runtime.tensorboard false --optim.warmup_steps 2"
)
STARTS = {
    "cosine": "--steps 6 --evaluation.average 0.4 --model.attn_dropout 0.3",
    "constant": "--steps 6 --optim.name muon --optim.schedule constant",
    "wsd": "--steps 6 --optim.schedule wsd --optim.cooldown 0.4 --micro-batch 2",
}
SCHEMES = """
    pre geonorm(learn=affine) ngpt first(hybrid(input=norm),hybrid) residual_dual hyper attnres nag prores
""".split()
"""Those with streams, weights or constraints of their own, and those that change over training."""
DONOR = f"{TINY} {STARTS['cosine']} --scheme pre --seed 1 --out donor"
READERS = {
    "eval": "eval {} --data text.txt --tokens 300 --device cpu",
    "generate": "generate {} --prompt a --tokens 8 --seed 3 --device cpu",
    "probe": "probe {} --data text.txt --tokens 64 --device cpu --out {to}",
    "export": "export {} --to {to}",
    "report": "report {} --format csv --out {to}/page.csv",
}
UNCHANGED = set(
    """out resume branch init_from log.to runtime.device runtime.threads runtime.compile micro_batch
    runtime.parallel runtime.tensorboard preset data steps""".split()
)
"""Settings that a walk does not change: they need other software or minutes, are changed elsewhere, or change the order
of a sum, which a run that goes on may."""
VALUES: dict[str, list[Any]] = {
    "objective": ["mlm"], "recipe": ["own"], "scheme": ["lns", "post"], "optim.name": ["adamw", "muon"],
    "optim.schedule": ["wsd", "constant", "cosine"], "tokens.tokenizer": ["bpe"], "runtime.dtype": ["bf16"],
    "guard": ["rewind", "spikes"],
}  # fmt: skip
PRELOAD = """
    geonorm.cli.main geonorm.hf.export geonorm.lab.compare.compare geonorm.lab.evaluate.evaluate
    geonorm.lab.evaluate.generate geonorm.lab.export geonorm.lab.probe geonorm.lab.train.loop geonorm.lab.train.muon
    geonorm.report.formats geonorm.report.runs geonorm.report.probe geonorm.report.comparison geonorm.hf.modeling
    torch._dynamo torch._decomp.decompositions_for_jvp transformers.models.auto.modeling_auto tyro
    torch.distributed._composable torch.distributed.fsdp
""".split()
TIMES = re.compile(r"seconds|per_second|memory|wall|stopped_within|^identity$|^rows_sha256$|^sha256$")


class Ended(NamedTuple):
    """How a command ended; status None: it was killed, as it was to be, or for taking too long."""

    status: int | None
    out: str
    err: str


class Violation(Exception):
    """A command broke the invariant."""


class Moment(NamedTuple):
    """What happens to a command, `delay` seconds after its `count`th operation on a file of the run."""

    action: str
    count: int
    delay: float = 0.0


class Child:
    """A command in a process of its own, forked from this one."""

    def __init__(self, place: Path, words: list[str], moment: Moment | None = None) -> None:
        self.files = [place / f".{name}-{time.monotonic_ns()}" for name in ("out", "err")]
        self.held, held = os.pipe()
        going, self.go_on = os.pipe()
        self.after = 0
        """Operations on files of the run after it was held."""
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                for number, file in enumerate(self.files, 1):
                    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), number)
                os.close(self.go_on)  # so that it goes on where this process is no more
                os.chdir(place)
                from geonorm.cli.main import main

                if moment:
                    watch_files(moment, held, going)
                status = main(words)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        os.close(held)
        os.close(going)
        self.end = os.pidfd_open(self.pid)

    def wait_until_held(self) -> bool:
        """True if it waits at its moment; False if it has ended before."""
        ready, _, _ = select.select([self.held, self.end], [], [], LIMIT)
        self.after = self.held in ready and len(os.read(self.held, 1))
        return bool(self.after)

    def wait(self) -> Ended:
        os.close(self.go_on)
        late = not select.select([self.end], [], [], LIMIT)[0]
        if late:
            os.kill(self.pid, signal.SIGKILL)
        _, code = os.waitpid(self.pid, 0)
        self.after = len(os.read(self.held, 10_000)) if self.after else 0
        os.close(self.end)
        os.close(self.held)
        out, err = (file.read_text(errors="replace") for file in self.files)
        for file in self.files:
            file.unlink()
        if late:
            raise Violation(f"no end in {LIMIT} s: {out[-300:]} {err[-300:]}")
        return Ended(os.WEXITSTATUS(code) if os.WIFEXITED(code) else None, out, err)


def watch_files(moment: Moment, held: int, going: int) -> None:
    """Lets the moment come at the process's own operation on a file of the run."""
    left = moment.count

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal left
        if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "shutil.rmtree"):
            return
        reads = event == "os.listdir" or (event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR))
        if not str(arguments[0]).startswith("run") or (reads and moment.action == "full"):
            return
        left -= 1
        if left < 0 and moment.action == "hold":
            os.write(held, b"x")
        if left:
            return
        if moment.action == "kill":
            signal.setitimer(signal.ITIMER_REAL, moment.delay or 1e-6)  # its signal ends a process as SIGKILL does
        elif moment.action == "stop":
            os.kill(os.getpid(), signal.SIGINT)
        elif moment.action == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        else:
            os.write(held, b"x")
            os.read(going, 1)

    sys.addaudithook(look)


def run(place: Path, line: str | list[str], moment: Moment | None = None) -> Ended:
    """The command to its end."""
    return Child(place, line.split() if isinstance(line, str) else line, moment).wait()


class Oracle:
    """Runs that nothing disturbs, and what commands say of them."""

    def __init__(self, place: Path) -> None:
        self.place, self.runs, self.answers = place, dict[str, Path | str](), dict[tuple[str, str], Any]()
        rng = random.Random(0)
        self.text = "".join(" ".join(rng.choices(WORDS, k=8)) + ".\n" for _ in range(400))
        place.mkdir()
        (place / "text.txt").write_text(self.text)
        assert run(place, DONOR).status == 0

    def run(self, settings: dict[str, Any]) -> Path:
        """The folder of the undisturbed run of these settings, with a checkpoint of each of its steps."""
        settings = {**settings, "branch": None, "resume": "auto", "checkpoint": {"every": 1, "keep": 999}}
        settings.pop("out", None)
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        if key not in self.runs:
            (self.place / f"{key}.yaml").write_text(yaml.safe_dump(settings))
            ended = run(self.place, f"train --config {key}.yaml --out {key}")
            self.runs[key] = self.place / key if ended.status == 0 else ended.err
        folder = self.runs[key]
        if isinstance(folder, str):
            raise Violation(f"status 0, but an undisturbed run of these settings is refused: {folder}")
        return folder

    def answer(self, folder: Path, step: int, verb: str) -> Any:
        """What a command that reads a run says of it at a step."""
        steps = max(map(step_of, (folder / "checkpoints").iterdir()))
        whole = step == steps or verb == "report"
        name = folder.name if whole else f"{folder.name}/checkpoints/step-{step}"
        if (name, verb) not in self.answers:
            to = f"{verb}-{len(self.answers)}"
            ended = run(self.place, READERS[verb].format(name, to=to))
            if ended.status != 0:
                raise Violation(f"an undisturbed run gets {ended}")
            self.answers[name, verb] = answer_of(self.place, verb, name, to, ended)
        return self.answers[name, verb]


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read(path: Path) -> str:
    """The text of a file, which is none for a pipe or a device."""
    if not path.is_file():
        raise Violation(f"{path} is no file")
    return path.read_text("utf-8")


def rows_of(path: Path) -> list[str]:
    return path.read_text(errors="replace").splitlines() if path.is_file() else []


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if not TIMES.search(key)}
    return [without_times(part) for part in value] if isinstance(value, list) else value


def answer_of(place: Path, verb: str, name: str, to: str, ended: Ended) -> Any:
    """What a command came to, without times and names of folders: its lines, and the files that it wrote."""
    folder = place / to
    if verb == "eval":
        return {
            key: value for key, value in json.loads(ended.out).items() if key in ("loss", "bits_per_byte", "tokens")
        }
    if verb == "generate":
        return ended.out
    if verb == "export":
        return {path.name: digest(path) for path in folder.iterdir() if path.name != "README.md"}
    if verb == "probe":
        rows = [json.loads(line) for file in ("trace", "norms") for line in (folder / f"{file}.jsonl").open()]
        return [{key: value for key, value in row.items() if key not in ("model", "label")} for row in rows]
    return (folder / "page.csv").read_text()


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of what it holds."""
    content = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        kind = "folder" if stat.S_ISDIR(mode) else os.readlink(path) if stat.S_ISLNK(mode) else "other"
        content[str(path.relative_to(folder))] = digest(path) if stat.S_ISREG(mode) else kind
    content.pop(".lock", None)
    return content


class Walk:
    """One run in a folder of its own, and the steps that a walk can take: methods without a leading underscore."""

    def __init__(self, place: Path, start: str, scheme: str, oracle: Oracle) -> None:
        self.place, self.oracle = place, oracle
        self.folder, self.backup = place / "run", place / "backup"
        self.steps = 6
        self.line = f"{TINY} {STARTS[start]} --scheme {scheme} --out run"
        self.clean = True
        """Nobody has damaged anything since the folder was last right."""
        self.log: list[str] = []
        place.mkdir()
        (place / "text.txt").write_text(oracle.text)

    def step(self, rule: str, seed: int) -> None:
        rng = random.Random(seed)
        self.log.append(rule)
        getattr(self, f"rule_{rule}")(rng)

    # Training.

    def begin_anew(self, rng: random.Random) -> None:
        """Removes a run that has finished: nothing happens to it any more."""
        if '"finished"' in "".join(rows_of(self.folder / "summary.json")) and rng.random() < 0.8:
            shutil.rmtree(self.folder)
            self.clean, self.steps = True, 6

    def train_words(self, rng: random.Random, more: int = 0) -> list[str]:
        if (self.folder / "config.yaml").exists() and rng.random() < 0.6:
            words = ["train", "--config", "run/config.yaml"]
            return [*words, "--steps", str(self.steps + more)] if more else words
        return self.line.replace("--steps 6", f"--steps {self.steps + more}").split()

    def rule_train(self, rng: random.Random) -> None:
        self.judge_training(*self.run(self.train_words(rng)))

    def rule_stop(self, rng: random.Random) -> None:
        self.begin_anew(rng)
        self.judge_training(*self.run(self.train_words(rng), Moment("stop", int(10 ** rng.uniform(0, 2)))))

    def rule_kill(self, rng: random.Random) -> None:
        self.begin_anew(rng)
        delay = rng.choice([0, rng.uniform(0, 0.02), rng.uniform(0, 0.2)])
        moment = Moment("kill", int(10 ** rng.uniform(0, 2)), delay)
        ended, before = self.run(self.train_words(rng), moment)
        if ended.status is not None:
            self.judge_training(ended, before)

    def rule_full(self, rng: random.Random) -> None:
        """The disk is full for a moment."""
        self.begin_anew(rng)
        ended, _ = self.run(self.train_words(rng), Moment("full", int(10 ** rng.uniform(0, 2))))
        self.judge_training(ended, None, may_refuse=True)

    def rule_extend(self, rng: random.Random) -> None:
        more = 3 if self.steps < 12 else 0
        moment = Moment("kill", int(10 ** rng.uniform(0.5, 2)), 0) if rng.random() < 0.4 else None
        ended, before = self.run(self.train_words(rng, more), moment)
        stored = self.settings().get("steps")
        if more and stored == self.steps + more:
            self.steps = stored
        if ended.status is not None:
            # a cosine is not extended, and neither is what has no checkpoint of the shared part
            self.judge_training(ended, before, may_refuse=True)

    def rule_meanwhile(self, rng: random.Random) -> None:
        """While it trains, somebody starts it again, reads it, or damages a file."""
        self.begin_anew(rng)
        child = Child(self.place, self.train_words(rng), Moment("hold", int(10 ** rng.uniform(0, 1.8))))
        what = ""
        if child.wait_until_held():
            what = rng.choice(["train", "damage", "read"])
            self.log[-1] += f" {what}"
            if what == "train":
                ended = run(self.place, self.train_words(rng))
                if ended.status == 0:
                    self.compare_run(ended)
                elif ended.status != 2:
                    raise Violation(f"a second process: {ended}")
            elif what == "read":
                self.read(rng.choice(["eval", "generate"]), settled=False)
            else:
                recorded = self.settings()
                self.rule_damage(rng)
                ended = child.wait()
                self.judge_training(ended, None, recorded=recorded if child.after > 12 else {})
                return
        ended = child.wait()  # the other may have been faster
        faster = what == "train" and ("in use" in ended.err or "not empty" in ended.err)
        self.judge_training(ended, None, may_refuse=faster)

    def run(self, words: list[str], moment: Moment | None = None) -> tuple[Ended, dict[str, str]]:
        before = snapshot(self.folder)
        return run(self.place, words, moment), before

    def settings(self) -> dict[str, Any]:
        try:
            values = yaml.safe_load(read(self.folder / "config.yaml"))
        except (Violation, ValueError, yaml.YAMLError):
            return {}
        return values if isinstance(values, dict) else {}

    def judge_training(self, ended: Ended, before: Any, may_refuse: bool = False, recorded: Any = None) -> None:
        """recorded: the settings that it has, if not those of the folder; none where its result is not compared."""
        self.log[-1] += f" -> {ended.status}: {(ended.err or ended.out).strip()[-200:]}"
        if ended.status == 2:
            self.judge_refusal(ended, before, may_refuse)
        elif ended.status == 130 and "interrupted" in ended.err:  # before its first step
            if ended.err.count("\n") != 1:
                raise Violation(f"interrupted in several lines: {ended.err}")
        elif ended.status in (0, 130):
            if recorded != {}:
                self.compare_run(ended, recorded)
        else:
            raise Violation(f"status {ended.status}: {ended.out[-300:]} {ended.err[-2000:]}")

    def judge_refusal(self, ended: Ended, before: dict[str, str] | None, may_refuse: bool = False) -> None:
        lines = [line for line in ended.err.splitlines() if not line.endswith("falling back to the previous one")]
        if len(lines) != 1 or not lines[0].startswith("geonorm ") or "Traceback" in ended.err:
            raise Violation(f"status 2 with {len(lines)} lines: {ended.err[-2000:]}")
        if before is not None and (now := snapshot(self.folder)) != before:
            names = sorted(name for name in before | now if before.get(name) != now.get(name))
            raise Violation(f"refused, and changed {names}: {ended.err}")
        if self.clean and not may_refuse:
            raise Violation(f"refused, and nothing was damaged: {ended.err}")

    def compare_run(self, ended: Ended, recorded: dict[str, Any] | None = None) -> None:
        """Compares what is in the folder with an undisturbed run."""
        recorded = recorded or self.settings()
        oracle = self.oracle.run(recorded)
        summary = json.loads(read(self.folder / "summary.json"))
        steps = recorded["steps"] if ended.status == 0 else summary["steps"]
        if ended.status == 0:
            expected = json.loads((oracle / "summary.json").read_text())
            self.equal("summary", *({**without_times(each), "checkpoint": 0} for each in (summary, expected)))
            if "already finished" in ended.out:
                return
        for name in ("metrics.jsonl", "trace.jsonl", "norms.jsonl"):
            rows, expected = (
                [without_times(json.loads(line)) for line in rows_of(folder / name)] for folder in (self.folder, oracle)
            )
            self.equal(name, rows, [row for row in expected if row["step"] <= steps])
        files = self.folder / "checkpoints" / f"step-{steps}", oracle / "checkpoints" / f"step-{steps}"
        tensors = [{path.name: digest(path) for path in each.glob("*.safetensors")} for each in files]
        self.equal(f"checkpoint of step {steps}", *tensors)

    def equal(self, what: str, value: Any, expected: Any) -> None:
        if value != expected:
            keys = ()
            if isinstance(value, dict):
                keys = [key for key in value | expected if value.get(key) != expected.get(key)]
                value, expected = ({key: each.get(key) for key in keys} for each in (value, expected))
            raise Violation(f"status 0, and {what} is not the oracle's: {str(value)[:700]} != {str(expected)[:700]}")

    # Reading.

    def rule_read(self, rng: random.Random) -> None:
        self.read(rng.choice(list(READERS)))

    def read(self, verb: str, settled: bool = True) -> None:
        self.log[-1] += f" {verb}"
        to = f"{verb}-{len(self.log)}"
        ended, before = self.run(READERS[verb].format("run", to=to).split())
        self.log[-1] += f" -> {ended.status}: {(ended.err or ended.out).strip()[-200:]}"
        found = [step_of(path) for path in (self.folder / "checkpoints").glob("step-*")]
        if ended.status == 2:
            summary = self.folder / "summary.json"
            finished = summary.is_file() and '"finished"' in summary.read_text(errors="replace")
            ready = finished if verb == "export" else bool(found) or (verb == "report" and bool(self.settings()))
            self.judge_refusal(ended, before if settled else None, may_refuse=not ready or not settled)
            if (self.place / to).exists() and verb == "export":
                raise Violation(f"refused, and wrote {to}: {ended.err}")
            return
        if ended.status != 0 or "Traceback" in ended.err:
            raise Violation(f"status {ended.status}: {ended.err[-2000:]}")
        if settled and snapshot(self.folder) != before:
            raise Violation("a reader has changed the folder")
        if verb == "report":
            return
        answer = answer_of(self.place, verb, "run", to, ended)
        oracle = self.oracle.run(self.settings())
        steps = [step for step in found if step == max(found) or "falling back" in ended.err or not settled]
        if not any(answer == self.oracle.answer(oracle, step, verb) for step in steps):
            self.equal(f"{verb} at {steps}", answer, self.oracle.answer(oracle, steps[-1], verb))

    # Damage.

    def rule_damage(self, rng: random.Random) -> None:
        self.back_up()
        paths = sorted(path for path in self.folder.rglob("*") if not path.name.startswith("."))
        if not paths:
            return
        newest = max(self.folder.glob("checkpoints/step-*"), key=step_of, default=None)
        path = rng.choice([each for each in paths if newest in each.parents or rng.random() < 0.5] or paths)
        names = "delete cut swap flip flip times fifo folder link moved lines".split()
        how = rng.choice(names)
        self.log[-1] += f" {path.relative_to(self.folder)} {how}"
        self.clean = self.clean and how == "times"
        with contextlib.suppress(OSError, ValueError):  # a folder has no bytes, an empty file none to change
            self.damage(path, how, rng)

    def back_up(self) -> None:
        if self.clean and self.folder.exists():
            shutil.rmtree(self.backup, ignore_errors=True)
            shutil.copytree(self.folder, self.backup)
            self.backup_steps = self.steps

    def damage(self, path: Path, how: str, rng: random.Random) -> None:
        times = path.stat().st_atime_ns, path.stat().st_mtime_ns
        content = path.read_bytes() if path.is_file() else b""
        if how == "times":
            os.utime(path, ns=(rng.randrange(2 * 10**18),) * 2)
        elif how == "cut":
            os.truncate(path, rng.randrange(len(content)))
        elif how == "flip":  # a bit, and the times stay
            at = rng.randrange(len(content))
            path.write_bytes(content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :])
            os.utime(path, ns=times)
        elif how == "lines":  # lost, twice or in another order
            lines = content.splitlines(keepends=True)
            at = rng.randrange(len(lines))
            lines[at : at + 1] = rng.choice([[], [lines[at]] * 2])
            path.write_bytes(b"".join(rng.choice([lines, lines[::-1]])))
        elif how == "moved":  # to another place, with a link to it
            aside = self.place / f"moved-{len(self.log)}"
            path.rename(aside)
            path.symlink_to(aside)
        elif how == "swap":  # with that of another step, or of another run
            others = [*self.folder.rglob("*"), *(self.oracle.place / "donor").rglob("*")]
            alike = [p for p in others if p != path and (p.name == path.name or (is_step(p) and is_step(path)))]
            if alike:
                other = rng.choice(sorted(alike))
                self.log[-1] += f" by {other.relative_to(self.place.parent)}"
                remove(path)
                (shutil.copytree if other.is_dir() else shutil.copy2)(other, path)
        else:
            remove(path)
            if how == "fifo":
                os.mkfifo(path)
            elif how == "folder":
                path.mkdir()
            elif how == "link":
                path.symlink_to(rng.choice(["/dev/zero", "nowhere", path.name]))

    def rule_change(self, rng: random.Random) -> None:
        """Another value of a setting in config.yaml."""
        from geonorm.lab.runs.folder import flatten

        self.back_up()
        settings = self.settings()
        names = sorted(name for name in flatten(settings) if name not in UNCHANGED)
        if not names:
            return
        name = rng.choice(names)
        *groups, leaf = name.split(".")
        group = settings
        for part in groups:
            group = group[part]
        group[leaf] = another(name, group[leaf], rng)
        self.log[-1] += f" {name} {group[leaf]!r}"
        self.clean = False
        (self.folder / "config.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))

    def rule_restore(self, _: random.Random) -> None:
        """Everything as it was before the damage."""
        if not self.clean and self.backup.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(self.backup, self.folder)
            self.clean, self.steps = True, self.backup_steps


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def is_step(path: Path) -> bool:
    return path.name.startswith("step-") and path.is_dir()


def another(name: str, value: Any, rng: random.Random) -> Any:
    """Another value of a setting, right or wrong."""
    if name in VALUES:
        return rng.choice([each for each in VALUES[name] if each != value] or ["other"])
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.choice([1, -1, value])
    if isinstance(value, float):
        return rng.choice([value * 2, value / 2, 0.5])
    if isinstance(value, list):
        return value[::-1] if value else ["embed=2"]
    return rng.choice([1, 0.5, True, "silu", 2]) if value is None else f"{value}x"


RULES = dict(train=5, stop=3, kill=3, full=1, extend=2, read=6, damage=5, change=2, restore=1, meanwhile=2)  # noqa: C408
"""The rules of a walk, and how often each is drawn."""
Steps = list[tuple[str, int]]


def draw(rng: random.Random) -> tuple[str, Steps]:
    """A walk: schedule and scheme of its run, and its steps. What is damaged or changed is mostly used at once."""
    names = [rng.choice(["train", "stop", "kill", "kill"])]
    while len(names) < 12:
        names += rng.choices(list(RULES), list(RULES.values()))
        if names[-1] in ("damage", "change"):
            names += [rng.choice(["train", "stop", "read"])] * (rng.random() < 0.8)
            names += ["restore"] * (rng.random() < 0.6)
    return f"{rng.choice(list(STARTS))} {rng.choice(SCHEMES)}", [(name, rng.randrange(10**6)) for name in names]


def take(place: Path, start: str, steps: Steps, oracle: Oracle, taken: Counter[str] | None = None) -> str | None:
    """Takes a walk, whose steps it counts; what it broke, and its log."""
    shutil.rmtree(place, ignore_errors=True)
    walk = Walk(place, *start.split(), oracle)
    try:
        for rule, seed in steps:
            walk.step(rule, seed)
            if taken is not None:
                taken[rule] += 1
    except Violation as broken:
        return "\n  ".join([*walk.log, f"VIOLATION {broken}"])
    except Exception:
        return "\n  ".join([*walk.log, f"the folder cannot be read: {traceback.format_exc()}"])
    return None


def shorten(place: Path, start: str, steps: Steps, oracle: Oracle, problem: str) -> tuple[Steps, str]:
    """A walk without steps that it does not need to break the invariant, and what it broke."""
    for at in reversed(range(len(steps))):
        fewer = steps[:at] + steps[at + 1 :]
        if fewer and (still := take(place, start, fewer, oracle)):
            steps, problem = fewer, still
    return steps, problem


def preload() -> None:
    """Imports what commands import, and keeps forks from copying it."""
    for name in PRELOAD:
        import_module(name)
    sys.modules["torch"].set_num_threads(1)
    sys.modules["geonorm.cli.main"].publish = lambda out: None  # type: ignore[attr-defined]  # a probe's page takes 1 s
    gc.freeze()


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A folder for walks, with a cache of its own."""
    with tempfile.TemporaryDirectory(prefix="walk-") as made:
        os.environ |= {"GEONORM_CACHE": f"{made}/cache", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        yield Path(made)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--walks", type=int, default=10**9, help="at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", help="the words of a walk that failed")
    parser.add_argument("--go-on", action="store_true", help="after a violation, with the next walk")
    options = parser.parse_args()
    with home() as base:
        preload()
        oracle = Oracle(base / "oracle")
        begun, said, taken, broken = time.monotonic(), 0.0, Counter[str](), 0
        number = 0
        most = 1 if options.replay else options.walks
        while number == 0 or (number < most and time.monotonic() - begun < options.seconds):
            if options.replay:
                schedule, scheme, *words = options.replay.split()
                start = f"{schedule} {scheme}"
                steps = [(word.split(":")[0], int(word.split(":")[1])) for word in words]
            else:
                start, steps = draw(random.Random(f"{options.seed} {number}"))
            number += 1
            if problem := take(base / "walk", start, steps, oracle, taken):
                broken += 1
                if not options.replay:
                    steps, problem = shorten(base / "walk", start, steps, oracle, problem)
                walk = " ".join([start, *(f"{rule}:{seed}" for rule, seed in steps)])
                print(f'walk {number - 1} of seed {options.seed}: --replay "{walk}"\n  {problem}', flush=True)
                if not options.go_on:
                    return 1
            if time.monotonic() - said > 10:
                said = time.monotonic()
                print(f"{said - begun:.0f} s: {number} walks, {sum(taken.values())} steps, {broken} broken", flush=True)
        print(f"{number} walks of seed {options.seed}: {dict(taken)}; {len(oracle.runs)} oracles; {broken} broken")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
