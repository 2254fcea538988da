"""Hostile situations end in one right line: a sample of them here, all with -m slow (-k for those whose names hold a
word). A situation ends well in one right line: exit status 2, nothing on stdout, one line on stderr that says what it
must, no warning beside it, and no file changed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shlex
import shutil
import signal
import sys
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
MODELS = {"run", "model", "sim"}


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


def verdict(situation: Situation, prepared: Path, patch: pytest.MonkeyPatch) -> str:
    """What is wrong with how it ended; empty if nothing is."""
    from geonorm.cli.main import main

    place, out, err = Path.cwd(), io.StringIO(), io.StringIO()
    set_up(situation, prepared, place)
    for name, value in situation.env.items():
        patch.setenv(name, value)
    before = state(place)
    with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
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
    """A folder with a finished run, its export and a simulation, to be copied."""
    from geonorm.cli.main import main

    root = tmp_path_factory.mktemp("hostile")
    (root / "text.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(root):
        patch.setenv("GEONORM_CACHE", str(root / "cache"))
        for line in (
            f"train {' '.join(TINY)} --out run --scheme pre",
            "export run --to model",
            f"{SIMULATE} --out sim",
        ):
            assert main(shlex.split(line)) == 0, line
        yield root


@pytest.mark.parametrize(
    "situation",
    [pytest.param(one, id=one.name[:80], marks=() if one in SAMPLE else pytest.mark.slow) for one in EVERY],
)
def test_a_situation_ends_in_one_right_line(
    situation: Situation, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert verdict(situation, prepared, monkeypatch) == ""
