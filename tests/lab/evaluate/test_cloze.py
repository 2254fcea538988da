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
    monkeypatch.setenv("GEONORM_DATA", str(tmp_path))
    assert questions.local_sets() == {}
    (folder := tmp_path / "eval").mkdir()
    shared = write(folder / "shared.test.jsonl", SHARED)
    (plain := folder / "plain.validation.jsonl.xz").write_bytes(lzma.compress(json.dumps(PLAIN).encode()))
    (folder / "notes.txt").write_text("no set")
    assert questions.local_sets() == {"plain.validation": plain, "shared.test": shared}


def test_the_harness_is_told_where_the_choices_are(tmp_path: Path) -> None:
    plain = questions.definition("x", write(tmp_path / "plain.jsonl", PLAIN, PLAIN))
    shared = questions.definition("y", write(tmp_path / "shared.jsonl", SHARED))
    assert (plain["task"], plain["doc_to_text"], plain["doc_to_choice"]) == ("x", "{{context}}", "{{choices}}")
    assert (shared["task"], shared["doc_to_text"], shared["doc_to_choice"]) == ("y", "gold", "contexts")
    assert [len(told["metric_list"]) for told in (plain, shared)] == [2, 1]


def test_behind_several_contexts_stands_one_continuation(tmp_path: Path) -> None:
    """The harness is told of that of the right choice alone, and would compare no other."""
    with pytest.raises(DataError, match=r"q.jsonl:3: with contexts the choices are one continuation"):
        questions.check_questions(write(tmp_path / "q.jsonl", SHARED, SHARED | {"choices": ["c", "d"]}))


@each(
    "row",
    [
        PLAIN | {"gold": 2},
        PLAIN | {"gold": -1},
        PLAIN | {"gold": True},
        PLAIN | {"context": ["a"]},
        PLAIN | {"choices": ["b", 2]},
        PLAIN | {"choices": "bc"},
        {"context": "a", "choices": ["b", "c"]},
        SHARED | {"contexts": ["a"]},
        SHARED | {"contexts": "ab"},
        3,
    ],
)
def test_every_line_must_be_a_question(row: object, tmp_path: Path) -> None:
    """Not the first alone: the harness ends at a later one in a traceback."""
    with pytest.raises(DataError, match=r"wrong.jsonl:3: not a set of questions"):
        questions.check_questions(write(tmp_path / "wrong.jsonl", PLAIN, row))


def test_files_that_are_no_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no questions"):
        questions.check_questions(write(tmp_path / "empty.jsonl"))
    with pytest.raises(DataError, match="some lines have context and some contexts"):
        questions.check_questions(write(tmp_path / "both.jsonl", PLAIN, SHARED))
    (broken := tmp_path / "broken.jsonl").write_bytes(json.dumps(PLAIN).encode() + b"\n\xff\n")
    with pytest.raises(DataError, match="not UTF-8 at byte 51"):
        questions.check_questions(broken)
