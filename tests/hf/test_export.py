"""From a run to a folder that transformers loads, alone if need be; and refusals that leave nothing behind."""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from geonorm import Decoder, DecoderConfig, elsewhere, names
from geonorm.cli.main import main
from geonorm.errors import ConfigError, UntrustedCode

transformers = pytest.importorskip("transformers")

from geonorm import hf  # noqa: E402
from geonorm.hf.remote import modeling_source  # noqa: E402
from geonorm.lab.data import NO_TEXT, load_tokenizer  # noqa: E402
from geonorm.lab.open import open_run  # noqa: E402
from geonorm.schemes import parse  # noqa: E402

from ..rows import each  # noqa: E402
from .fresh import SOURCE, WITHOUT, python  # noqa: E402

ALONE = (
    WITHOUT
    + """
import torch
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
found = {}
for folder in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    ids = torch.arange(2, 20).view(2, 9)
    found[folder] = model(ids).logits, model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    AutoModel.from_pretrained(folder, trust_remote_code=True)
    AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
torch.save(found, sys.argv[1])
assert not [name for name in sys.modules if name.split(".")[0] == "geonorm"]
"""
)
FRESH = """
import sys, torch, geonorm.hf
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[2]).eval()
torch.save(model(torch.arange(2, 20).view(2, 9)).logits, sys.argv[1])
"""


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 0
    return tmp_path / "model"


def test_a_run_comes_back_with_equal_logits_in_a_fresh_process(run: Path, folder: Path, tmp_path: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    ]  # fmt: skip
    python(FRESH, tmp_path / "logits", folder, path=SOURCE)
    assert torch.equal(torch.load(tmp_path / "logits"), open_run(run).model(torch.arange(2, 20).view(2, 9)))


def test_tokenizer_and_generation_settings_come_along(run: Path, folder: Path) -> None:
    ours = load_tokenizer(str(run / "tokenizer.json"), NO_TEXT, 300)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    text = "the cat number 12 sat: ünïcödé  and   spaces\n"
    assert theirs(text).input_ids == ours.encode([text])[0].tolist() and theirs.is_fast
    assert theirs.decode(theirs(text).input_ids) == text
    assert theirs.eos_token_id == theirs.bos_token_id == theirs.pad_token_id == ours.eos
    settings = transformers.GenerationConfig.from_pretrained(folder)
    assert settings.eos_token_id == settings.pad_token_id == settings.bos_token_id == ours.eos
    model = hf.GeoNormForCausalLM.from_pretrained(folder)
    batch = theirs(["the cat", "the cat number 7 sat on"], return_tensors="pt", padding=True)
    assert model.generate(**batch, max_new_tokens=3).shape[0] == 2


def test_a_token_for_padding_is_apart_from_the_end(tmp_path: Path) -> None:
    """In config.json too; a stock embedding would not learn that row."""
    tokenizer = json.loads(load_tokenizer("byte", NO_TEXT, 257).json)
    extra = {**tokenizer["added_tokens"][0], "id": 257, "content": "<|padding|>"}
    text = json.dumps({**tokenizer, "added_tokens": [*tokenizer["added_tokens"], extra]})
    decoder = Decoder(
        DecoderConfig(scheme="pre(entry=embedding)", layers=1, width=16, heads=2, hidden=16, vocab_size=258)
    )
    for layout in ("geonorm", "llama"):
        to = hf.export(decoder, text, 256, tmp_path / layout, layout=layout)
        for file in ("config.json", "generation_config.json"):
            found = json.loads((to / file).read_text())
            assert (found["pad_token_id"], found["eos_token_id"], found["bos_token_id"]) == (257, 256, 256)
        assert transformers.AutoTokenizer.from_pretrained(to).pad_token == "<|padding|>"
        assert len({path.stat().st_mode for path in to.iterdir()}) == 1
    stock = hf.export(decoder, json.dumps(tokenizer), 256, tmp_path / "stock", layout="llama")
    assert json.loads((stock / "config.json").read_text())["pad_token_id"] is None


def test_card_says_what_was_trained_how_and_with_which_result(run: Path, folder: Path) -> None:
    text = (folder / "README.md").read_text()
    summary = json.loads((run / "summary.json").read_text())
    environment = json.loads((run / "environment.json").read_text())[-1]
    assert text.startswith("---\nlibrary_name: transformers\n") and "`pre`" in text
    facts = (f"{summary['tokens']:,}", f"{summary['val_loss']:.4f}", environment["data_sha256"], "| seed | 0 |")
    for fact in (*facts, "Trained on `small.txt` alone"):
        assert fact in text, fact
    assert str(run.parent) not in text
    assert "\nlicense: other\nlicense_name: not-stated\n---\n" in text


@each("layout, kind", [("stock", "LlamaForCausalLM"), ("mistral", "MistralForCausalLM")])
def test_a_run_in_a_stock_layout(layout: str, kind: str, run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), "--to", str(tmp_path / "llama"), "--layout", layout]) == 0
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama").eval()
    assert type(llama).__name__ == kind and "import geonorm" not in (tmp_path / "llama" / "README.md").read_text()
    ids = torch.arange(2, 20).view(2, 9)
    torch.testing.assert_close(llama(ids).logits, open_run(run).model(ids), rtol=1e-5, atol=1e-5)


def test_an_export_is_probed_as_its_run_is(run: Path, folder: Path, tmp_path: Path) -> None:
    """In a process that has not imported geonorm.hf; sites, and the loss without a block."""
    text, out = tmp_path / "text.txt", tmp_path / "out"
    text.write_text("the cat sat on the mat and saw residual streams.\n" * 40)
    words = ["probe", folder, run, "--data", text, "--tokens", 128, "--ablate-blocks", "--out", out]
    python(f"from geonorm.cli.main import main; assert main({[*map(str, words)]}) == 0", tmp_path / "none", path=SOURCE)
    for name in ("trace.jsonl", "ablation.jsonl"):
        rows = [json.loads(line) for line in (out / name).read_text().splitlines()]
        theirs, ours = ([{**row, "model": ""} for row in rows if row["model"] == model] for model in ("model", "out"))
        assert theirs == ours and theirs, name


ROUND = ["geonorm", "mix(ngpt, angpt)"]


def test_remote_code_loads_alone_with_equal_logits(tmp_path: Path) -> None:
    tokenizer = load_tokenizer("byte", NO_TEXT, 257)
    shape = {"layers": 2, "width": 32, "heads": 4, "kv_heads": 2, "hidden": 48, "vocab_size": 257, "context": 32}
    made = {}
    for number, scheme in enumerate(ROUND):
        torch.manual_seed(number)
        model = Decoder(DecoderConfig(scheme=scheme, **shape)).eval()
        to = hf.export(model, tokenizer.json, 256, tmp_path / f"model{number}", remote_code=True)
        made[str(to)] = model
    python(ALONE, tmp_path / "found", *made)
    ids = torch.arange(2, 20).view(2, 9)
    for folder, (logits, text) in torch.load(tmp_path / "found").items():
        assert torch.equal(logits, made[folder](ids)), folder
        ours = hf.GeoNormForCausalLM.from_pretrained(folder).eval()
        assert torch.equal(text, ours.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0))


@each("scheme", [*names(), "mix(ngpt, geonorm)"])
def test_remote_code_of_every_scheme_is_one_file_without_the_package(scheme: str) -> None:
    text = modeling_source(parse(scheme))
    space: dict[str, Any] = {"__name__": f"made_for_{abs(hash(scheme))}"}
    module = type(sys)(space["__name__"])
    sys.modules[module.__name__] = module
    try:
        exec(compile(text, "modeling_geonorm.py", "exec"), module.__dict__)  # noqa: S102
        config = module.GeoNormConfig(
            scheme=scheme, hidden_size=16, num_hidden_layers=2, intermediate_size=16, vocab_size=31
        )
        torch.manual_seed(0)
        model = module.GeoNormForCausalLM(config).eval()
    finally:
        del sys.modules[module.__name__]
    torch.manual_seed(0)
    ours = hf.GeoNormForCausalLM(hf.GeoNormConfig(**config.to_dict())).eval()
    ids = torch.arange(18).view(2, 9)
    assert torch.equal(model(ids).logits, ours(ids).logits)
    assert "import geonorm" not in "\n".join(line for line in text.splitlines() if line.startswith(("import", "from")))
    assert "triton" not in text.lower() and "from ." not in text


HALF = """
from dataclasses import dataclass
from geonorm import Placement
from geonorm.schemes.base import add as plus

REGISTRY = 0.5  # a name that ours has too

@dataclass(frozen=True)
class Half(Placement):
    share: float = REGISTRY

    parts = {"input": "norm"}

    def write(self, x, u, p, site, h=1.0):
        return plus(x, u, self.share, h)
"""
SMALL = {"layers": 2, "width": 16, "heads": 2, "hidden": 16, "context": 32, "vocab_size": 257}


@pytest.fixture
def elsewhere_model(tmp_path: Path, monkeypatch: Any) -> Any:
    """A folder with a scheme from elsewhere, made by someone else: nobody has typed its name here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "theirs"))
    (tmp_path / "half_of_it.py").write_text(HALF)
    decoder = Decoder(DecoderConfig("./half_of_it.py:Half(share=0.25)", **SMALL))

    def made(**settings: Any) -> tuple[Any, Path]:
        byte = load_tokenizer("byte", NO_TEXT, 257)
        folder = hf.export(decoder, byte.json, byte.eos, tmp_path / "model", **settings)
        (tmp_path / "half_of_it.py").unlink()
        monkeypatch.setenv("GEONORM_CACHE", str(tmp_path / "cache"))
        elsewhere.MODULES.clear()
        for name in [name for name in sys.modules if "half_of_it" in name]:
            del sys.modules[name]
        return decoder, folder

    yield made
    elsewhere.MODULES.clear()


@pytest.mark.parametrize("auto", [True, False])
def test_a_folder_runs_the_scheme_that_it_brings_when_that_is_trusted(auto: bool, elsewhere_model: Any) -> None:
    decoder, folder = elsewhere_model()
    kept = json.loads((folder / "config.json").read_text())["scheme_source"]["./half_of_it.py"]
    assert kept["source"] == HALF and kept["interface"] == 2
    assert kept["sha256"] == hashlib.sha256(HALF.encode()).hexdigest()
    load = (transformers.AutoModelForCausalLM if auto else hf.GeoNormForCausalLM).from_pretrained
    for settings in ({}, {"trust_remote_code": False}):
        with pytest.raises(UntrustedCode, match=r"names code, ./half_of_it.py: .*trust_remote_code=True"):
            load(folder, **settings)
    assert not [name for name in sys.modules if "half_of_it" in name]
    model = load(folder, trust_remote_code=True).eval()
    ids = torch.arange(2, 20).view(2, 9)
    assert torch.equal(model(ids).logits, decoder(ids)) and model.config.scheme == "./half_of_it.py:Half(share=0.25)"
    model.save_pretrained(folder.parent / "again")
    assert torch.equal(load(folder.parent / "again").eval()(ids).logits, decoder(ids))


def test_a_name_in_a_folder_imports_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """The module lies beside the configuration, and the folder is the working directory and on Python's path."""
    hf.GeoNormForCausalLM(hf.GeoNormConfig(hidden_size=16, num_hidden_layers=1, vocab_size=61)).save_pretrained(
        tmp_path
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "code_of_it").mkdir()
    (tmp_path / "code_of_it" / "rule.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n" + HALF)
    settings = json.loads((tmp_path / "config.json").read_text())
    for kind in ("geonorm", "geonorm_applied"):
        stock = {"stock_type": "llama"} if kind == "geonorm_applied" else {}
        changed = {**settings, **stock, "model_type": kind, "scheme": "code_of_it.rule:Half"}
        (tmp_path / "config.json").write_text(json.dumps(changed))
        for load in (transformers.AutoConfig.from_pretrained, transformers.AutoModelForCausalLM.from_pretrained):
            with suppress(UntrustedCode):
                load(tmp_path, trust_remote_code=False)
                assert load == transformers.AutoConfig.from_pretrained  # the configuration is text like any other
        with pytest.raises(UntrustedCode, match=r"names code, code_of_it\.rule"):
            transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not (tmp_path / "ran").exists()
    for words in (["eval", ".", "--data", "stdlib"], ["generate", "."], ["probe", ".", "--out", str(tmp_path / "x")]):
        assert main(words) == 2
    assert not (tmp_path / "ran").exists()


def test_the_modeling_file_carries_a_scheme_from_elsewhere(elsewhere_model: Any, tmp_path: Path) -> None:
    decoder, folder = elsewhere_model(remote_code=True)
    python(ALONE, tmp_path / "found", folder)
    found = torch.load(tmp_path / "found")
    torch.testing.assert_close(found[str(folder)][0], decoder(torch.arange(2, 20).view(2, 9)), rtol=1e-5, atol=1e-5)
    assert json.loads((folder / "config.json").read_text())["scheme"] == "./half_of_it.py:Half(share=0.25)"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("from geonorm import Placement", "import geonorm\nPlacement = geonorm.Placement", "write `from geonorm"),
        (
            "from geonorm import Placement",
            "from geonorm import Placement\nimport beside_it",
            "one file that imports none",
        ),
        ("from dataclasses", "import math as torch\nfrom dataclasses", None),
    ],
)
def test_what_the_modeling_file_cannot_carry(old: str, new: str, said: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    elsewhere.MODULES.clear()
    (tmp_path / "beside_it.py").touch()
    (tmp_path / "odd_rule.py").write_text(HALF.replace(old, new, 1))
    monkeypatch.syspath_prepend(tmp_path)
    scheme = parse("./odd_rule.py:Half")
    if said is None:  # an import that is not used stays behind
        assert "import math as torch" not in modeling_source(scheme)
        return
    with pytest.raises(ConfigError, match="--remote-code cannot carry scheme ./odd_rule.py:Half: .*" + said):
        modeling_source(scheme)


def test_shards(run: Path, tmp_path: Path) -> None:
    whole = open_run(run)
    to = hf.export(whole.model, whole.tokenizer.json, whole.tokenizer.eos, tmp_path / "m", shard="20KB")
    assert len(list(to.glob("model-*.safetensors"))) > 1 and (to / "model.safetensors.index.json").exists()
    ids = torch.arange(2, 20).view(2, 9)
    assert torch.equal(hf.GeoNormForCausalLM.from_pretrained(to)(ids).logits, whole.model(ids))


def damaged(run: Path, to: Path, status: str) -> Path:
    """A copy of the run that says it ended otherwise."""
    to.mkdir()
    for name in ("config.yaml", "environment.json", "tokenizer.json"):
        (to / name).write_bytes((run / name).read_bytes())
    summary = json.loads((run / "summary.json").read_text())
    if status:
        (to / "summary.json").write_text(json.dumps({**summary, "status": status}))
    return to


@each(
    "words, said",
    [
        ("RUN", "--to is missing"),
        ("nowhere --to out", "there is no run nowhere"),
        ("RUN --to full", "full is not empty: choose another --to"),
        ("RUN --to full/file", "full/file is a file: choose another --to"),
        ("RUN --to .", "cannot be the current one: name a new one in --to"),
        ("diverged --to out", "diverged is not finished (diverged)"),
        ("unfinished --to out", "unfinished is not finished (running or interrupted)"),
        ("RUN --to out --layout stok", "unknown layout 'stok': did you mean 'stock'"),
        ("RUN --to out --layout stock --remote-code", "--layout stock loads without --remote-code"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    words: str, said: str, run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("mine")
    damaged(run, tmp_path / "diverged", "diverged")
    damaged(run, tmp_path / "unfinished", "")
    before = sorted(tmp_path.rglob("*"))
    assert main(["export", *words.replace("RUN", str(run)).split()]) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and err.startswith("geonorm export: ") and out == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_an_export_without_room_is_one_line(run: Path, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    def fail(*given: Any, **more: Any) -> None:
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(hf.GeoNormForCausalLM, "save_pretrained", fail)
    assert main(["export", str(run), "--to", str(tmp_path / "model")]) == 2
    said = capsys.readouterr().err
    assert "No space left on device; make room there" in said and said.count("\n") == 1
    assert not list(tmp_path.iterdir())
