"""Files and surroundings in which a command cannot do what is asked, no two with one cause at one place. Each ends in
one line on stderr, exit status 2, nothing on stdout, and no file changed. Folders of runs: tests/stateful."""

import shlex
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from geonorm.cli.main import main

from ..lab.train.test_lengths import contents
from ..rows import each

Content = str | bytes | Callable[[Path], object]
"""Of a file; or what is done to it, given its path."""
TINY = (
    "--data text.txt --model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 "
    "--model.vocab-size 257 --tokens.tokenizer byte --evaluation.tokens 256 --evaluation.trace-tokens 64 "
    "--runtime.tensorboard false --steps 2"
)
TRAIN = f"train {TINY} --out out"
TEXT = "".join(f"the {word} of line {number}\n" for number in range(200) for word in ("cat", "sphere"))


def link(target: str) -> Content:
    return lambda path: (shutil.rmtree(path, ignore_errors=True), path.symlink_to(target))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def replaced(old: str, new: str) -> Content:
    def replace(path: Path) -> None:
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    return replace


LAYERS, SCHEME = '"num_hidden_layers": 1', '"scheme": "pre"'
QUANTISED = SCHEME + ', "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}'
PROBE = "probe model --data text.txt --tokens 64"
SITUATIONS: list[tuple[str, str, Mapping[str, Content], Mapping[str, str]]] = [
    (f"{TRAIN} --scheme os:system", "not a subclass", {}, {}),
    (f"{TRAIN} --model.positions learned --model.rotary 0.5", "model.rotary 0.5", {}, {}),
    (f"train {TINY} --out gone", "cannot write to gone", {"gone": link("/nonexistent/place")}, {}),
    (f"train {TINY} --out /proc/self/new", "cannot write", {}, {}),
    (TRAIN, "is a file", {"out": "x"}, {}),
    (TRAIN, "is not empty and holds no run", {"out/thesis.tex": "x"}, {}),
    (TRAIN, "is not readable YAML", {"out/config.yaml": "!!python/object/apply:os.system ['true']\n"}, {}),
    (TRAIN, "not empty", {"out/config.yaml": link("nowhere.yaml")}, {}),
    (f"train {TINY} --out run --scheme pre", "run/checkpoints is a broken link", {"run/checkpoints": link("gone")}, {}),
    (f"{TRAIN} --config c.yaml", "--seed takes a whole number", {"c.yaml": "seed: 2026-01-01\n"}, {}),
    (f"{TRAIN} --config c.yaml", "--batch-size takes a whole number", {"c.yaml": "batch_size: true\n"}, {}),
    (f"{TRAIN} --config c.yaml", "unknown setting 'stepz': did you mean 'steps'?", {"c.yaml": "stepz: 3"}, {}),
    (f"{TRAIN} --config c.yaml", "did you mean 'optim.warmup'?", {"c.yaml": "optim: {warmupp: 3}"}, {}),
    (f"{TRAIN} --config c.yaml", "--lr takes a finite number", {"c.yaml": "lr: .nan"}, {}),
    (f"{TRAIN} --config c.yaml", "is not a mapping", {"c.yaml": "- steps"}, {}),
    (f"{TRAIN} --config=", "cannot read --config", {}, {}),
    (f"{TRAIN} --config c.yaml", "is not readable YAML", {"c.yaml": "steps: ["}, {}),
    (f"{TRAIN} --config c.yaml", "is not readable YAML", {"c.yaml": lambda path: path.write_bytes(b"\xff\xfe\0")}, {}),
    (f"{TRAIN} --init-from nowhere", "there is no run nowhere", {}, {}),
    (f"{TRAIN} --init-from run", "run holds no checkpoint yet", {"run/checkpoints": shutil.rmtree}, {}),
    (f"{TRAIN} --init-from run".replace("width 16", "width 32"), "is [257, 16] there, [257, 32] here", {}, {}),
    (f"{TRAIN} --init-from run".replace("byte", "bpe"), "has another tokenizer: add --tokens.tokenizer", {}, {}),
    ("eval run --data none.txt", "no file, folder or corpus 'none.txt'", {}, {}),
    ("eval run --data short.txt", "do not fill one window of 16", {"short.txt": "short"}, {}),
    ("eval run --data text.txt --tokens 15", "less than a window of this model: give 16 or more", {}, {}),
    ("eval run --data text.txt --context 17", "--context 17 does not fit", {}, {}),
    ("eval run --tasks x --tokens 3", "--tokens does nothing here, it needs --data", {}, {}),
    ("eval out --data text.txt", "holds no run", {"out/thesis.tex": "x"}, {}),
    (TRAIN.replace("text.txt", "d"), "no validation text", {"d/train.txt": TEXT, "d/validation.txt": ""}, {}),
    ("export run --to new", "environment.json", {"run/environment.json": Path.unlink}, {}),
    ("export run", "--to is missing", {}, {}),
    ("export nowhere --to new", "there is no run nowhere", {}, {}),
    ("export run --to full", "full is not empty: choose another --to", {"full/file": "mine"}, {}),
    ("export run --to new --layout stok", "unknown layout 'stok': did you mean 'stock'", {}, {}),
    ("export run --to new --layout stock --remote-code", "--layout stock loads without --remote-code", {}, {}),
    ("bench train --out out", "out is not empty and holds no benchmark", {"out/summary.json": '{"status": 1}'}, {}),
    (f"compare {TINY} --schemes pre --out out", "not empty", {"out/runs/a.txt": "mine"}, {}),
    ("generate 'no\nsuch\nrun'", "there is no run", {}, {}),
    ("generate model", "no causal language model", {"model/model.safetensors": Path.unlink}, {}),
    ("generate model", "Error while deserializing header", {"model/model.safetensors": cut}, {}),
    ("generate model", "unknown scheme 'nothing'", {"model/config.json": replaced(SCHEME, '"scheme": "nothing"')}, {}),
    ("generate model", "another model", {"model/config.json": replaced('"hidden_size": 16', '"hidden_size": 32')}, {}),
    ("generate model", "not agree on model.blocks.", {"model/config.json": replaced(LAYERS, LAYERS + "0")}, {}),
    ("generate model", "no tokenizer in model that can be read", {"model/tokenizer.json": cut}, {}),
    ("generate model", "no tokenizer in model that can be read", {"model/tokenizer.json": Path.unlink}, {}),
    (f"{PROBE} --out new", "nor a config.json", {"model/config.json": Path.unlink}, {}),
    (
        f"{PROBE} --out new",
        "no file named model.safetensors",
        {"model/model.safetensors": Path.unlink, "model/a.bin": ""},
        {},
    ),
    (f"{PROBE} --out new", "quantised weights (bitsandbytes)", {"model/config.json": replaced(SCHEME, QUANTISED)}, {}),
    ("probe --out new --config c.yaml", "MODELS is missing", {"c.yaml": "models: []"}, {}),
    (f"{PROBE} --out out", "holds no probe", {"out/precious": "mine"}, {}),
    ("probe model --data empty.txt --out new", "empty: give a file with text", {"empty.txt": ""}, {}),
    ("report run --out text.txt/page.html", "text.txt: File exists", {}, {}),
    (TRAIN, "$RANK", {}, {"RANK": "5", "WORLD_SIZE": "2", "MASTER_PORT": "29511"}),
    (TRAIN, "$MASTER_ADDR", {}, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "29511"}),
    (TRAIN, "GEONORM_CACHE", {}, {"GEONORM_CACHE": "text.txt"}),
    (f"{TRAIN} --runtime.device cuda", "no GPU", {}, {"CUDA_VISIBLE_DEVICES": ""}),
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("hostile")
    (root / "text.txt").write_text(TEXT)
    with chdir(root):
        assert main([*f"train {TINY} --out run --scheme pre".split()]) == main("export run --to model".split()) == 0
        yield root


@each("line, words, files, surroundings", SITUATIONS)
def test_a_situation_ends_in_one_right_line(
    line: str, words: str, files: Any, surroundings: Any, prepared: Path, tmp_path: Path, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(prepared / "text.txt", tmp_path)
    for name in {"run", "model"} & {Path(word).parts[0] for word in [*line.split(), *files]}:
        shutil.copytree(prepared / name, tmp_path / name)
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if callable(content):
            content(path)
        else:
            path.write_text(content)
    if "RANK" in surroundings:
        surroundings = {"LOCAL_RANK": "0", "MASTER_ADDR": "not a host", **surroundings}
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    before = contents(tmp_path)
    signal.alarm(60)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        status = main(shlex.split(line))
    signal.alarm(0)
    out, err = capfd.readouterr()
    assert (status, out) == (2, "") and contents(tmp_path) == before, err
    # a line break is not printable
    assert words in err and err[:-1].isprintable() and len(err) < 600, err
