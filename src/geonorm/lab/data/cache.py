"""The cache on disk: how files appear in it whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...errors import DataError, cause


def cache_folder() -> Path:
    """``$GEONORM_CACHE``, or ``~/.cache/geonorm`` where it is not set."""
    return Path(os.environ.get("GEONORM_CACHE") or os.path.expanduser("~/.cache/geonorm"))


@contextmanager
def write_errors(cache: Path) -> Iterator[None]:
    """Turn a failure to write (no permission, disk full) into one `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot write to the cache {cache} ({cause(error).lower()}): set GEONORM_CACHE to a writable folder"
        ) from error


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `final` on success and vanishes otherwise.

    Where `final` exists already, another process has finished the same work first, and its result stays.
    """
    temporary = final.with_name(f".{final.name}.{uuid.uuid4().hex}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        try:
            os.rename(temporary, final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
