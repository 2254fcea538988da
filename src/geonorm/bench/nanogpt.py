"""nanoGPT's own model (karpathy/nanoGPT, model.py) beside ours: read from a checkout, nothing of it stands here."""

from __future__ import annotations

import ast
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from io import StringIO
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ConfigError, cause
from ..lab.runs.environment import commit
from ..nn.config import PRESETS, DecoderConfig

SIZES = ("layers", "width", "heads", "hidden", "vocab_size", "context", "bias")


class NanoGPT:
    """A checkout. ConfigError, one line, for a path that is none; only a file that defines nanoGPT's classes is run."""

    name = "nanoGPT"

    def __init__(self, path: str) -> None:
        file = Path(path) / "model.py" if Path(path).is_dir() else Path(path)
        try:
            found = {node.name for node in ast.parse(file.read_bytes()).body if isinstance(node, ast.ClassDef)}
        except (OSError, ValueError, SyntaxError) as error:
            raise self.refusal(path, f"{file} cannot be read: {cause(error)}") from None
        if missing := {"GPT", "GPTConfig"} - found:
            raise self.refusal(path, f"{file} has no class {min(missing)}")
        spec = spec_from_file_location("geonorm_bench_nanogpt", file)
        assert spec is not None and spec.loader is not None
        self.path, self.module = path, module_from_spec(spec)
        try:
            spec.loader.exec_module(self.module)
        except Exception as error:
            raise self.refusal(path, cause(error)) from None
        self.revision = commit(file.parent)

    @staticmethod
    def refusal(path: str, why: str) -> ConfigError:
        return ConfigError(f"--nanogpt {path} is no checkout of nanoGPT: {why}")

    @staticmethod
    def shape(shape: DecoderConfig) -> DecoderConfig:
        """Our configuration of the function that nanoGPT computes: its GELU is by erf. ConfigError for a shape that it
        cannot have."""
        sizes = {name: getattr(shape, name) for name in SIZES}
        gpt2 = PRESETS["nano-gpt2"]
        if shape.hidden != 4 * shape.width or shape != replace(gpt2, **sizes, scheme=shape.scheme):
            raise ConfigError("--nanogpt needs a preset of nanoGPT's shape: nano-gpt2")
        return replace(shape, mlp="gelu")

    def build(self, shape: DecoderConfig) -> nn.Module:
        """Its model of this shape, without dropout."""
        sizes: dict[str, Any] = {
            "block_size": shape.context, "vocab_size": shape.vocab_size, "n_layer": shape.layers,
            "n_head": shape.heads, "n_embd": shape.width, "dropout": 0.0, "bias": shape.bias,
        }  # fmt: skip
        try:
            with redirect_stdout(StringIO()):  # it prints its size
                model: nn.Module = self.module.GPT(self.module.GPTConfig(**sizes))
        except Exception as error:
            raise self.refusal(self.path, cause(error)) from None
        return model
