"""transformers' own model tests, those of its source distribution, on one scheme of each kind."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("parameterized")

THEIRS = {("Ngpt", "resize_embeddings_untied"), ("Ngpt", "resize_tokens_embeddings")}
"""Tests that fail for reasons that are theirs (docs/parity.md)."""
DEPRECATED = "bc_cache_name_forward"
"""Since 5.24: wants a warning that the old name of the cache is deprecated; ours has both names."""


@pytest.mark.slow
@pytest.mark.net
def test_common_tests_of_transformers(tmp_path: Path) -> None:
    wanted = f"transformers=={importlib.metadata.version('transformers')}"
    download = ["download", "--quiet", "--no-deps", "--no-binary", "transformers", "--dest", str(tmp_path), wanted]
    fetched = subprocess.run([sys.executable, "-m", "pip", *download], capture_output=True, text=True)
    if fetched.returncode:
        pytest.skip(f"{wanted} cannot be had: {fetched.stderr.strip().splitlines()[-1:]}")
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as packed:
        packed.extractall(tmp_path, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # from 3.11.4 on
    source = next(path.parent for path in tmp_path.glob("*/tests"))
    words = [
        "-q",
        "-rf",
        "--tb=no",
        "-c",
        os.devnull,
        "--rootdir",
        str(source),
        "--noconftest",
        "-p",
        "no:cacheprovider",
    ]
    path = os.pathsep.join([str(source), *sys.path])
    driver = str(Path(__file__).with_name("common_tests.py"))
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", driver, *words],
        capture_output=True, text=True, cwd=source, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    failed = set(re.findall(r"^(?:SUB)?FAILED.*::Test(\w+)::test_(\w+)", ran.stdout, re.M))
    assert {(case, test) for case, test in failed if test != DEPRECATED} == THEIRS, ran.stdout[-4000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed and int(passed[1]) >= 240, ran.stdout[-4000:] + ran.stderr[-2000:]
