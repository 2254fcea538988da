"""What may run: names that a person typed, from the working directory too; of those in a folder only known sources."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from geonorm import Site, elsewhere, parse
from geonorm.elsewhere import Stored, allow_within
from geonorm.errors import ConfigError, UntrustedCode
from geonorm.schemes import sources_of, stored

RULE = """
from pathlib import Path
from dataclasses import dataclass
from geonorm import Placement
{more}
Path({mark!r}).touch()

@dataclass(frozen=True)
class Half(Placement):
    def write(self, x, u, p, site, h=1.0):
        return x + h * {share} * u
"""
SITE = Site(0, "mlp", 2)


class Folder:
    """A working directory that is not on Python's path, with a cache of its own."""

    def __init__(self, path: Path) -> None:
        self.path, self.mark = path, path / "it-ran"

    def write(self, name: str, share: str = "0.5", more: str = "") -> str:
        text = RULE.format(mark=str(self.mark), share=share, more=more)
        (self.path / name).parent.mkdir(exist_ok=True)
        (self.path / name).write_text(text)
        return text

    def ran(self) -> bool:
        found = self.mark.exists()
        self.mark.unlink(missing_ok=True)
        return found

    @staticmethod
    def new_process() -> None:
        """Forgets what this process has loaded; the cache on disk stays."""
        elsewhere.HERE.clear()
        elsewhere.BOUND.clear()
        elsewhere.SAID.clear()
        for name in [name for name in sys.modules if "rule_here" in name]:
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
    yield Folder(tmp_path / "here")
    Folder.new_process()


def share(text: str) -> float:
    return float(parse(text).write(torch.zeros(1), torch.ones(1), None, SITE))


@pytest.mark.parametrize("name", ["rule_here:Half", "./rule_here.py:Half", "sub/rule_here.py:Half"])
def test_what_was_typed_comes_from_the_working_directory(name: str, folder: Folder) -> None:
    folder.write("sub/rule_here.py" if name.startswith("sub") else "rule_here.py")
    scheme = parse(name)
    assert folder.ran() and str(scheme) == name and parse(str(scheme)) == scheme and share(name) == 0.5
    assert str(parse(f"mix(post, {name}, share=0.75)")) == f"mix(b={name}, share=0.75)"
    (kept,) = sources_of(scheme).values()
    (text,) = kept["files"].values()
    assert kept["sha256"] == hashlib.sha256(text.encode()).hexdigest() and text in (
        path.read_text() for path in folder.path.rglob("*.py")
    )


@pytest.mark.parametrize("name", ["rule_here.py", "my.rule_here.py", "__init__.py"])
def test_helpers_of_a_file_lie_beside_it(name: str, folder: Folder) -> None:
    """Dots in its name are no packages: nothing of the folder above runs."""
    folder.write(f"sub/{name}", share="SCALE", more="from helper_rule_here import SCALE")
    (folder.path / "helper_rule_here.py").write_text("SCALE = 100.0")
    (folder.path / "sub/my.py").write_text("raise SystemExit")
    (folder.path / "sub/helper_rule_here.py").write_text("SCALE = 0.5")
    assert share(f"./sub/{name}:Half") == 0.5
    (kept,) = sources_of(parse(f"./sub/{name}:Half")).values()
    assert list(kept["files"]) == [name.removesuffix(".py"), "helper_rule_here"]
    assert kept["files"]["helper_rule_here"] == "SCALE = 0.5"


@pytest.mark.parametrize("name", ["rule_here:Half", "./rule_here.py:Half"])
def test_text_of_a_folder_runs_only_what_was_typed_before(name: str, folder: Folder) -> None:
    folder.write("rule_here.py")
    with pytest.raises(UntrustedCode, match=r"names code, \S*rule_here\S* \(sha256 .*--trust-code"):
        parse(stored(name, None, "runs/a"))
    assert not folder.ran()
    with pytest.raises(UntrustedCode):
        parse(Stored(f'mix(post, "{name}")'))  # text in a field that takes a scheme is one too
    assert not folder.ran()
    assert share(name) == 0.5  # typed
    folder.new_process()
    assert folder.ran() and share(stored(name, None, "runs/a")) == 0.5  # another process of the same user
    folder.new_process()
    folder.write("rule_here.py", share="0.75")
    folder.ran()
    with pytest.raises(UntrustedCode):
        parse(stored(name, None, "runs/a"))
    assert not folder.ran()


def test_a_source_that_a_folder_brings_along_is_not_trusted_for_that(folder: Folder, tmp_path: Path) -> None:
    folder.write("rule_here.py")
    kept = sources_of(parse("rule_here:Half"))
    shutil.rmtree(tmp_path / "cache")  # now the folder is a stranger's
    folder.ran()
    for _ in ("at hand too", "there alone"):
        folder.new_process()
        with pytest.raises(UntrustedCode, match=r"runs/a names code, rule_here"):
            parse(stored("rule_here:Half", kept, "runs/a"))
        assert not folder.ran()
        (folder.path / "rule_here.py").unlink(missing_ok=True)


def test_whoever_allows_it_is_told_and_asked_once(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write("rule_here.py")
    with allow_within():
        assert share(stored("rule_here:Half", None, "runs/a")) == 0.5
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1 and "rule_here (sha256" in err and "of runs/a runs, as you said" in err
    folder.new_process()
    assert share(stored("rule_here:Half", None, "runs/a")) == 0.5 and capsys.readouterr().err == ""


def test_the_kept_source_is_what_runs(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write("rule_here.py")
    kept = sources_of(parse("rule_here:Half"))
    folder.new_process()
    folder.write("rule_here.py", share="0.75")
    assert share(stored("rule_here:Half", kept, "runs/a")) == 0.5
    assert share("rule_here:Half") == 0.5  # what the name means from now on, for all who read the run
    assert (
        capsys.readouterr().err
        == "rule_here has changed since runs/a was made; the source that is kept there is used\n"
    )
    with pytest.raises(ConfigError, match=r"rule_here is not what it was for runs/a.*put it back"):
        parse(stored("rule_here:Half", kept, "runs/a", strict=True))
    (folder.path / "rule_here.py").unlink()
    folder.new_process()
    assert share(stored("rule_here:Half", kept, "runs/a", strict=True)) == 0.5


def test_modules_beside_it_belong_to_the_source(folder: Folder) -> None:
    """A package with parts: an edit of any of them is another source, and what is kept runs without the folder."""
    (folder.path / "rule_here_kit").mkdir()
    for name, text in (("__init__", "from .half import Half\n"), ("numbers", "from . import deep\nSHARE = deep.SHARE"),
                       ("deep", "SHARE = 0.5\n"), ("unused", "raise SystemExit\n")):  # fmt: skip
        (folder.path / "rule_here_kit" / f"{name}.py").write_text(text)
    folder.write("rule_here_kit/half.py", share="SHARE", more="from .numbers import SHARE")
    name = "rule_here_kit.half:Half"
    assert share(name) == 0.5
    kept = sources_of(parse(name))
    assert set(kept["rule_here_kit.half"]["files"]) == {
        "rule_here_kit.half", "rule_here_kit", "rule_here_kit.numbers", "rule_here_kit.deep",
    }  # fmt: skip
    folder.new_process()
    (folder.path / "rule_here_kit" / "deep.py").write_text("SHARE = 0.75\n")
    with pytest.raises(UntrustedCode):
        parse(stored(name, None, "runs/a"))
    assert share(stored(name, kept, "runs/a")) == 0.5
    assert not any(module.startswith("rule_here_kit.") and "@" not in module for module in sys.modules)


LATE = """
from dataclasses import dataclass
from geonorm import Placement

@dataclass(frozen=True)
class Half(Placement):
    def write(self, x, u, p, site, h=1.0):
        {statement}
        return x + h * {share} * u
"""


@pytest.mark.parametrize(
    ("statement", "share_of"),
    [
        ("from rule_here_beside import SHARE", "SHARE"),
        ("import rule_here_beside", "rule_here_beside.SHARE"),
        ("import math, rule_here_beside as beside", "beside.SHARE"),
        ("import rule_here_kit.numbers", "rule_here_kit.numbers.SHARE"),
        ("import rule_here_kit.numbers as numbers", "numbers.SHARE"),
        ("from rule_here_kit import numbers", "numbers.SHARE"),
    ],
)
@pytest.mark.parametrize("name", ["./rule_here.py:Half", "rule_here:Half", "stored"])
def test_imports_inside_functions_come_from_the_source(
    name: str, statement: str, share_of: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run at the first step, when the file beside it may be another one."""
    (folder.path / "rule_here_kit").mkdir()
    beside = [folder.path / "rule_here_beside.py", folder.path / "rule_here_kit" / "numbers.py"]
    for path in beside:
        path.write_text("SHARE = 0.5\n")
    (folder.path / "rule_here.py").write_text(LATE.format(statement=statement, share=share_of))
    if name == "stored":
        kept = sources_of(parse("./rule_here.py:Half"))
        folder.new_process()
        monkeypatch.syspath_prepend(str(folder.path))  # as under python -m
        scheme = parse(stored("./rule_here.py:Half", kept, "runs/a"))
    else:
        scheme = parse(name)
    for path in beside:
        path.write_text("raise SystemExit\n")
    for step in (scheme.write, torch.compile(scheme.write, backend="eager")):
        assert float(step(torch.zeros(1), torch.ones(1), None, SITE)) == 0.5


def test_a_class_of_a_module_beside_it_is_that_of_the_source(folder: Folder) -> None:
    """The scheme writes itself by the module of its class, and a model is built of what it writes."""
    folder.write("rule_here_beside.py")
    (folder.path / "rule_here.py").write_text("from rule_here_beside import Half\n")
    kept = sources_of(parse("./rule_here.py:Half")) | {"./rule_here.py": {"files": elsewhere.gather("./rule_here.py")}}
    folder.new_process()
    folder.write("rule_here_beside.py", share="0.75")
    scheme = parse(stored("./rule_here.py:Half", kept, "runs/a"))
    assert str(scheme) == "rule_here_beside:Half" and share(str(scheme)) == 0.5


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import sys\nsys.exit(0)", "cannot import {}: SystemExit: 0"),
        ("def f(:", "cannot import {}: SyntaxError"),
        ("1 / 0", "cannot import {}: ZeroDivisionError: division by zero"),
        ("import no_such_module_here", "cannot import {}: ModuleNotFoundError: No module named 'no_such_module_here'"),
        ("Half = 3", "is not a subclass"),
        ("", "has no attribute 'Half'"),
    ],
)
@pytest.mark.parametrize("place", ["rule_here", "./rule_here.py"])
def test_a_module_that_fails_is_one_line(place: str, body: str, says: str, folder: Folder) -> None:
    (folder.path / "rule_here.py").write_text(body)
    with pytest.raises(ConfigError) as caught:
        parse(f"{place}:Half")
    assert says.format(place) in str(caught.value) and len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["./nowhere.py:Half", "nowhere_at_all:Half"])
def test_a_place_that_is_not_there(name: str, folder: Folder) -> None:
    with pytest.raises(ConfigError, match=r"No module named|no file"):
        parse(name)
    with pytest.raises(ConfigError, match=r"No module named|no file"):
        parse(stored(name, None, "runs/a"))


def test_without_a_cache_this_process_remembers(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder.path / "file").touch()
    monkeypatch.setenv("GEONORM_CACHE", str(folder.path / "file"))
    folder.write("rule_here.py")
    assert share("rule_here:Half") == share(stored("rule_here:Half", None, "runs/a")) == 0.5


def test_a_stored_text_stays_one_when_it_is_copied() -> None:
    text = Stored("a:B", {"a": {"a": "text"}}, "runs/a", True)
    for copy in (deepcopy(text), pickle.loads(pickle.dumps(text))):  # noqa: S301
        assert isinstance(copy, Stored) and (copy, copy.sources, copy.where, copy.strict) == (
            "a:B", {"a": {"a": "text"}}, "runs/a", True,
        )  # fmt: skip
