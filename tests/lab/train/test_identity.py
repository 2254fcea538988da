"""All files of a run are of one run: checkpoints, summary, rows and records say which; whoever reads one compares."""

import json
import re
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

import geonorm
from geonorm.errors import CheckpointError, ConfigError
from geonorm.lab.distributed.ranks import ALONE
from geonorm.lab.open import open_run
from geonorm.lab.runs.folder import LOCK, lock_folder
from geonorm.lab.train.loop import check_ranks

from ..conftest import rows
from .test_lengths import contents

TEXT = ["--data", "text.txt", "--tokens", 64]
READERS = {"eval": TEXT, "generate": ["--prompt", "a"], "export": ["--to", "model"], "probe": [*TEXT, "--out", "probe"]}
TRACED = ("--evaluation.every", 2, "--evaluation.trace_tokens", 64)
LINES: dict[str, Callable[[list[str]], list[str]]] = {
    "gone": lambda lines: lines[:2] + lines[3:], "twice": lambda lines: lines[:3] + lines[2:],
    "turned": lambda lines: lines[::-1], "first": lambda lines: lines[1:], "all": lambda lines: [],
    "other": lambda lines: [line.replace("false", "true", 1) for line in lines],
}  # fmt: skip
ROWS = [f"{verb} {name}.jsonl" for name in ("metrics", "trace") for verb in "gone twice turned first all take".split()]


@pytest.fixture(scope="module")
def finished(trained: Callable[..., Path]) -> dict[str, Path]:
    """A run of eight steps, and one under another scheme."""
    options = ["--lr", 0.01, "--steps", 8, "--checkpoint.every", 4, "--model.layers", 2, *TRACED]
    return {scheme: trained("--scheme", scheme, *options) for scheme in ("pre", "lns")}


@pytest.fixture
def run(finished: dict[str, Path], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copy(text, "text.txt")
    out = Path(shutil.copytree(finished["pre"], tmp_path / "run"))
    damage(f"edit {finished['pre']}>{out}", out, out)
    return out


def stop(run: Path) -> None:
    """As if it had been killed after step 4."""
    shutil.rmtree(run / "checkpoints" / "step-8")
    (run / "summary.json").unlink()


def damage(what: str, run: Path, other: Path) -> None:
    """Takes a file of the other run, edits a setting, removes a file, or changes the rows of a file."""
    verb, name = what.split(" ", 1)
    if verb == "edit":
        (old, new), config = name.split(">"), run / "config.yaml"
        config.write_text(re.sub(f"(?<= ){re.escape(old)}\n", f"{new}\n", config.read_text(), count=1))
    elif verb in LINES:
        lines = (run / name).read_text().splitlines(keepends=True)
        (run / name).write_text("".join(LINES[verb](lines)))
    else:
        (shutil.rmtree if (run / name).is_dir() else Path.unlink)(run / name)
        if verb == "take":
            (shutil.copytree if (other / name).is_dir() else shutil.copy)(other / name, run / name)


@pytest.mark.parametrize(
    ("what", "message", "page"),
    [
        ("take checkpoints", "step-8 was made with scheme lns, not pre", False),
        ("remove checkpoints/step-8", "step 8 with other weights than", False),
        ("take summary.json", "run has ", True),
        ("edit 0.01>0.02", "was made with lr 0.01, not 0.02", True),
        ("other tokenizer.json", "tokenizer.json was made with tokenizer_sha256", False),
        *((what, "", True) for what in ROWS),
    ],
)
def test_readers_refuse_what_is_not_of_one_run(
    what: str, message: str, page: bool, run: Path, finished: Any, call: Any
) -> None:
    assert not geonorm.load(run).damaged
    damage(what, run, finished["lns"])
    before = contents(run)
    for name, words in READERS.items() if message else [("export", READERS["export"])]:
        result = call(name, run, *words)
        assert result.status == 2 and (message or "lost rows") in result.err and result.err.count("\n") == 1, result
    assert contents(run) == before and not Path("model").exists() and not Path("probe").exists()
    assert bool(geonorm.load(run).damaged) == page
    html = geonorm.report.build(run, "page.html").read_text() if page else "files that do not belong together"
    assert "files that do not belong together" in html


@pytest.mark.parametrize("what", ["edit 0.01>0.02", "edit 8>12", "take checkpoints/step-4", *ROWS])
def test_training_does_not_go_on_from_what_is_not_of_one_run(what: str, run: Path, finished: Any, call: Any) -> None:
    stop(run)
    damage(what, run, finished["lns"])
    before = contents(run)
    refused = call("train", "--config", run / "config.yaml")
    assert refused.status == 2 and refused.out == "" and refused.err.count("\n") == 1 and contents(run) == before
    assert ("has lost rows up to step 4" if what in ROWS else "was made with") in refused.err


def test_results_say_their_step(run: Path, call: Any) -> None:
    earlier = run / "checkpoints" / "step-4"
    last, first = (json.loads(call("eval", name, *TEXT).out) for name in (run, earlier))
    assert (last["step"], first["step"]) == (8, 4) and last["loss"] != first["loss"]
    assert f"step 8 of {run}" in call("export", run, *READERS["export"]).out
    assert call("probe", earlier, *READERS["probe"]).status == 0
    assert json.loads(Path("probe/summary.json").read_text())["models"][0]["step"] == 4


@pytest.mark.parametrize("name", ["metrics.jsonl", "trace.jsonl"])
def test_rows_that_are_lost_on_the_way_are_missed_at_the_end(name: str, train: Any, after: Any, tmp_path: Path) -> None:
    with after(6, (tmp_path / "run" / name).unlink):
        ended = train(tmp_path / "run", "--steps", 8, *TRACED)
    assert ended.status == 2 and "has lost rows" in ended.err and not (tmp_path / "run" / "summary.json").exists()


def test_a_run_whose_lock_another_has_taken_ends(train: Any, after: Any, tmp_path: Path) -> None:
    run, open_locks, before = tmp_path / "run", ExitStack(), dict[str, bytes]()

    def take_over() -> None:
        (run / LOCK).unlink()
        open_locks.enter_context(lock_folder(run))
        before.update({name: content for name, content in contents(run).items() if "/.step-" not in name})

    with after(5, take_over), open_locks:
        ended = train(run, "--steps", 9, "--checkpoint.every", 2)
        assert before.items() <= contents(run).items()  # a save that was under way may have ended since
    assert ended.status == 2 and "its lock was removed: this run ends" in ended.err and ended.err.count("\n") == 1


def test_a_change_is_taken_as_a_new_part_where_it_is_accepted(run: Path, call: Any, finished: Any) -> None:
    stop(run)
    words = ["train", "--config", run / "config.yaml", "--lr", 0.05]
    assert "holds a run with lr 0.01, not 0.05" in call(*words).err
    for name in ("lrr", "steps", "batch_size", "evaluation.average", "optim.name"):
        assert "unknown --accept-changed" in call(*words, "--accept-changed", name).err
    ended = call(*words, "--accept-changed", "lr")
    assert ended.status == 0 and "lr 0.01 is now 0.05" in ended.out
    first, last = json.loads((run / "environment.json").read_text())
    assert (first["accepted"], last["accepted"], last["step"]) == ({}, {"lr": 0.01}, 4)
    settings = yaml.safe_load((run / "config.yaml").read_text())
    assert settings["lr"] == 0.05 and settings["accept_changed"] == []
    rates = [[row["lr"] for row in rows(folder / "metrics.jsonl")] for folder in (finished["pre"], run)]
    assert rates[0][:4] == rates[1][:4] and rates[1][4:] == pytest.approx([5 * rate for rate in rates[0][4:]])
    assert open_run(run).step == 8 and not geonorm.load(run).damaged
    stop(run)  # the new part goes on without a word
    assert call("train", "--config", run / "config.yaml").status == 0
    assert [row["lr"] for row in rows(run / "metrics.jsonl")] == rates[1]


def test_ranks_that_were_started_with_something_else_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = {"lr": 0.1, "GEONORM_BACKEND": "auto"}, {"lr": 0.1, "GEONORM_BACKEND": "reference"}
    check_ranks(ALONE, first)
    monkeypatch.setattr(type(ALONE), "gather", lambda world, value: [first, second])
    with pytest.raises(ConfigError, match=r"rank 1 differs .* GEONORM_BACKEND auto, not reference"):
        check_ranks(ALONE, first)


def test_a_folder_of_other_weights_is_refused(run: Path, call: Any) -> None:
    """Fewer blocks than the weights are of; an index that leads out of the folder or to a pickle; what is no number."""
    assert call("export", run, *READERS["export"]).status == 0
    config = json.loads((text := Path("model/config.json")).read_text())
    text.write_text(json.dumps({**config, "num_hidden_layers": 1}))
    for name in ("generate", "eval", "probe"):
        assert "config.json do not agree on model.blocks.1." in call(name, "model", *READERS[name]).err
    text.write_text(json.dumps(config))
    tensors, index = load_file("model/model.safetensors"), Path("model/model.safetensors.index.json")
    for file in ("../shard.bin", "/tmp/x.safetensors", "../x.safetensors", "model.bin"):
        index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, file)}))
        assert "names other files than safetensors of its own folder" in call("generate", "model").err
    index.unlink()
    next(tensor for name, tensor in tensors.items() if "mlp.branch.down" in name)[0, 0] = float("nan")
    save_file(tensors, "model/model.safetensors", {"format": "pt"})
    assert "generate: the logits are not finite" in call("generate", "model", "--prompt", "a").err
    measured = json.loads(call("eval", "model", *TEXT).out)
    assert measured["loss"] is None and "not finite" in measured["problem"]
    assert "model is not finite from decoder layer 0 mlp on" in call("probe", "model", *READERS["probe"]).out
    opened = open_run(run)
    opened.model.blocks[0].mlp.branch.down.weight.data[0, 0] = float("inf")
    with pytest.raises(CheckpointError, match=r"blocks.0.mlp.branch.down.weight is not finite"):
        geonorm.hf.export(opened.model, opened.tokenizer.json, 256, Path("other"))
