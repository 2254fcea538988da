"""One test for many rows: every row runs, and the failure names each row that failed."""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

Test = Callable[..., None]


def each(names: str, rows: Iterable[Any]) -> Callable[[Test], Test]:
    """As `pytest.mark.parametrize(names, rows)`, but all rows are one test. Several of them make a product.

    For rows of milliseconds, where a test of its own for each costs more than what it checks. Rows share the test's
    fixtures, but each has a folder of its own as tmp_path, its patches are taken back, and what was printed before it
    is gone. A row may skip itself; where all do, the test is skipped.
    """
    keys = [name.strip() for name in names.split(",")]
    axis = [dict(zip(keys, row if len(keys) > 1 else [row], strict=True)) for row in rows]
    if not axis:
        raise ValueError(f"no rows of {names}: the test could not fail")

    def decorate(test: Test) -> Test:
        once, axes = getattr(test, "rows", (test, []))
        axes = [axis, *axes]
        source = inspect.unwrap(once).__code__.co_filename

        @functools.wraps(once)
        def run(*args: Any, **fixtures: Any) -> None:
            skips: list[BaseException] = []
            failures: dict[str, BaseException] = {}
            for number, parts in enumerate(product(*axes)):
                row = {key: value for part in parts for key, value in part.items()}
                try:
                    with of_row(number, fixtures) as apart:
                        once(*args, **{**fixtures, **apart}, **row)
                except pytest.skip.Exception as skip:
                    skips.append(skip)
                except (Exception, pytest.fail.Exception) as error:
                    failures[f"row {number} ({', '.join(f'{key}={row[key]!s:.100}' for key in row)})"] = error
            count = number + 1
            if failures:
                lines = [f"{row}: {place(error, source)}" for row, error in failures.items()]
                first = next(iter(failures.values()))
                raise AssertionError(f"{len(failures)} of {count} rows failed\n" + "\n".join(lines)) from first
            if len(skips) == count:
                raise skips[0]

        signature = inspect.signature(once)
        taken = {key for axis in axes for key in axis[0]}
        run.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[p for name, p in signature.parameters.items() if name not in taken]
        )
        run.rows = once, axes  # type: ignore[attr-defined]
        return run

    return decorate


@contextmanager
def of_row(number: int, fixtures: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Fixtures that a row does not share with the others."""
    apart: dict[str, Any] = {}
    for capture in {"capsys", "capfd"} & set(fixtures):
        fixtures[capture].readouterr()
    if "tmp_path" in fixtures:
        apart["tmp_path"] = fixtures["tmp_path"] / str(number)
        apart["tmp_path"].mkdir()
    if "monkeypatch" not in fixtures:
        yield apart
        return
    with fixtures["monkeypatch"].context() as patch:
        yield {**apart, "monkeypatch": patch}


def place(error: BaseException, source: str) -> str:
    """The last line of the file of the test that an error came through, its kind, and how its message begins."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == source]
    message = str(error).strip().partition("\n")[0]
    return f"line {lines[-1] if lines else '?'}: {type(error).__name__}: {message}"
