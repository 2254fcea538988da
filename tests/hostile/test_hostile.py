"""Hostile situations end in one right line: a sample of them here, all with -m slow (-k for those whose names hold a
word). A situation ends well in one right line: exit status 2, nothing on stdout, one line on stderr that says what it
must, no warning beside it, and no file changed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shlex
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from setting import SIMULATE, TEXT, TINY, Situation
from situations import SITUATIONS

EVERY = [one for every in SITUATIONS.values() for one in every]
SAMPLE = EVERY[5 :: len(EVERY) // 20][:20]
SECONDS = 60
NOBODY = 65534
MODELS = {"run", "model", "sim"}


def make_models(root: Path) -> None:
    """A finished run, its export and a simulation, to be copied."""
    from geonorm.cli.main import main

    root.chmod(0o755)
    (root / "text.txt").write_text(TEXT)
    with contextlib.chdir(root), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run = f"train {' '.join(TINY)} --out run --scheme pre"
        for line in (run, "export run --to model", f"{SIMULATE} --out sim"):
            assert main(shlex.split(line)) == 0, line


@contextlib.contextmanager
def surrounded(situation: Situation) -> Iterator[None]:
    """Its variables, and without the rights of root if it asks for that."""
    old = {name: os.environ.get(name) for name in situation.env}

    def put(values: Any) -> None:
        for name, value in values.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})

    put(situation.env)
    lower = situation.nobody and os.geteuid() == 0
    if lower:
        cache = Path(os.environ["GEONORM_CACHE"])
        for path in (cache, *cache.rglob("*")):  # what other situations left there is root's
            path.chmod(0o777)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if lower:
            os.seteuid(0)
        put(old)


def state(folder: Path) -> dict[str, str]:
    """Every file below a folder, with a hash of what it holds."""
    found = {}
    for path in sorted(folder.rglob("*")):
        kind = "link" if path.is_symlink() else "folder" if path.is_dir() else "other"
        if path.is_file() and not path.is_symlink():
            kind = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = kind
    return found


@contextlib.contextmanager
def limited() -> Iterator[None]:
    def over(*_: Any) -> None:
        raise TimeoutError(f"no end in {SECONDS} s")

    old = signal.signal(signal.SIGALRM, over)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


def set_up(situation: Situation, prepared: Path, place: Path) -> None:
    place.chmod(0o755)
    shutil.copy(prepared / "text.txt", place)
    words = {Path(word).parts[0] for word in [*situation.line.split(), *situation.files] if word.strip("/")}
    for name in MODELS & words:
        shutil.copytree(prepared / name, place / name)
    for name, content in situation.files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def verdict(situation: Situation, prepared: Path) -> str:
    """What is wrong with how it ended; empty if nothing is."""
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place), warnings.catch_warnings():
        warnings.simplefilter("default")
        return of_command(situation, prepared, Path(place))


def of_command(situation: Situation, prepared: Path, place: Path) -> str:
    from geonorm.cli.main import main

    set_up(situation, prepared, place)
    before = state(place)
    out, err = io.StringIO(), io.StringIO()
    with surrounded(situation), limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(shlex.split(situation.line))
        except BaseException as error:
            return f"{type(error).__name__}: {error}"
    if status != 2:
        return f"status {status}: {out.getvalue()[-200:]} {err.getvalue()[-200:]}"
    if changed := {name for name in before | state(place) if before.get(name) != state(place).get(name)}:
        return f"changed {sorted(changed)}: {err.getvalue()}"
    if out.getvalue():
        return f"stdout: {out.getvalue()[:200]} / {err.getvalue()}"
    return unsaid(err.getvalue().removesuffix("\n"), situation.words)


def unsaid(line: str, words: tuple[str, ...]) -> str:
    if not line.strip() or not line.isprintable() or len(line) > 600:  # a line break is not printable
        return f"{len(line.splitlines())} lines of {len(line)} characters: {line[:600]!r}"
    missing = [word for word in words if word not in line]
    return f"does not say {missing}: {line}" if missing else ""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("hostile")
    for above in (folder, *folder.parents):  # some situations are met without the rights of root
        if above == Path(tempfile.gettempdir()) or above.stat().st_uid != os.geteuid():
            break
        above.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEONORM_CACHE", str(folder / "cache"))
        make_models(folder)
        folder.chmod(0o777)
        yield folder


@pytest.mark.parametrize(
    "situation",
    [pytest.param(one, id=one.name[:80], marks=() if one in SAMPLE else pytest.mark.slow) for one in EVERY],
)
def test_a_situation_ends_in_one_right_line(situation: Situation, prepared: Path) -> None:
    assert verdict(situation, prepared) == ""
