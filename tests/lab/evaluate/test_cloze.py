"""Local question files: found by name, every line checked, and what the harness is told of them."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from geonorm.errors import DataError
from geonorm.lab.evaluate import cloze as questions

from ...rows import each

PLAIN: dict[str, Any] = {"context": "a", "choices": ["b", "c"], "gold": 1}
SHARED: dict[str, Any] = {"contexts": ["a", "b"], "choices": ["c", "c"], "gold": 0}


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n\n".join(map(json.dumps, rows)))  # blank lines between, which do not count
    return path


def test_sets_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the harness is told where their choices are."""
    monkeypatch.setenv("GEONORM_DATA", str(tmp_path))
    assert questions.local_sets() == {}
    (folder := tmp_path / "eval").mkdir()
    shared = write(folder / "shared.test.jsonl", SHARED)
    (plain := folder / "plain.validation.jsonl.xz").write_bytes(lzma.compress(json.dumps(PLAIN).encode()))
    (folder / "notes.txt").write_text("no set")
    assert questions.local_sets() == {"plain.validation": plain, "shared.test": shared}
    one, several = questions.definition("x", plain), questions.definition("y", shared)
    assert (one["task"], one["doc_to_text"], one["doc_to_choice"]) == ("x", "{{context}}", "{{choices}}")
    assert (several["task"], several["doc_to_text"], several["doc_to_choice"]) == ("y", "gold", "contexts")
    assert [len(each["metric_list"]) for each in (one, several)] == [2, 1]


NONE = ":3: not a set of questions"


@each(
    "first, row, message",
    [
        *((PLAIN, PLAIN | {"gold": gold}, NONE) for gold in (2, -1, True)),
        *((PLAIN, PLAIN | change, NONE) for change in ({"context": ["a"]}, {"choices": ["b", 2]}, {"choices": "bc"})),
        *((PLAIN, row, NONE) for row in ({"context": "a", "choices": ["b", "c"]}, 3)),
        *((PLAIN, SHARED | {"contexts": contexts}, NONE) for contexts in (["a"], "ab")),
        (SHARED, SHARED | {"choices": ["c", "d"]}, ":3: with contexts the choices are one continuation"),
        (PLAIN, SHARED, "some lines have context and some contexts"),
    ],
)
def test_every_line_must_be_a_question(first: object, row: object, message: str, tmp_path: Path) -> None:
    """Not the first alone: the harness ends at a later one in a traceback."""
    with pytest.raises(DataError, match=f"wrong.jsonl.*{message}"):
        questions.check_questions(write(tmp_path / "wrong.jsonl", first, row))
    with pytest.raises(DataError, match="no questions"):
        questions.check_questions(write(tmp_path / "empty.jsonl"))
