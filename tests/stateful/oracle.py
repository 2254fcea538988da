"""Commands as forks of this process, what happens to them and to their files, and runs that nothing disturbs."""

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
from collections.abc import Iterator
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from geonorm.lab.runs.folder import flatten

LIMIT = 20
WORDS = "a run that is killed at any moment goes on from its last checkpoint as if nothing had happened".split()
TINY = (
    "train --data text.txt --tokens.tokenizer byte --model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 "
    "--model.context 16 --model.vocab_size 257 --evaluation.tokens 256 --evaluation.trace_tokens 64 "
    "--evaluation.every 3 --evaluation.whole false --checkpoint.every 2 --runtime.device cpu "
    "--runtime.tensorboard false --optim.warmup_steps 2"
)
STARTS = {
    "cosine": "--steps 6 --evaluation.average 0.8 --model.attn_dropout 0.3",
    "constant": "--steps 6 --optim.name muon --optim.schedule constant",
    "wsd": "--steps 6 --optim.schedule wsd --optim.cooldown 0.4 --micro-batch 2",
}
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
TIMES = re.compile(r"seconds|per_second|memory|wall|^identity$|^rows_sha256$|^sha256$")


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

    def __init__(self, place: Path, line: str, moment: Moment | None = None) -> None:
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
                status = main(line.split())
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


def run(place: Path, line: str, moment: Moment | None = None) -> Ended:
    """The command to its end."""
    return Child(place, line, moment).wait()


def write_text(place: Path) -> None:
    """What the runs of a folder are trained on."""
    rng = random.Random(0)
    (place / "text.txt").write_text("".join(" ".join(rng.choices(WORDS, k=8)) + ".\n" for _ in range(400)))


class Oracle:
    """Runs that nothing disturbs, and what commands say of them."""

    def __init__(self, place: Path) -> None:
        self.place, self.runs, self.answers = place, dict[str, Path | str](), dict[tuple[str, str], Any]()
        place.mkdir()
        write_text(place)
        assert run(place, DONOR).status == 0

    def run(self, settings: dict[str, Any]) -> Path:
        """The folder of the undisturbed run of these settings, with a checkpoint of each of its steps."""
        settings |= {"branch": None, "resume": "auto", "accept_changed": [], "checkpoint": {"every": 1, "keep": 999}}
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
        name = folder.name if step == steps else f"{folder.name}/checkpoints/step-{step}"
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


def summary_of(folder: Path) -> Any:
    return without_times(json.loads(read(folder / "summary.json")))


def result_of(folder: Path, step: int, last: float = inf) -> dict[str, Any]:
    """Rows of a run without times, those up to `last`, and what its checkpoint of a step holds."""
    names = "metrics.jsonl", "trace.jsonl", "norms.jsonl"
    rows = {name: [without_times(json.loads(line)) for line in rows_of(folder / name)] for name in names}
    tensors = (folder / "checkpoints" / f"step-{step}").glob("*.safetensors")
    upto = {name: [row for row in rows[name] if row["step"] <= last] for name in names}
    return upto | {path.name: digest(path) for path in tensors}


def answer_of(place: Path, verb: str, name: str, to: str, ended: Ended) -> Any:
    """What a command came to, without times and names of folders: its lines, and the files that it wrote."""
    folder = place / to
    if verb == "eval":
        return [json.loads(ended.out)[key] for key in ("loss", "bits_per_byte", "tokens")]
    if verb == "generate":
        return ended.out
    if verb == "export":
        files = {path.name: digest(path) for path in folder.iterdir() if path.name != "README.md"}
        return files | result_of(place / name, -1)
    rows = [json.loads(line) for file in ("trace", "norms") for line in (folder / f"{file}.jsonl").open()]
    return [{key: value for key, value in row.items() if key not in ("model", "label")} for row in rows]


def snapshot(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of what it holds."""
    content = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        kind = "folder" if stat.S_ISDIR(mode) else os.readlink(path) if stat.S_ISLNK(mode) else "other"
        content[str(path.relative_to(folder))] = digest(path) if stat.S_ISREG(mode) else kind
    content.pop(".lock", None)
    return content


def damage_file(folder: Path, donor: Path, aside: Path, rng: random.Random) -> str:
    """Damages a file or folder below `folder`, often of its newest checkpoint or its rows, and returns how.

    donor: another run. aside: a free place."""
    paths = sorted(path for path in folder.rglob("*") if not path.name.startswith("."))
    newest = max(folder.glob("checkpoints/step-*"), key=step_of, default=None)
    likely = [each for each in paths if newest in each.parents or each.suffix == ".jsonl" or rng.random() < 0.3]
    path = rng.choice(likely or paths)
    how = rng.choice("delete cut swap flip flip flip flip times fifo folder link moved lines".split())
    others = [each for each in sorted([*folder.rglob("*"), *donor.rglob("*")]) if each != path]
    alike = [each for each in others if each.name == path.name or each.parent.name == path.parent.name == "checkpoints"]
    other = rng.choice(alike or [path])
    with contextlib.suppress(OSError, ValueError):  # a folder has no bytes, an empty file none to change
        damage(path, how, rng, other, aside)
    return f"{path.relative_to(folder)}{f' {other}' * (how == 'swap')} {how}"


def tamper(folder: Path, record: str, rng: random.Random) -> str:
    """Flips a bit, loses or repeats a row or changes a number of its record; the name of the file."""
    newest = max(folder.glob("checkpoints/step-*"), key=step_of, default=folder)
    kind = rng.choice(["*.safetensors", "*.jsonl", record])
    path = rng.choice(sorted([*newest.glob(kind), *folder.glob(kind)]) or [folder / "metrics.jsonl"])
    with contextlib.suppress(OSError, ValueError):
        if path.suffix == ".json":
            path.write_text(re.sub(r'(?<=(?:offset|l_loss)": )\d', lambda d: str(9 - int(d[0])), path.read_text()))
        how = {".jsonl": rng.choice(["flip", "lines", "lines"]), ".json": "times"}.get(path.suffix, "flip")
        damage(path, how, rng, path, path)
    return str(path.relative_to(folder))


def damage(path: Path, how: str, rng: random.Random, other: Path, aside: Path) -> None:
    """other: what `swap` puts in its place."""
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
        path.rename(aside)
        path.symlink_to(aside)
    elif how == "swap":  # with that of another step, or of another run
        if other != path:
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


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def change_setting(settings: dict[str, Any], rng: random.Random) -> str:
    """Gives a setting another value and returns its name and value; of settings that are damaged one is new."""
    name = rng.choice(sorted(name for name in flatten(settings) if name not in UNCHANGED) or ["scheme"])
    *groups, leaf = name.split(".")
    for part in groups:
        settings = settings[part]
    settings[leaf] = another(name, settings.get(leaf), rng)
    return f"{name} {settings[leaf]!r}"


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
