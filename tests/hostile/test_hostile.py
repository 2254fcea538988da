"""Hostile situations end in one right line: a sample of them here, all with -m slow."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

HOSTILE = runpy.run_path(str(Path(__file__).with_name("run.py")))
EVERY = [one for every in HOSTILE["KINDS"].values() for one in every]
SAMPLE = EVERY[5 :: len(EVERY) // 20][:20]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hostile")
    for above in (folder, *folder.parents[:2]):
        above.chmod(0o755)  # some situations are met without the rights of root
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEONORM_CACHE", str(folder / "cache"))
        HOSTILE["prepare"](folder)
        for path in (folder, folder / "cache", *(folder / "cache").rglob("*")):
            path.chmod(0o777)
        yield folder


def situation_of(one: Any) -> tuple[str, ...]:
    """What makes it another one than the others: the line, the words, what the files hold."""
    return (one.name, *one.words, repr(getattr(one, "files", "")), repr(getattr(one, "env", "")))


def test_there_are_over_two_hundred() -> None:
    assert len({one.name for one in EVERY}) > 220 and len({situation_of(one) for one in EVERY}) == len(EVERY)


@pytest.mark.parametrize("situation", SAMPLE, ids=lambda one: one.name[:80])
def test_a_sample_ends_in_one_right_line(situation: Any, prepared: Path) -> None:
    assert HOSTILE["verdict"](situation, prepared) == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_end_in_one_right_line(prepared: Path) -> None:
    wrong = {one.name: said for one in EVERY if (said := HOSTILE["verdict"](one, prepared))}
    assert not wrong, "\n".join(f"{name}\n    {said}" for name, said in wrong.items())
