"""Two hundred situations in which a command, or a call from Python, cannot do what is asked.

Each must end in one line that names the problem and what to do about it, with exit status 2 and nothing written. The
driver (run.py) makes a folder of its own for every situation, with `text.txt` in it, what `files` says, and copies of
what it names: `run` (a finished run), `model` (its export), `sim` (a simulation).
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Content = str | bytes | Callable[[Path], object]
"""Of a file; or what is done to it, given its path."""


@dataclass(frozen=True)
class Situation:
    """A command line in a setting, and words of the line that it must end in."""

    line: str
    words: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)
    env: Mapping[str, str | None] = field(default_factory=dict)
    nobody: bool = False
    """Without the rights of root, which no permission stops."""

    @property
    def name(self) -> str:
        return self.line.replace(" ".join(TINY), "...") + "".join(f" [{name}]" for name in (*self.files, *self.env))


@dataclass(frozen=True)
class Call:
    """A call from Python, and words of the GeonormError that it must raise."""

    name: str
    call: Callable[[], object]
    words: tuple[str, ...]


TINY = (
    "--data text.txt --model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 "
    "--model.vocab-size 257 --tokens.tokenizer byte --evaluation.tokens 256 --evaluation.trace-tokens 64 "
    "--runtime.device cpu --runtime.tensorboard false --steps 4"
).split()
TRAIN = f"train {' '.join(TINY)} --out out"
COMPARE = f"compare {' '.join(TINY)} --schemes pre --out out"
SIMULATE = "simulate --schemes pre --tokens 4 --dim 4 --time 2 --points 8 --seeds 1"
PROBE = "--data text.txt --tokens 64 --device cpu --out out"


def s(
    line: str, *words: str, files: Mapping[str, Content] | None = None, nobody: bool = False, **env: Any
) -> Situation:
    for flag, value in zip(TINY[::2], TINY[1::2], strict=True):
        if f"{flag} {value}" in line and line.count(f"{flag} ") > 1:  # what is asked for comes in its place
            line = line.replace(f"{flag} {value} ", "", 1)
    return Situation(line, words, files or {}, env, nobody)


def link(target: str) -> Content:
    return lambda path: path.symlink_to(target)


def folder(path: Path) -> None:
    path.mkdir(parents=True)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def locked_away(path: Path) -> None:
    """A file that nobody may read."""
    path.write_text("words and words\n" * 100)
    path.chmod(0)


def read_only(path: Path) -> None:
    path.mkdir()
    path.chmod(0o555)


def cut(share: float) -> Content:
    """Keeps the first part of a file."""
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def gone(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def edited(**changes: Any) -> Content:
    """A JSON or YAML file with other values; None removes one."""

    def edit(path: Path) -> None:
        import yaml

        own = json if path.suffix == ".json" else yaml
        values = own.loads(path.read_text()) if own is json else yaml.safe_load(path.read_text())
        for key, value in changes.items():
            *groups, leaf = key.split("__")
            place = values
            for group in groups:
                place = place[group]
            place.pop(leaf, None) if value is None else place.update({leaf: value})
        path.write_text(json.dumps(values) if own is json else yaml.safe_dump(values))

    return edit


def flipped(path: Path) -> None:
    """One bit in the middle differs."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def tensors(**shapes: Any) -> Content:
    """A whole file of safetensors with other tensors in it, and a state.json beside it that agrees."""

    def write(path: Path) -> None:
        import torch
        from safetensors.torch import save_file

        from geonorm.lab.scale import storage

        save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, path)
        marker = path.with_name("state.json")
        state = json.loads(marker.read_text())
        state.pop("state_sha256", None)
        state["sha256"][path.name] = storage.checksum(path)
        marker.write_text(json.dumps({**state, "state_sha256": storage.digest_of(state)}))

    return write


def parquet(**columns: Any) -> Content:
    def write(path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(columns), path)

    return write


TEXT = "".join(f"the {word} of line {number}\n" for number in range(200) for word in ("cat", "sphere"))
LAST = "run/checkpoints/step-4"
OLDER = {"run/checkpoints/step-3": gone}

TRAINING = [
    s(f"{TRAIN} --lr 1e400", "--lr takes a finite number"),
    s(f"{TRAIN} --steps 9007199254740993000000", "steps must be between 1 and"),
    s(f"{TRAIN} --model.width 1000000000", "out of memory"),
    s(f"{TRAIN} --model.layers -3", "model.layers", "at least 1"),
    s(f"{TRAIN} --model.heads 3", "model.heads"),
    s(f"{TRAIN} --model.kv-heads 3", "kv_heads"),
    s(f"{TRAIN} --model.rope-theta 0", "rope_theta"),
    s(f"{TRAIN} --model.eps -1", "model.eps"),
    s(f"{TRAIN} --model.hidden 0", "model.hidden", "at least 1"),
    s(f"{TRAIN} --model.norm batch", "--model.norm", "'batch'"),
    s(f"{TRAIN} --batch-size 99999999", "windows", "smaller batch"),
    s(f"{TRAIN} --model.context 100000000", "windows of", "shorter context"),
    s(f"{TRAIN} --evaluation.tokens 0", "evaluation.tokens", "at least 1"),
    s(f"{TRAIN} --evaluation.tasks nothing-like-this", "task"),
    s(f"{TRAIN} --evaluation.tasks ''", "task"),
    s(f"{TRAIN} --optim.eps 1e999", "--optim.eps takes a finite number"),
    s(f"{TRAIN} --optim.betas 0.9 0.95 0.99", "--optim.betas", "2 values"),
    s(f"{TRAIN} --optim.clip -2", "optim.clip", "at least 0"),
    s(f"{TRAIN} --guard.sigmas 0.5", "guard.sigmas", "at least 1"),
    s(f"{TRAIN} --guard.window 3", "guard.window", "at least 20"),
    s(f"{TRAIN} --runtime.threads 100000000", "runtime.threads", "between 1 and"),
    s(f"{TRAIN} --runtime.device cpu:7:1", "device", "cpu:7:1"),
    s(f"{TRAIN} --runtime.device cuda:99", "cuda:99"),
    s(f"{TRAIN} --runtime.device meta", "'meta'", "cpu or cuda"),
    s(f"{TRAIN} --runtime.tensor-size 2", "tensor_size 2"),
    s(f"{TRAIN} --scheme geonorm(max_angle=4)", "max_angle"),
    s(f"{TRAIN} --scheme geonorm(alpha=-1)", "alpha"),
    s(f"{TRAIN} --scheme geonorm(decay=harmonics)", "did you mean 'harmonic'"),
    s(f"{TRAIN} --scheme mix(pre,post,share=2)", "share"),
    s(f"{TRAIN} --scheme mix(pre,3)", "mix"),
    s(f"{TRAIN} --scheme geonorm((", "cannot read scheme"),
    s(f"{TRAIN} --scheme \U0001f980", "cannot read scheme"),
    s(f"{TRAIN} --scheme os:system", "not a subclass"),
    s(f"{TRAIN} --scheme {'mix(pre,' * 300}post{')' * 300}", "nested"),
    s(f"{TRAIN} --objective masked", "--objective"),
    s(f"{TRAIN} --preset nano --preset mini", "--preset is given twice"),
    s(f"{TRAIN} --checkpoint.every 0", "checkpoint.every", "at least 1"),
    s(f"{TRAIN} --tokens.tokenizer bpe --model.vocab-size 300000", "too little text"),
    s(f"{TRAIN} --tokens.tokenizer bpe --model.vocab-size 100", "257"),
    s(f"{TRAIN} --tokens.tokenizer folder", "folder", files={"folder": folder}),
    s(f"{TRAIN} --tokens.tokenizer t.json", "not a tokenizer.json", files={"t.json": '{"model": {"type": "None"}}'}),
    s(f"{TRAIN} --tokens.tokenizer t.json", "t.json", files={"t.json": "[" * 100_000}),
    s(f"{TRAIN} --tokens.tokenizer t.json.gz", "broken compression", files={"t.json.gz": b"\x1f\x8b\x08 no"}),
    s(f"{TRAIN} --tokens.tokenizer t.json", "t.json", files={"t.json": "3"}),
]

OUTPUT = [
    s(TRAIN, "out", "is a file", files={"out": "mine"}),
    s(TRAIN, "out", "not empty", files={"out/letter.txt": "mine"}),
    s(f"{TRAIN}/text.txt/below", "cannot write", files={"out": folder, "out/text.txt": "a file in the way"}),
    s(f"train {' '.join(TINY)} --out gone", "gone", files={"gone": link("/nonexistent/place")}),
    s(f"train {' '.join(TINY)} --out loop", "loop", files={"loop": link("loop")}),
    s(f"train {' '.join(TINY)} --out {'x' * 300}", "too long"),
    s(f"train {' '.join(TINY)} --out /dev/null", "/dev/null"),
    s(f"train {' '.join(TINY)} --out /proc/self/new", "cannot write"),
    s(f"train {' '.join(TINY)} --out closed/run", "closed", files={"closed": read_only}, nobody=True),
    s(TRAIN, "lock", files={"out": folder, "out/.lock": link("../text.txt")}),
    s(TRAIN, "lock", files={"out": folder, "out/.lock": pipe}),
    s(TRAIN, "lock", files={"out": folder, "out/.lock": folder}),
    s(TRAIN, "lock", files={"out": folder, "out/.lock": lambda path: os.link("text.txt", path)}),
    s(TRAIN, "config.yaml", files={"out/config.yaml": "- a\n- b\n"}),
    s(TRAIN, "config.yaml", files={"out/config.yaml": "steps: {a: 1}\n"}),
    s(TRAIN, "config.yaml", files={"out/config.yaml": b"\xff\xfe\x00"}),
    s(TRAIN, "config.yaml", files={"out/config.yaml": "!!python/object/apply:os.system ['true']\n"}),
    s(TRAIN, "config.yaml", files={"out/config.yaml": folder}),
    s(TRAIN, "not empty", files={"out/config.yaml": link("nowhere.yaml")}),
    s(f"{TRAIN} --tokens.cache text.txt", "cannot write to the cache"),
    s(f"{TRAIN} --tokens.cache /dev/full", "cannot write to the cache"),
    s(TRAIN, "cannot write to the cache", GEONORM_CACHE="/proc/cache"),
    s(f"{TRAIN} --tokens.cache cache", "cannot write to the cache", files={"cache": read_only}, nobody=True),
]

CONFIG = [
    s(f"{TRAIN} --config c.yaml", "c.yaml", "mapping", files={"c.yaml": ""}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", "YAML", files={"c.yaml": "--- a\n--- b\n"}),
    s(f"{TRAIN} --config c.yaml", "optim", "mapping", files={"c.yaml": "optim: 3\n"}),
    s(f"{TRAIN} --config c.yaml", "--lr", files={"c.yaml": "lr: {low: 1, high: 2}\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": "1: 2\n"}),
    s(f"{TRAIN} --config c.yaml", "--seed", files={"c.yaml": "seed: 2026-01-01\n"}),
    s(f"{TRAIN} --config c.yaml", "--batch-size", files={"c.yaml": "batch_size: true\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": "a: b: c\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": "\tsteps: 3\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": "lr: &a [*a]\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": "steps: 3\nsteps: 4\n"}),
    s(f"{TRAIN} --config folder", "folder", files={"folder": folder}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": locked_away}, nobody=True),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": "schemes: [pre]\n"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": b"PK\x03\x04\x00\x00"}),
    s(f"{TRAIN} --config c.yaml", "c.yaml", files={"c.yaml": lambda path: path.write_bytes(b"# " + b"x" * 20_000_000)}),
]

DATA = [
    s("data inspect d.txt", "d.txt", "UTF-8", files={"d.txt": "caf\u00e9\n".encode("latin-1") * 50}),
    s("data inspect d.txt", "d.txt", "binary", files={"d.txt": "words\n".encode("utf-16") * 50}),
    s("data inspect d.txt", "d.txt", "UTF-8", files={"d.txt": TEXT.encode() + b"\xe2\x82"}),
    s("data inspect d.txt", "d.txt", "empty", files={"d.txt": ""}),
    s("data inspect d.txt", "d.txt", "empty", files={"d.txt": b"\xef\xbb\xbf"}),
    s("data inspect d.jsonl", "d.jsonl", "text field", files={"d.jsonl": '["a list"]\n'}),
    s("data inspect d.jsonl", "d.jsonl:2", "JSON", files={"d.jsonl": '{"text": "a"}\n{"text": "b"\n'}),
    s("data inspect d.jsonl", "d.jsonl", "several string fields", files={"d.jsonl": '{"a": "x", "b": "y"}\n'}),
    s("data inspect d.jsonl", "d.jsonl", "no string field", files={"d.jsonl": '{"a": 1}\n'}),
    s("data inspect d.jsonl", "d.jsonl:2", "missing", files={"d.jsonl": '{"text": "a"}\n{"body": "b"}\n'}),
    s("data inspect d.jsonl", "d.jsonl", "surrogate", files={"d.jsonl": '{"text": "\\ud800"}\n'}),
    s("data inspect d.jsonl", "d.jsonl", "JSON", files={"d.jsonl": '{"text": "a"} {"text": "b"}\n'}),
    s("data inspect d.jsonl", "d.jsonl", "JSON", files={"d.jsonl": '{"a":' * 100_000}),
    s("data inspect d.txt.gz", "broken compression", files={"d.txt.gz": gzip.compress(TEXT.encode())[:-9]}),
    s("data inspect d.txt.gz", "broken compression", files={"d.txt.gz": TEXT}),
    s("data inspect d.txt.xz", "broken compression", files={"d.txt.xz": lzma.compress(TEXT.encode())[:100]}),
    s("data inspect d.txt.bz2", "d.txt.bz2", files={"d.txt.bz2": b"BZh9 not so"}),
    s("data inspect d.txt.zst", "broken compression", files={"d.txt.zst": struct.pack("<I", 0xFD2FB528) + b"\xff" * 9}),
    s("data inspect d.txt.zst", "d.txt.zst", files={"d.txt.zst": b""}),
    s("data inspect d.parquet", "Parquet", files={"d.parquet": TEXT}),
    s("data inspect d.parquet", "string", files={"d.parquet": parquet(n=[1, 2, 3])}),
    s("data inspect d.parquet", "several string fields", files={"d.parquet": parquet(a=["x"], b=["y"])}),
    s("data inspect d.parquet", "empty", files={"d.parquet": parquet(text=["", None, ""])}),
    s("data inspect d.parquet", "d.parquet", files={"d.parquet": lambda p: [parquet(text=["a"] * 99)(p), cut(0.5)(p)]}),  # type: ignore[operator]
    s("data inspect d.parquet.gz", "Parquet", files={"d.parquet.gz": gzip.compress(TEXT.encode())}),
    s("data inspect d.txt", "d.txt", "permission", files={"d.txt": locked_away}, nobody=True),
    s("data inspect d.txt", "regular file", files={"d.txt": pipe}),
    s("data inspect /dev/zero", "regular file"),
    s("data inspect loop", "loop", files={"loop": link("loop")}),
    s("data inspect d", "below this folder", files={"d/picture.png": b"\x89PNG"}),
    s("data inspect d", "below this folder", files={"d/.hidden.txt": TEXT}),
    s("data inspect d", "UTF-8", files={"d/a.txt": TEXT, "d/b.txt": b"\xff"}),
    s("data inspect d", "all 2 documents are equal", files={"d/a.txt": TEXT, "d/b.txt": TEXT}),
    s("data inspect ''", "empty"),
    s("data inspect no/such/dataset/at/all", "no file, folder or corpus"),
    s("data inspect books", "books", GEONORM_DATA="text.txt"),
    s("data inspect text.txt --vocab-size -5 --tokenizer bpe", "vocab"),
    s("data prepare text.txt --tokenizer byte --vocab-size 10", "257"),
    s("data prepare text.txt --tokenizer byte --vocab-size 257 --cache text.txt", "cannot write to the cache"),
    s("data prepare tiny.txt --tokenizer byte --vocab-size 257", "tiny", files={"tiny.txt": "x"}),
    s("data inspect text.txt text.txt", "unexpected argument"),
]

DAMAGED = [
    s("generate run --tokens 2", "checksum", files={f"{LAST}/model.safetensors": flipped, **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/model.safetensors": gone, **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/model.safetensors": cut(0.5), **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/state.json": cut(0.9), **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/state.json": edited(step=-4), **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/state.json": "[]", **OLDER}),
    s("generate run --tokens 2", "step-4", files={f"{LAST}/state.json": "[" * 50_000, **OLDER}),
    s("generate run --tokens 2", "another model", files={f"{LAST}/model.safetensors": tensors(a=3), **OLDER}),
    s("generate run --tokens 2", "no checkpoint", files={"run/checkpoints": gone}),
    s("generate run --tokens 2", "tokenizer", files={"run/tokenizer.json": gone}),
    s("generate run --tokens 2", "tokenizer", files={"run/tokenizer.json": "{}"}),
    s("generate run --tokens 2", "config.yaml", files={"run/config.yaml": gone}),
    s("generate run --tokens 2", "config.yaml", files={"run/config.yaml": cut(0.3)}),
    s("generate run --tokens 2", "another model", files={"run/config.yaml": edited(model__width=32), **OLDER}),
    s("generate run --tokens 2", "scheme", files={"run/config.yaml": edited(scheme=7)}),
    s("generate run --tokens 2", "steps", files={"run/config.yaml": edited(steps="many")}),
    s("generate run --tokens 2", "preset", files={"run/config.yaml": edited(preset=None, model__layers=None, a=1)}),
    s("eval run --data text.txt", "runtime must be a mapping", files={"run/config.yaml": edited(runtime="fast")}),
    s("eval run --data text.txt", "no checkpoint", files={"run/checkpoints": lambda p: [gone(p), p.write_text("x")]}),
    s("export run --to new", "not finished", files={"run/summary.json": gone}),
    s("export run --to new", "not finished", files={"run/summary.json": "{}"}),
    s("export run --to new", "not finished", files={"run/summary.json": "[" * 50_000}),
    s("export run --to new", "environment.json", files={"run/environment.json": gone}),
    s("export run --to new", "environment.json", files={"run/environment.json": "7"}),
    s("export run --to new", "metrics.jsonl", files={"run/metrics.jsonl": lambda p: [gone(p), p.mkdir()]}),
    s(f"train {' '.join(TINY)} --out run --scheme pre --lr 0.1", "holds a run with", "not 0.1"),
    s(f"train {' '.join(TINY)} --out run --resume never", "already holds a run"),
    s(f"train {' '.join(TINY)} --out run/checkpoints", "holds no run"),
    s("compare --schemes pre --out run", "holds no comparison"),
]

READING = [
    s("generate run --tokens 0", "tokens must be between 1"),
    s("generate run --tokens 99999999", "tokens", "between"),
    s("generate run --top-k 0", "top_k", "at least 1"),
    s("generate run --temperature -0.5", "temperature", "at least 0"),
    s("generate run --seed 18446744073709551616", "seed"),
    s("generate run --device cuda:-1", "cuda:-1"),
    s("generate text.txt", "text.txt"),
    s("generate empty", "empty holds no run", files={"empty": folder}),
    s("generate rnu", "did you mean 'run'", files={"run/seen": ""}),
    s("generate model", "no causal language model", files={"model/model.safetensors": gone}),
    s("generate model", "no causal language model", files={"model/config.json": "{"}),
    s("generate model", "no causal language model", files={"model/config.json": edited(model_type="nothing")}),
    s("generate model", "scheme", files={"model/config.json": edited(scheme="nothing")}),
    s("generate model", "tokenizer", files={"model/tokenizer.json": cut(0.5)}),
    s("generate model", "model", files={"model/model.safetensors": cut(0.5)}),
    s("eval run --data text.txt --tokens 0", "tokens", "at least 1"),
    s("eval run --data text.txt --batch-size 0", "batch_size"),
    s("eval run --data text.txt --context 8", "--context is for Hugging Face models"),
    s("eval model --data text.txt --context 4096", "--context 4096 does not fit"),
    s("eval run --data tiny.txt", "use more text", files={"tiny.txt": "one\ntwo\n"}),
    s("eval run --data text.txt --out run", "holds no evaluation"),
    s("eval run --data text.txt --out text.txt", "text.txt"),
    s("eval run --tasks q.jsonl", "q.jsonl", files={"q.jsonl": '{"question": 3}\n'}),
    s("eval run --tasks q.jsonl", "q.jsonl", files={"q.jsonl": "nothing"}),
    s("eval run --tasks q.jsonl", "q.jsonl", files={"q.jsonl": ""}),
    s("eval run --tasks text.txt", "task"),
    s("eval run --data text.txt --limit -1", "limit", "at least 1"),
    s("export run --to model2", "model2 is not empty", files={"model2/mine": "x"}),
    s("export run --to closed/new", "closed", files={"closed": read_only}, nobody=True),
    s("export run --to new --layout gpt2", "gpt2"),
    s("export run --to new --layout ''", "layout"),
    s("export model --to new", "model"),
    s("export run --to run", "not empty"),
    s(f"probe nowhere {PROBE}", "nowhere"),
    s(f"probe text.txt {PROBE}", "text.txt"),
    s(f"probe run {PROBE} --context 1", "context must be at least 2"),
    s(f"probe run {PROBE} --batch 0", "batch must be at least 1"),
    s(f"probe model {PROBE} --blocks transformer.h", "--sublayers"),
    s(f"probe model {PROBE} --blocks nothing.here --sublayers attn:norm=a,branch=b", "--blocks"),
    s(f"probe model {PROBE} --blocks model.layers --sublayers attn", "names no branch"),
    s(f"probe run {PROBE} --one-block --gradients", "--one-block"),
    s(f"probe run {PROBE} --norms-only --ablate-blocks", "--norms-only"),
    s(f"probe run {PROBE} --tokens-per-window 3", "unknown option"),
    s(f"probe model {PROBE} --tokenizer text.txt", "text.txt"),
    s("probe run --data text.txt --out text.txt", "is a file"),
    s("probe run --data text.txt --out run", "run"),
    s("probe run --data tiny.txt --out out --device cpu", "tiny", files={"tiny.txt": "x"}),
]

SIMULATIONS = [
    s(f"{SIMULATE} --out out --beta nan", "--beta"),
    s(f"{SIMULATE} --out out --beta -3", "beta", "at least 0"),
    s(f"{SIMULATE} --out out --init cone --delta 2", "delta must be below 1"),
    s(f"{SIMULATE} --out out --heads 3", "not divisible by heads 3"),
    s(f"{SIMULATE} --out out --per layer", "random weights"),
    s(f"{SIMULATE} --out out --method layers --time 2.5".replace("--time 2 ", ""), "whole number"),
    s(f"{SIMULATE} --out out --step 0", "step must be positive"),
    s(f"{SIMULATE} --out out --device cuda:44", "cuda:44"),
    s(f"{SIMULATE} --out out --dtype float16", "--dtype"),
    s(f"{SIMULATE} --out sim --causal", "causal False, not True"),
    s(f"{SIMULATE} --out run", "run"),
    s(f"{SIMULATE} --out text.txt", "is a file"),
    s(f"{SIMULATE} --out ''", "out is empty"),
    s(f"{SIMULATE} --out /proc/simulation", "cannot write"),
    s(f"{SIMULATE} --out out".replace("--tokens 4", "--tokens 40"), "equiangular needs tokens <= dim"),
    s(f"{SIMULATE} --out out --depth -1", "depth must be at least 1"),
    s(f"{SIMULATE} --out sim", "config.yaml", files={"sim/config.yaml": "%"}),
    s(f"{SIMULATE} --out out".replace("pre", "hyperr"), "did you mean 'hyper'"),
    s(f"{SIMULATE} --out out".replace("--time 2", "--time inf"), "--time"),
    s(f"{SIMULATE} --out out".replace("--dim 4", "--dim 100000000000"), "memory"),
]

REPORTS = [
    s("report run sim", "give them apart"),
    s("report text.txt", "no run directory in text.txt"),
    s("report empty", "no run directory in empty", files={"empty": folder}),
    s("report run --out text.txt", "text.txt", "--force"),
    s("report run --out run/metrics.jsonl", "--force"),
    s("report sim --out text.txt", "text.txt", "--force"),
    s("report run --out folder", "folder", files={"folder": folder}),
    s("report run --out text.txt/page.html", "text.txt"),
    s("report run --out out.html --figures text.txt", "text.txt"),
    s("report run/config.yaml", "no run directory"),
    s("report run --figures folder/text.txt", "is a file", files={"folder/text.txt": "mine"}),
    s("report ''", "no run directory"),
    s("schemes pre --yaml", "unknown option '--yaml'"),
    s("schemes --json --markdown", "--markdown", "alone"),
    s("schemes pre(", "cannot read scheme"),
    s("schemes nothing.here:Scheme", "no scheme"),
]

COMPARISONS = [
    s(f"{COMPARE} --jobs 0", "jobs must be at least 1"),
    s(f"{COMPARE} --lrs 1e-320", "lrs must be at least 1e-12"),
    s(f"{COMPARE} --tune-steps 0", "tune_steps"),
    s(f"{COMPARE} --seeds 2000000", "seeds must be between"),
    s(f"{COMPARE} --launcher slurm --slurm.gpus -1", "slurm.gpus"),
    s(f"{COMPARE} --launcher slurm --slurm.submit", "sbatch is not here"),
    s(f"{COMPARE} --data gone.txt", "gone.txt"),
    s(COMPARE.replace("pre", "pre nothing", 1), "unknown scheme 'nothing'"),
    s(f"{COMPARE}", "lock", files={"out/.lock": link("../text.txt")}),
    s(f"{COMPARE}", "not empty", files={"out/runs/a.txt": "mine"}),
    s(COMPARE.replace("--out out", "--out text.txt"), "is a file"),
    s("bench ops --shapes 99999999999x99999999999 --quick --out out", "shape"),
    s("bench ops --out text.txt", "text.txt"),
    s("bench norms --out text.txt", "text.txt"),
    s("bench train --schemes geonorm --preset nano --pairs 1 --out out", "pairs"),
    s("bench train --schemes geonorm --threads 9999999 --out out", "threads"),
    s("bench", "WHAT is missing"),
]

SURROUNDINGS = [
    s(TRAIN, "$WORLD_SIZE", RANK="0", WORLD_SIZE="two", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"),
    s(TRAIN, "$RANK", RANK="5", WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511"),
    s(TRAIN, "$MASTER_PORT", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="99999"),
    s(TRAIN, "$MASTER_ADDR", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="not a host", MASTER_PORT="29511"),
    s(f"{TRAIN} --steps 0", "steps must be at least 1", RANK="3"),
    s(f"{TRAIN} --data corpus", "corpus", GEONORM_DATA="/nonexistent"),
    s(TRAIN, "GEONORM_CACHE", GEONORM_CACHE="text.txt"),
    s(TRAIN, "GEONORM_BACKEND", GEONORM_BACKEND="fast"),
    s(f"{TRAIN} --runtime.device cuda", "no GPU", CUDA_VISIBLE_DEVICES=""),
]

SITUATIONS: list[Situation] = [
    *TRAINING, *OUTPUT, *CONFIG, *DATA, *DAMAGED, *READING, *SIMULATIONS, *REPORTS, *COMPARISONS, *SURROUNDINGS
]  # fmt: skip
