"""What `compare`, `simulate` and `probe` return in Python: rows as tables, and the figures of the report.

Drawing stands above the studies, so that it is looked up by name when a figure is asked for.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from .errors import GeonormError, import_extra, require, unknown

Rows = Sequence[Mapping[str, Any]]


class Result(ABC):
    """Found by a study: `tables` are lists of rows by name, `files` what the folder of its command holds."""

    @abstractmethod
    def tables(self) -> dict[str, Rows]:
        """Lists of rows by name, the one that says most first."""

    def files(self) -> dict[str, Any]:
        """Content of the files of its folder by name: rows for NAME.jsonl."""
        raise NotImplementedError

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder as the command writes it, for as long as it is needed."""
        with TemporaryDirectory() as place:
            for name, content in self.files().items():
                lines = content if name.endswith(".jsonl") else [content]
                (Path(place) / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
            yield Path(place)

    def frame(self, table: str | None = None) -> Any:
        """A table as a pandas.DataFrame, the first of `tables` if none is named. Raises GeonormError for a table that
        is not there, or without pandas."""
        tables = self.tables()
        name = next(iter(tables)) if table is None else table
        if name not in tables:
            raise GeonormError(unknown("table", name, tables))
        return import_extra("pandas", "frame()", "train").DataFrame(list(tables[name]))

    def plot(
        self, figure: str | None = None, *, labels: Mapping[str, str] | None = None, size: Sequence[float] = ()
    ) -> Any:
        """A figure or a single panel of the report (`report.render.Figure`: shown by notebooks, .save("name.pdf")), the
        first if none is named. labels: by series, the name to write; size: width and height inside the axes, in mm;
        with either it has neither title nor text, for papers. Raises GeonormError for a figure that is not there, or
        without what draws it."""
        with self.folder() as place:
            try:
                drawn = import_module("geonorm.report").draw(place, [figure] if figure else (), labels, size)
            except ModuleNotFoundError as error:
                raise GeonormError(f"plot() needs {error.name}: pip install 'geonorm[train]'") from None
        require(drawn, "there is nothing to draw yet", GeonormError)
        return next(iter(drawn.values()))
