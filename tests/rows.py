"""One test for many rows: every row runs, and the failure holds each row that failed."""

import functools
import inspect
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
    assert axis, f"no rows of {names}: the test could not fail"

    def decorate(test: Test) -> Test:
        once, axes = getattr(test, "rows", (test, []))
        axes = [axis, *axes]
        every = [{key: value for part in parts for key, value in part.items()} for parts in product(*axes)]

        @functools.wraps(once)
        def run(*args: Any, **fixtures: Any) -> None:
            skips, failures = list[BaseException](), list[BaseException]()
            for number, row in enumerate(every):
                try:
                    with of_row(number, fixtures) as apart:
                        once(*args, **{**fixtures, **apart}, **row)
                except pytest.skip.Exception as skip:
                    skips.append(skip)
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"row {number}: {row!s:.300}")
                    failures.append(error)
            if failures:
                raise BaseExceptionGroup(f"{len(failures)} of {len(every)} rows failed", failures)
            if len(skips) == len(every):
                raise skips[0]

        signature = inspect.signature(once)
        parameters = [p for name, p in signature.parameters.items() if name not in every[0]]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
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
