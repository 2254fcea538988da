"""The command line: its surface is frozen, its help is fast and complete, options and files mean the same."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from geonorm.cli import main as cli
from geonorm.cli.arguments import read
from geonorm.cli.main import COMMANDS, main
from geonorm.lab.config import TrainCommand, TrainConfig
from geonorm.settings import options

from ..rows import each

VERBS = set(
    """compare ladder train eval generate export report bench simulate probe check-transfer schemes register same
    data""".split()
)
SHARED = set(
    """preset data steps batch_size micro_batch objective guard recipe out
    model.layers model.width model.heads model.kv_heads model.head_width model.hidden model.vocab_size model.context
    model.mlp model.norm model.gains model.norm_bias model.eps model.qk_norm model.bias model.tied model.rope_theta
    model.embed_norm model.transform model.attn_gate model.soft_cap model.rotary model.block model.positions
    model.qk_scale model.values model.attn_dropout model.window model.full_every
    model.init model.init_depth model.document_end model.taper_from model.taper_to
    optim.name optim.weight_decay optim.betas optim.eps optim.clip optim.schedule optim.warmup optim.cooldown
    optim.floor optim.warmup_steps optim.independent optim.rates
    tokens.tokenizer tokens.field tokens.limit evaluation.every evaluation.tokens evaluation.trace_tokens
    evaluation.whole evaluation.average checkpoint.every checkpoint.keep
    log.to
    runtime.device runtime.dtype runtime.threads runtime.compile runtime.recompute
    runtime.tensorboard runtime.parallel""".split()
)
PLAN = {"dry_run", "world_size", "json", "profile"}
TRAIN = SHARED | PLAN | set("scheme lr seed resume accept_changed init_from branch".split())
COMPARE = SHARED | set(
    """schemes lrs seeds tune
    jobs launcher ray.address ray.gpus slurm.time slurm.gpus slurm.options slurm.setup""".split()
)
LADDER = (COMPARE - set("steps batch_size micro_batch lrs tune".split())) | set("depth budgets rates".split())
SIMULATE = set(
    """schemes init tokens dim beta time seeds out weights per heads causal mlp hidden rope delta method log_time
    points depth dtype device keep""".split()
)
PROBE = set(
    """models data tokens context batch gradients ablate_blocks out device dtype tokenizer revision
    trust_remote_code norms_only scheme bos field""".split()
)
SURFACE: dict[str, set[str]] = {
    "train": TRAIN, "compare": COMPARE, "ladder": LADDER, "simulate": SIMULATE, "probe": PROBE,
    "check-transfer": set("schemes depths widths depth width seeds lr out".split()),
    "eval": set("model data tasks tokens limit context batch_size out device scheme field".split()),
    "generate": set("run prompt tokens temperature top_k seed device scheme".split()),
    "export": set("run to layout remote_code scheme".split()),
    "report": set("dirs out format schemes figures panels labels size".split()),
    "bench ops": set("shapes dtypes modes only pairs threads device out".split()),
    "bench train": set("schemes baseline preset batch_size context modes dtype pairs threads device out".split()),
    "data": set("action source tokenizer vocab_size field limit".split()),
    "schemes": {"name", "json", "out"}, "register": {"models", "out"}, "same": {"schemes"},
}  # fmt: skip


def test_surface_is_frozen() -> None:
    """If a change is meant, change the lists above, too."""
    assert {name: set(options(kind)) for name, kind in COMMANDS.items()} == SURFACE
    assert set(cli.VERBS) == VERBS == {name.split()[0] for name in COMMANDS}
    assert set(options(TrainCommand)) - set(options(TrainConfig)) == PLAN


def plain(help_text: str) -> str:
    return " ".join(re.sub("[\u2500-\u257f]|^[|] | [|]$", " ", help_text, flags=re.MULTILINE).split())


@each("verb", COMMANDS)
def test_help_all_documents_every_option(verb: str, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # no word is too long for a line
    kind = COMMANDS[verb]
    assert main([*verb.split(), "--help-all"]) == 0
    text = plain(capsys.readouterr().out)
    for option in options(kind).values():
        assert option.text, option.name
        assert option.flag in text or option.name.upper() in text, option.name
        assert option.text in text, option.name
    assert text.startswith(f"usage: geonorm {verb}") and kind.__doc__ and kind.__doc__.split()[0] in text


@each("verb", COMMANDS)
def test_help_is_short_and_ends_with_two_examples(verb: str, capsys: Any) -> None:
    """What people set first, in the order in which it is named; the examples are commands that could run."""
    kind: Any = COMMANDS[verb]
    assert main([*verb.split(), "--help"]) == 0
    out = capsys.readouterr().out
    shown = re.findall(r"^(?:\u2502| ) (--[a-z][a-z.-]*)", out, re.MULTILINE)
    if kind.common:
        assert shown == [options(kind)[name].flag for name in kind.common] + ["--config"]
        assert f"geonorm {verb} --help-all" in out and len(options(kind)) > len(shown)
    else:
        assert len(options(kind)) <= 14
    assert len(kind.examples) == 2
    for example in kind.examples:
        assert f"  {example}\n" in out
        program, *words = shlex.split(example)
        assert [program, *words[: len(verb.split())]] == ["geonorm", *verb.split()]
        read(kind, verb, words[len(verb.split()) :])


def test_help_does_not_import_torch() -> None:
    code = """
import sys, time
from geonorm.cli.main import main
for words in ("--help", "train --help", "compare --help", "ladder -h", "eval -h", "schemes --help", "simulate -h",
              "bench -h", "export -h", "bench ops -h", "bench train -h", "train --help-all"):
    main(words.split())
print(sorted({"torch", "numpy", "yaml"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and done.stderr == ""


def test_version_help_broken_pipe_and_full_disk(capsys: Any) -> None:
    assert main([]) == main(["-h"]) == main(["--version"]) == 0
    out = capsys.readouterr().out
    assert all(re.search(rf"^  {verb} +\w", out, re.MULTILINE) for verb in VERBS) and "exit status" in out
    code = "import sys; from geonorm.cli.main import main; sys.exit(main(['train', '--help']))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b"" and process.wait() == 0
    with open("/dev/full", "w") as full:
        ended = subprocess.run([sys.executable, "-m", "geonorm", "--version"], stdout=full, stderr=subprocess.PIPE)
    assert ended.returncode == 2 and ended.stderr == b"geonorm --version: No space left on device\n"


def resolved(capsys: Any, *words: Any) -> dict[str, Any]:
    assert main(["train", "--dry-run", *map(str, words)]) == 0
    out = capsys.readouterr().out
    found: dict[str, Any] = json.loads(out[: out.index("\n}") + 2])
    return found


def test_ways_to_write_an_option(capsys: Any) -> None:
    dashes = resolved(capsys, "--batch-size", 8, "--optim.weight-decay=0.5", "--runtime.compile", "--lr", "2e-3")
    under = resolved(capsys, "--batch_size=8", "--optim.weight_decay", 0.5, "--runtime.compile=true", "--lr=.002")
    assert dashes == under
    assert dashes["batch_size"] == 8 and dashes["runtime"]["compile"] is True and dashes["lr"] == 0.002
    assert resolved(capsys, "--optim.betas", 0.5, 0.6)["optim"]["betas"] == [0.5, 0.6]
    odd = resolved(capsys, "--data", "null", "--out", "7", "--branch", "null", "--scheme", "geonorm( alpha = 2 )")
    assert (odd["data"], odd["out"], odd["branch"]) == ("null", "7", None)
    assert resolved(capsys, "--data", "[1]")["data"] == "[1]"
    assert resolved(capsys, "--model.gains", "false", "--runtime.tensorboard", "false")["model"]["gains"] is False


def test_options_override_the_file_wherever_it_stands(capsys: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("steps: 7\nlr: 1e-2\noptim: {clip: 3, betas: [0.1, 0.2]}\nscheme: post\nmodel: {tied: true}\n")
    for words in (["--config", path, "--steps", 9], ["--steps", 9, f"--config={path}"]):
        found = resolved(capsys, *words, "--optim.betas", 0.3, 0.4)
        assert (found["steps"], found["lr"], found["scheme"]) == (9, 0.01, "post")
        assert (
            found["optim"]["clip"] == 3.0 and found["optim"]["betas"] == [0.3, 0.4] and found["model"]["tied"] is True
        )
