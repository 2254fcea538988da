"""What a result depends on besides its settings."""

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ...ops.available import read_backend
from .folder import read_text


def collect(device: torch.device, threads: int | None = None, data_sha256: str | None = None) -> dict[str, Any]:
    """Versions, commit, device, threads (those of this process if not given) and data hash, for environment.json. What
    a run knows besides stands in provenance.py."""
    return {
        "geonorm": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "numpy": installed_version("numpy"),
        "tokenizers": installed_version("tokenizers"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cores": os.cpu_count(),
        "backend": read_backend("auto"),
        "threads": torch.get_num_threads() if threads is None else threads,
        "data_sha256": data_sha256,
    }


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit(here: Path = Path(__file__).parent) -> str | None:
    """Commit of the source tree this package runs from, or of another's, with + when it has local changes; None outside
    a checkout, and in one that does not track it, as where an environment lies in somebody's repository."""
    try:
        subprocess.run(["git", "ls-files", "--error-unmatch", "."], cwd=here, capture_output=True, check=True)
        words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        return subprocess.run(words, cwd=here, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def processor() -> str:
    name = re.search(r"^model name\s*: (.+)$", read_text(Path("/proc/cpuinfo")), re.MULTILINE)
    return name[1] if name else platform.processor() or platform.machine()
