"""The register of residual rules: planted gates, scalars and gains come back from files that are read by range."""

import json
import math
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from operator import attrgetter
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import geonorm

pytest.importorskip("transformers.models.muse_spark", reason="families of 2026 need transformers 5.24")

from geonorm.cli.main import main
from geonorm.errors import ConfigError
from geonorm.hf.rules import rule_of
from geonorm.hf.tiny import default_config, tiny

from ..rows import each

NORMS = "post_attention_layernorm.weight", "post_feedforward_layernorm.weight"
GATES = "post_attention_residual_gate.gate", "post_feedforward_residual_gate.gate"
SCALES = "post_attention_residual_scale.residual_scale", "post_mlp_residual_scale.residual_scale"
BASES = "attn_hc.base", "ffn_hc.base"
Factors = Callable[[float, int], tuple[float, float]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


# what is planted at attention and MLP, what is added to it in the file, the factors of stream and update that it means
PLANTED: dict[str, tuple[tuple[str, str], float, Factors]] = {
    "muse_spark_text": (GATES, 0.0, lambda g, _: ((1 - sigmoid(g / 0.3) ** 2) ** 0.5, sigmoid(g / 0.3))),
    "gemma2": (NORMS, -1.0, lambda gain, _: (1.0, gain)),
    "beam": (NORMS, 0.0, lambda gain, m: ((1 - 1 / m) ** 0.5, gain * m**-0.5)),
    "zaya": (SCALES, 0.0, lambda scale, _: (scale, 1.0)),
    "hy_v4": (BASES, 0.0, lambda base, _: (1.0, 2 * sigmoid(base))),
    "deepseek_v4": (BASES, 0.0, lambda base, _: (1.0, 2 * sigmoid(base))),
}


def plant(family: str, folder: Path) -> list[float]:
    """Saves a tiny model whose sub-layers have a planted number each; the angles that these are, in degrees."""
    places, stored, factors = PLANTED[family]
    model: Any = tiny(default_config(family))
    layers = next(module for name, module in model.named_modules() if name.endswith("layers"))
    angles, length, number = [], 1.0, 0
    for layer in layers:
        for name, p in layer.named_parameters():
            if "residual_scale." in name:  # Zaya's, but for what is planted
                p.data.fill_(float(name.endswith("_scale")))
        for place in places:
            number += 1
            attrgetter(place)(layer).data.fill_(0.2 + 0.1 * number + stored)
            a, b = factors(0.2 + 0.1 * number, number + 1)
            angles.append(math.degrees(math.atan2(b, a * length)))
            length = math.hypot(a * length, b)
    model.save_pretrained(folder, max_shard_size="300KB")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "n_ctx": 5}))  # published files have such fields
    return angles


@each("family", PLANTED)
def test_planted_angles_come_back(family: str, tmp_path: Path) -> None:
    wanted = plant(family, tmp_path)
    rule = rule_of(str(tmp_path))
    assert [row["angle"] for row in rule.sublayers] == pytest.approx(wanted, abs=2e-4)
    assert rule.entry + sum(row["share"] for row in rule.sublayers) == pytest.approx(1.0, abs=1e-5)
    assert rule.unit == (family in ("muse_spark_text", "gemma2", "beam"))


def test_what_a_layer_scalar_leaves(tmp_path: Path) -> None:
    """Gemma 4: a block multiplies what was before it, not what comes after. With inputs per layer it is refused."""
    model: Any = tiny(default_config("gemma4_text"))
    for number, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.5 + 0.1 * number)
        for norm in (layer.post_attention_layernorm, layer.post_feedforward_layernorm):
            norm.weight.data.fill_(1.0)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "vision_tower.layers.0.layer_scalar": torch.ones(1)}, tmp_path / "model.safetensors")
    shares = [1.0]
    for number in range(4):
        shares = [(0.5 + 0.1 * number) ** 2 * share for share in (*shares, 1.0, 1.0)]
    rule = rule_of(str(tmp_path))
    seen = [rule.entry, *(row["share"] for row in rule.sublayers)]
    assert seen == pytest.approx([share / sum(shares) for share in shares], rel=1e-4)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "hidden_size_per_layer_input": 256}))
    with pytest.raises(ConfigError, match=r"per_layer_input_norm .* is no sum of the stream"):
        rule_of(str(tmp_path))


def test_planted_queries_come_back(tmp_path: Path) -> None:
    """Inkling-2: three at full attention, one at other sub-layers, none where there is the embedding alone."""
    model: Any = tiny(default_config("inkling2_text"))
    readers = [each for layer in model.model.layers for each in (layer.attention_input, layer.mlp_input)]
    wanted: list[Any] = [None, *(len(each.query) if each.query.dim() > 1 else 1 for each in readers[1:])]
    for number, reader in enumerate(readers[1:], 1):
        queries = reader.query.data
        wanted[number] = [number + row / 10 for row in range(wanted[number])]
        queries *= torch.tensor(wanted[number]).view(*queries.shape[:-1], 1) / queries.norm(dim=-1, keepdim=True)
    model.save_pretrained(tmp_path)
    rows = rule_of(str(tmp_path)).sublayers
    assert [row.get("query") for row in rows] == [
        row and pytest.approx(row if len(row) > 1 else row[0], rel=1e-5) for row in wanted
    ]
    assert [len(row or ()) for row in wanted] == [0, 1] + [1] * 8 + [3, 1] + [1] * 10 + [3, 1]


def test_rules_as_they_begin() -> None:
    muse, beam = rule_of("muse_spark"), rule_of("beam")
    assert muse.entry == pytest.approx(0.75 ** len(muse.sublayers), rel=1e-3)
    assert {round(row["angle"], 2) for row in muse.sublayers} == {30.0}
    assert [row["share"] for row in beam.sublayers] == pytest.approx([1 / 105] * 104, rel=1e-3)


class Ranges(SimpleHTTPRequestHandler):
    """Serves parts of files, and counts the bytes."""

    sent = 0
    whole = False
    token: str | None = ""

    def do_GET(self) -> None:
        Ranges.token = self.headers.get("Authorization")
        path, part = Path(self.translate_path(self.path)), self.headers.get("Range")
        content = path.read_bytes() if path.exists() else b""
        if part and not self.whole:
            first, last = map(int, re.findall(r"\d+", part))
            content = content[first : last + 1]
        self.send_response(404 if not path.exists() else 206 if part and not self.whole else 200)
        self.end_headers()
        self.wfile.write(content)
        Ranges.sent += len(content)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path))) as httpd:
        Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def test_by_range_from_a_server(server: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    wanted = plant("muse_spark_text", tmp_path / "muse")
    out = tmp_path / "out"
    monkeypatch.setattr("geonorm.hf.rules.get_token", lambda: "secret")
    monkeypatch.setattr("geonorm.hf.rules.constants.ENDPOINT", server[:-1])  # theirs begins like the hub's
    assert main(["register", f"{server}/muse", "beam", "--out", str(out)]) == 0
    assert Ranges.token is None
    assert "muse(entry=embedding)" in capsys.readouterr().out
    assert Ranges.sent < sum(file.stat().st_size for file in (tmp_path / "muse").iterdir()) / 20
    muse, _ = json.loads((out / "summary.json").read_text())["rules"]
    assert [row["angle"] for row in muse["sublayers"]] == pytest.approx(wanted, abs=2e-4)
    assert len((out / "register.csv").read_text().splitlines()) == 1 + 8 + 104
    assert "Sub-layers" in (out / "report.html").read_text() and len(geonorm.load(out).tables()["rules"]) == 2
    monkeypatch.setattr(Ranges, "whole", True)
    for model, said in ((f"{server}/muse", "gives 0 of the"), (f"{server}/nothing", "404"), ("beem", "no run and no")):
        assert main(["register", model, "--out", str(tmp_path / "new")]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1 and not (tmp_path / "new").exists()


def test_damaged_files(tmp_path: Path, capsys: Any) -> None:
    plant("gemma2", tmp_path)
    (index := tmp_path / "model.safetensors.index.json").unlink()
    headers = struct.pack("<Q", 2**40), struct.pack("<Q", 4) + b"[1, ", struct.pack("<Q", 2) + b"{}"
    for content in (b"", b"no safetensors", *headers):
        (file := tmp_path / "one.safetensors").write_bytes(content)
        assert main(["register", str(file), "--out", str(index)]) == 2
        assert capsys.readouterr().err.count("\n") == 1 and not index.exists()
    for text, said in (
        ("{nope", "is damaged"),
        ("[1]", "is damaged"),
        ('{"model_type": "geonorm"}', "of transformers"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert main(["register", str(tmp_path), "--out", str(index)]) == 2 and said in capsys.readouterr().err


LARGE = """
import json, re, resource, struct, sys
from geonorm.hf.rules import rule_of
from geonorm.hf.tiny import default_config
folder, config = sys.argv[1], default_config("muse_spark")
json.dump(config.to_dict(), open(f"{folder}/config.json", "w"))
header, end = {}, 0
norms = "input_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"
vectors = [f"{norm}.weight" for norm in norms]
vectors += [f"post_{place}_residual_gate.gate" for place in ("attention", "feedforward")]
width = config.hidden_size
for layer in range(config.num_hidden_layers):
    shapes = {**dict.fromkeys(vectors, [width]), **{f"mlp.{n}": [width, 2048] for n in range(60)}}
    for place, shape in shapes.items():
        start, end = end, end + 2 * width * (2048 if len(shape) > 1 else 1)
        header[f"layers.{layer}.{place}"] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
text = json.dumps(header).encode()
with open(f"{folder}/model.safetensors", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    file.truncate(8 + len(text) + end)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
print(len(rule_of(folder).sublayers), end / 2**30, peak() - before)
"""


def test_a_checkpoint_of_any_size_takes_less_than_100_mb(tmp_path: Path) -> None:
    """A sparse file that says it holds over 100 GB."""
    done = subprocess.run([sys.executable, "-c", LARGE, str(tmp_path)], capture_output=True, text=True, check=True)
    sublayers, size, grown = map(float, done.stdout.split())
    assert (sublayers, size > 100, grown < 100) == (124, True, True), done.stdout
