"""What may run: names that a person typed, from the working directory too; those in a folder if that is allowed."""

import hashlib
import pickle
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from geonorm import Site, elsewhere, parse
from geonorm.elsewhere import Stored, allow_within
from geonorm.errors import ConfigError, UntrustedCode
from geonorm.lab.compare import compare
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
    """A working directory that is not on Python's path."""

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
        """Forgets what this process has loaded."""
        elsewhere.MODULES.clear()
        elsewhere.say.cache_clear()
        for name in [name for name in sys.modules if "rule_here" in name]:
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", ".")])
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
    assert kept["sha256"] == hashlib.sha256(kept["source"].encode()).hexdigest()
    assert kept["source"] in (path.read_text() for path in folder.path.rglob("*.py"))


@pytest.mark.parametrize("name", ["rule_here.py", "my.rule_here.py", "__init__.py"])
def test_helpers_of_a_file_lie_beside_it(name: str, folder: Folder) -> None:
    """Dots in its name are no packages: nothing of the folder above runs."""
    folder.write(f"sub/{name}", share="SCALE", more="from helper_rule_here import SCALE")
    (folder.path / "helper_rule_here.py").write_text("SCALE = 100.0")
    (folder.path / "sub/my.py").write_text("raise SystemExit")
    (folder.path / "sub/helper_rule_here.py").write_text("SCALE = 0.5")
    assert share(f"./sub/{name}:Half") == 0.5


NAMES = ["rule_here:Half", "./rule_here.py:Half"]


@pytest.mark.parametrize("name", NAMES)
def test_text_of_a_folder_runs_nothing(name: str, folder: Folder) -> None:
    """Neither the source at hand nor one that the folder brings along."""
    folder.write("rule_here.py")
    kept = sources_of(parse(name))
    folder.ran()
    for _ in ("at hand too", "there alone"):
        folder.new_process()
        for sources in (None, kept):
            with pytest.raises(UntrustedCode, match=r"runs/a names code, \S*rule_here\S*: .*--trust-code"):
                parse(stored(name, sources, "runs/a"))
            with pytest.raises(UntrustedCode):
                parse(Stored(f'mix(post, "{name}")'))  # text in a field that takes a scheme is one too
        assert not folder.ran()
        (folder.path / "rule_here.py").unlink(missing_ok=True)


def test_a_package_that_a_folder_names_runs_nothing(folder: Folder) -> None:
    """To find a module inside a package runs the package."""
    folder.write("rule_here_kit/__init__.py")
    folder.write("rule_here_kit/half.py")
    with pytest.raises(UntrustedCode):
        parse(stored("rule_here_kit.half:Half", None, "runs/a"))
    assert not folder.ran()


@pytest.mark.parametrize("name", NAMES)
def test_what_this_process_has_loaded_may_be_named_by_a_folder(name: str, folder: Folder) -> None:
    """That source alone: with another one it is a stranger's."""
    folder.write("rule_here.py")
    kept = sources_of(parse(name))
    folder.ran()
    assert share(stored(name, kept, "runs/a")) == 0.5 and not folder.ran()
    place = name.partition(":")[0]
    other = {place: {**kept[place], "source": kept[place]["source"].replace("0.5", "0.75")}}
    with pytest.raises(UntrustedCode):
        parse(stored(name, other, "runs/b"))
    assert not folder.ran()


@pytest.mark.parametrize("name", NAMES)
def test_whoever_allows_it_runs_it_for_that_alone(name: str, folder: Folder) -> None:
    folder.write("rule_here.py")
    with allow_within():
        assert share(stored(name, None, "runs/a")) == 0.5 and folder.ran()
    folder.new_process()
    with pytest.raises(UntrustedCode):
        parse(stored(name, None, "runs/a"))
    assert not folder.ran()


@pytest.mark.parametrize("name", NAMES)
def test_the_kept_source_is_what_runs(name: str, folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.write("rule_here.py")
    kept = sources_of(parse(name))
    folder.new_process()
    folder.write("rule_here.py", share="0.75")
    place = name.partition(":")[0]
    with allow_within():
        assert share(stored(name, kept, "runs/a")) == 0.5
        assert share(name) == 0.5  # what the name means from now on, for all who read the run
        said = f"{place} has changed since runs/a was made; the source that is kept there is used\n"
        assert capsys.readouterr().err == said
        (folder.path / "rule_here.py").unlink()
        folder.new_process()
        assert share(stored(name, kept, "runs/a")) == 0.5


def test_a_source_is_run_once(folder: Folder) -> None:
    """As with any module of Python, an edited file counts in a new process."""
    folder.write("rule_here.py")
    assert type(parse("./rule_here.py:Half")) is type(parse("./rule_here.py:Half"))
    folder.write("rule_here.py", share="0.75")
    assert share("./rule_here.py:Half") == 0.5
    Folder.new_process()
    assert share("./rule_here.py:Half") == 0.75


@pytest.mark.parametrize("name", ["./nowhere.py:Half", "nowhere_at_all:Half"])
def test_a_place_that_is_not_there(name: str, folder: Folder) -> None:
    for text in (name, stored(name, None, "runs/a")):
        with allow_within(), pytest.raises(ConfigError, match=r"No module named|no file"):
            parse(text)


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


def test_a_stored_text_stays_one_when_it_is_copied() -> None:
    text = Stored("a:B", {"a": "text"}, "runs/a")
    for copy in (deepcopy(text), pickle.loads(pickle.dumps(text))):  # noqa: S301
        assert isinstance(copy, Stored)
        assert (copy, copy.sources, copy.where) == ("a:B", {"a": "text"}, "runs/a")


def test_a_file_that_was_edited_is_compared_in_another_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, float] = {}
    monkeypatch.setattr(compare, "run_comparison", lambda c: found.update({c.out: share(c.schemes[0])}))
    for part in ("0.5", "0.25"):
        folder.write("rule_here.py", share=part)
        with pytest.raises(TypeError):  # nothing was run
            compare.compare("./rule_here.py:Half", data="stdlib")
    assert list(found.values()) == [0.5, 0.25]  # two keys: two folders
