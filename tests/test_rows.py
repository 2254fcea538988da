"""That `each` runs every row and fails where one of them does."""

import os
from pathlib import Path
from typing import Any

import pytest

from .rows import each


def test_every_row_runs_and_the_failure_names_all_that_failed() -> None:
    seen = []

    @each("left, right", [(1, 1), (2, 3), (5, 4)])
    @each("sign", [1, -1])
    def compare(left: int, right: int, sign: int) -> None:
        seen.append((left, right, sign))
        assert sign * left <= sign * right, "in order"

    with pytest.raises(ExceptionGroup, match="2 of 6 rows failed") as error:
        compare()
    assert seen == [(1, 1, 1), (1, 1, -1), (2, 3, 1), (2, 3, -1), (5, 4, 1), (5, 4, -1)]
    notes = [failure.__notes__[-1] for failure in error.value.exceptions]
    assert notes == ["row 3: {'left': 2, 'right': 3, 'sign': -1}", "row 4: {'left': 5, 'right': 4, 'sign': 1}"]


def test_a_row_leaves_no_files_patches_or_lines_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @each("number", [1, 2])
    def leave(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
        assert not list(tmp_path.iterdir()) and "ROW" not in os.environ and Path.cwd() != tmp_path.parent / "0"
        (tmp_path / "file").touch()
        monkeypatch.setenv("ROW", str(number))
        monkeypatch.chdir(tmp_path)
        print(number)
        assert capsys.readouterr().out == f"{number}\n"
        print("more")

    leave(tmp_path=tmp_path, monkeypatch=monkeypatch, capsys=capsys)
    assert len(list(tmp_path.iterdir())) == 2 and "ROW" not in os.environ
