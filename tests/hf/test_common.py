"""transformers' own model tests, those of its source distribution, on one scheme of each kind."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("parameterized")

THEIRS = {name: {"resize_embeddings_untied", "resize_tokens_embeddings"} for name in ("ngpt", "bothngpt")}
"""Tests that fail for reasons that are theirs (docs/parity.md), by scheme."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of the installed release."""
    folder = tmp_path_factory.mktemp("transformers")
    wanted = f"transformers=={importlib.metadata.version('transformers')}"
    download = ["download", "--quiet", "--no-deps", "--no-binary", "transformers", "--dest", str(folder), wanted]
    fetched = subprocess.run([sys.executable, "-m", "pip", *download], capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"{wanted} cannot be had: {fetched.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
        packed.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4 on
    return next(path.parent for path in folder.glob("*/tests"))


@pytest.mark.slow
@pytest.mark.net
@pytest.mark.parametrize("scheme", ["geonorm", "ngpt", "hyper", "masked"])
def test_common_tests_of_transformers(scheme: str, source: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.md"
    words = [str(source), "--table", str(table), "-k", f"Test{scheme[0].upper()}{scheme[1:]}"]
    driver = str(Path(__file__).with_name("common_tests.py"))
    ran = subprocess.run([sys.executable, driver, *words], capture_output=True, text=True)
    text = table.read_text() if table.is_file() else ran.stdout + ran.stderr
    failed = {name for row in re.findall(r"^\| failed.*\| (.*) \|$", text, re.M) for name in row.split(", ")}
    passed = re.search(r"(\d+) passed", text)
    assert failed == THEIRS.get(scheme, set()), ran.stdout[-4000:]
    assert passed and int(passed[1]) >= 60, text
