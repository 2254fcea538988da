"""A residual scheme in a file of its own, outside the package, is a scheme like any other: it trains, saves, reloads,
writes text, mixes, has rates, and stands in a comparison's report, by `geonorm compare --schemes pre module:Name`."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from geonorm import Decoder, DecoderConfig, Placement, Residual, Site
from geonorm.errors import ConfigError
from geonorm.lab.config import Optim
from geonorm.lab.train import optim
from geonorm.norms import NormSpec
from geonorm.schemes.registry import REGISTRY

RULE = """
from dataclasses import dataclass
from geonorm.schemes import Placement

@dataclass(frozen=True)
class Damped(Placement):
    keep: float = 0.9

    parts = {"input": "norm"}

    def write(self, x, u, p, site, h=1.0):
        return x + h * (u - (1 - self.keep) * x)
"""


SHAPE = (
    "--model.layers 2 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16 --model.vocab_size 257 "
    "--data text.txt --steps 4 --tokens.tokenizer byte --evaluation.tokens 128 --evaluation.trace_tokens 32 "
    "--runtime.tensorboard false --runtime.device cpu"
).split()
DRIVE = """
import json, sys
from geonorm.cli.main import main
for words in json.loads(sys.argv[1]):
    assert main(words) == 0, words
"""


SOFT = """
from dataclasses import dataclass
from geonorm import Placement

@dataclass(frozen=True)
class SoftPost(Placement):
    \"\"\"Post-Norm with a learned scalar on the update.\"\"\"
    parts = {"stream": "norm", "scale": 0.5}

    def write(self, x, u, p, site, h=1.0):
        return p.stream(x + h * p.scale * u)
"""
USES = """
import torch, transformers
import geonorm.hf as hf
shape = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
config = transformers.LlamaConfig(**shape)
model = transformers.LlamaForCausalLM(config)
hf.apply(model, "./soft.py:SoftPost")
scales = [name for name, p in model.named_parameters() if name.endswith("own.scale") and p.shape == (1,)]
ids = torch.arange(12).view(1, 12)
model(input_ids=ids, labels=ids).loss.backward()
assert len(scales) == 4 and all(p.grad is not None for name, p in model.named_parameters() if name in scales)
"""


def test_the_whole_way_from_a_file_to_a_report(tmp_path: Path) -> None:
    """As the installed command runs, in the folder of the files: no process has it on its path, and every run of the
    comparison is a process of its own. Six lines are all that a scheme needs, applied to a Llama too."""
    (tmp_path / "damped_rule.py").write_text(RULE)
    (tmp_path / "soft.py").write_text(SOFT)
    (tmp_path / "text.txt").write_text("".join(f"{i} times {i % 7} makes {i * (i % 7)}.\n" for i in range(900)))
    names = ["pre", "damped_rule:Damped(keep=0.5)", "./soft.py:SoftPost"]

    def geonorm(*commands: list[str], script: str = DRIVE) -> str:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        own |= {"PYTHONSAFEPATH": "1", "GEONORM_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, "-c", script, json.dumps(commands)]
        done = subprocess.run(words, cwd=tmp_path, env=own, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    geonorm(["compare", "--schemes", *names, "--out", "out", "--seeds", "1", *SHAPE])
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["scheme"] for row in found["schemes"]] == names
    assert all(run["status"] == "finished" and 2 < run["val_loss"] < 9 for run in found["runs"])
    assert all(name in (tmp_path / "out" / "report.html").read_text() for name in names)
    paths = [f"out/runs/{run['run']}" for name in names[1:] for run in found["runs"] if run["scheme"] == name]
    for path, name, source in zip(paths, names[1:], (RULE, SOFT), strict=True):
        rows = [json.loads(line) for line in (tmp_path / path / "trace.jsonl").read_text().splitlines()]
        assert {row["scheme"] for row in rows} == {name} and len(rows) % 4 == 0
        (kept,) = (tmp_path / path / "schemes").rglob("*.py")
        assert kept.read_text() == source
    lines = geonorm(
        ["schemes", names[2]],
        ["simulate", "--schemes", "post", names[2], "--tokens", "4", "--dim", "8", "--time", "1", "--out", "particles"],
        *(["eval", path, "--data", "text.txt", "--tokens", "64", "--trust-code"] for path in paths),
        ["generate", paths[0], "--prompt", "3 times", "--tokens", "4", "--trust-code"],
        ["probe", *paths, "--data", "text.txt", "--tokens", "64", "--out", "geometry", "--trust-code"],
        ["export", paths[1], "--to", "model", "--trust-code"],
        ["eval", "model", "--data", "text.txt", "--tokens", "64", "--trust-code"],
        script=DRIVE + USES,
    )
    assert "attn.scale = 0.5" in lines


@dataclass(frozen=True)
class Plain(Placement):
    """Learned numbers as plain parameters: a number, and a vector."""

    start: float = 0.5

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        width = nn.Parameter(torch.full((norm.dim,), 2.0))
        return {"input": norm(), "scale": nn.Parameter(torch.tensor(self.start)), "width": width}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        return x + h * p.scale * p.width * u


@dataclass(frozen=True)
class ByName(Plain):
    """The same as data of the class."""

    parts = {"input": "norm", "scale": 0.5, "width": (2, "dim")}  # type: ignore[assignment]


@dataclass(frozen=True)
class Made(Plain):
    """The same with a parameter of the class: every site gets one of its own."""

    parts = {"input": "norm", "scale": nn.Parameter(torch.tensor(0.5)), "width": (2, "dim")}  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Plain, ByName, Made])
def test_a_learned_number_may_be_a_plain_parameter(kind: type[Plain], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "plain", kind)
    shape = DecoderConfig("plain", layers=2, width=32, heads=4, hidden=48, vocab_size=61, context=16)
    torch.manual_seed(0)
    model = Decoder(shape)
    ids = torch.randint(61, (4, 17))
    names = [f"blocks.{i}.{part}.own.{name}" for i in (0, 1) for part in ("attn", "mlp") for name in ("scale", "width")]
    assert {name for name, _ in model.named_parameters() if "scale" in name or "width" in name} == set(names)
    assert all(p.dim() > 0 for p in model.parameters())  # what FSDP can shard
    groups = optim.build_optimizers(model, Optim(), 1e-2)[0].param_groups
    decayed = {id(p) for group in groups if group["weight_decay"] for p in group["params"]}
    assert decayed and not decayed & {id(p) for name, p in model.named_parameters() if name in names}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model.loss(ids[:, :-1], ids[:, 1:]).backward()
    optimizer.step()
    trained = model.state_dict()
    assert all((trained[name] - (0.5 if "scale" in name else 2)).abs().max() > 1e-3 for name in names)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"scale": "half"}, r'Plain: scale must be "norm", a number, .* got str'),
        ({"scale": (0.5, "width")}, r'\(number, "dim"\)'),
        ({"forward": 0.5}, "a part of Plain cannot be called 'forward'"),
    ],
)
def test_what_is_no_part_is_said(parts: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plain, "parts", parts)
    with pytest.raises(ConfigError, match=said):
        Residual(nn.Identity(), Plain(), Site(0, "mlp", 2), 8)


@dataclass(frozen=True)
class Cut(Placement):
    """Returns a part of the stream, as a slip does."""

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        return (x + u)[..., :3]


def test_a_write_of_another_shape_is_one_line() -> None:
    residual = Residual(nn.Linear(8, 8), Cut(), Site(0, "mlp", 1), 8)
    with pytest.raises(ConfigError, match=r"Cut.*: write returned \(2, 3\) for a stream of \(2, 8\)"):
        residual(torch.randn(2, 8))


@dataclass(frozen=True)
class Brings(Placement):
    """Everything that it brings begins otherwise than its class would: a norm, a drawn part, slots, the logits' too."""

    def parts(self, site: Site, norm: NormSpec) -> dict[str, Any]:
        output = norm()
        nn.init.constant_(output.weight, site.depth**-0.5)
        return {"input": "norm", "output": output, "mixing": nn.Linear(norm.dim, norm.dim)}

    def write(self, x: Tensor, u: Tensor, p: Any, site: Site, h: Any = 1.0) -> Tensor:
        return x + h * p.output(p.mixing(u))

    def slot(self, name: str, shape: tuple[int, ...], dim: int, site: Site) -> nn.Module | None:
        if name == "up":
            inside = nn.Linear(shape[-1], shape[-1])
            nn.init.eye_(inside.weight)
            nn.init.constant_(inside.bias, 0.5)
            return nn.Sequential(inside)
        if name in ("q", "logits"):
            norm = nn.LayerNorm(shape[-1])
            nn.init.constant_(norm.weight, 0.1)
            return norm
        return None


def test_what_a_scheme_brings_begins_as_made_and_leaves_all_else_as_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "brings", Brings)
    shape = DecoderConfig("brings", layers=2, width=32, heads=4, hidden=48, vocab_size=61, context=16)
    torch.manual_seed(3)
    decoder = Decoder(shape)
    after = torch.rand(1)
    torch.manual_seed(3)
    baseline = Decoder(replace(shape, scheme="pre"))
    assert torch.equal(after, torch.rand(1))
    found = decoder.state_dict()
    for name, weight in baseline.state_dict().items():
        assert torch.equal(found[name], weight), name
    mixing = [weight for name, weight in found.items() if name.endswith("mixing.weight")]
    assert len({float(weight[0, 0]) for weight in mixing}) == len(mixing) == 4  # no two sites draw the same
    start = {name: weight.clone() for name, weight in found.items()}
    models: list[Any] = [decoder]
    if find_spec("transformers"):
        from geonorm import hf

        torch.manual_seed(3)
        models.append(hf.GeoNormForCausalLM(hf.GeoNormConfig.of(shape)))
    for model in models:
        for ending, value in {
            "own.output.weight": 2**-0.5, "slots.up.0.bias": 0.5, "slots.q.weight": 0.1, "logits_slot.weight": 0.1,
        }.items():  # fmt: skip
            own = [p for name, p in model.named_parameters() if name.endswith(ending)]
            assert own and all(bool((p == value).all()) for p in own), ending
        for n, block in enumerate(model.blocks if model is decoder else model.model.blocks):
            assert torch.equal(block.mlp.branch.slots["up"][0].weight, torch.eye(48))
            assert torch.equal(block.mlp.own.mixing.weight, start[f"blocks.{n}.mlp.own.mixing.weight"])
    for weight in found.values():
        weight.fill_(9)
    torch.manual_seed(3)
    decoder.reset_parameters()
    assert all(torch.equal(weight, start[name]) for name, weight in decoder.state_dict().items())


def test_a_field_that_would_not_change_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Mine: entry without a type does not change the field .* entry: str = 'emb"):

        @dataclass(frozen=True)
        class Mine(Placement):
            entry = "embedding"

    class Bare(Plain):
        keep: float = 0.9

    with pytest.raises(ConfigError, match=r"keep: fields need @dataclass\(frozen=True\) above the class"):
        Bare()
