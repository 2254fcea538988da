"""The cache on disk: how files appear in it whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ...errors import DataError, explained


def cache_folder() -> Path:
    """``$GEONORM_CACHE``, or ``~/.cache/geonorm`` where it is not set."""
    return Path(os.environ.get("GEONORM_CACHE") or os.path.expanduser("~/.cache/geonorm"))


def write_errors(cache: Path) -> AbstractContextManager[None]:
    """Turn a failure to write (no permission, disk full) into one `DataError`."""
    return explained(f"cannot write to the cache {cache}: set GEONORM_CACHE to a writable folder", DataError, OSError)


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
