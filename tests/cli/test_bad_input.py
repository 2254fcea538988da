"""Bad input is one line that names what is wrong and what is near, and leaves nothing."""

import re
from pathlib import Path
from typing import Any

import pytest

from geonorm.cli import main as cli
from geonorm.cli.main import main

from ..rows import each

EXAMPLE = "--model.layers 1 --model.width 16 --model.heads 2 --model.hidden 16 --model.context 16".split()
BYTES = ["--tokens.tokenizer", "byte", "--model.vocab_size", "257"]
TRAINED = [*EXAMPLE, *BYTES, *"--data text.txt --out out --steps 2".split()]
SIMULATED = "--tokens 4 --dim 8 --time 2 --out out --points 8".split()
SMALL = {"train": TRAINED, "compare": TRAINED, "simulate": SIMULATED}

BAD = [
    ("fly", "unknown verb 'fly'"),
    ("train --stesp 3", "unknown option '--stesp': did you mean '--steps'?"),
    ("train --lr 1 2", "unexpected argument '2'"),
    ("train --lr", "--lr needs a value"),
    ("train --steps 3 --steps 3", "--steps is given twice"),
    (f"train --seed {2**64}", "seed must be between 0 and"),
    ("train --optim.betas 0.9", "--optim.betas takes 2 values"),
    ("train --model.mlp relu", "--model.mlp takes swiglu or gelu or gelu_tanh or relu2 or geglu, got 'relu'"),
    ("train --model.width 15", "model.width 15 must be an even multiple of model.heads"),
    ("train --model.layers 1000000000", "weights and gradients of this model take more than"),
    ("simulate --init uniform --tokens 1000000000000", "out of memory"),
    ("simulate --schemes geonrom", "did you mean 'geonorm'?"),
    ("simulate --schemes pre pre()", "--schemes names pre twice"),
    ("simulate --tokens 9 --dim 8", "9 equiangular particles need dim >= 9, got 8"),
    ("simulate --heads 3 --weights network", "model.width 8 must be a multiple of model.heads 3"),
    ("simulate --delta 3 --init cone", "delta must lie in (0, 2], got 3"),
    ("simulate --delta 0.2", "--delta does nothing here, it needs --init cone"),
    ("simulate --per layer", "--per does nothing here, it needs --weights kaiming"),
    ("simulate --hidden 3 --weights network", "--hidden does nothing here, it needs --mlp"),
    ("simulate --beta 2 --weights network", "--beta does nothing here"),
    ("simulate --method layers --time 2.5", "time must be a whole number"),
    ("simulate --device tpu", "unknown device 'tpu'"),
    ("simulate --out text.txt", "out is a file"),
    ("simulate --out .", "is not empty and holds no simulation"),
    ("simulate --schemes post hybrid", "hybrid changes v inside attention"),
    ("simulate --schemes post per_kind --weights network --mlp gelu", "do not put the stream on one sphere"),
    ("simulate --schemes mix(ngpt,pre,share=0.5) --weights network", "mixes streams of radius 1 (ngpt) and 2.828"),
    ("simulate --out text.txt/x", "cannot write to text.txt/x: Not a directory"),
    ("train --scheme ngpt --model.init zero", "under ngpt output matrices that begin at 0 would stay there"),
    ("train --world-size 2", "--world-size does nothing here, it needs --dry-run"),
    ("train --dry-run --world-size 3", "batch_size 4 must be a multiple of 3 ranks"),
    ("compare --runtime.parallel fsdp", "needs torchrun: torchrun --nproc-per-node N"),
    ("train --dry-run --runtime.device h1000", "unknown device 'h1000': did you mean 'h100'?"),
    ("train --batch-size 99999999 --micro-batch 99999999", "a rank, and there are"),
    ("train --scheme geonrom", "unknown scheme 'geonrom': did you mean 'geonorm'?"),
    ("train --runtime.device tpu", "unknown device 'tpu'"),
    ("train --data nowhere.txt", "no file, folder or corpus 'nowhere.txt'"),
    ("train --config nowhere.yaml", "cannot read --config nowhere.yaml: No such file"),
    ("train --tokens.tokenizer byte --model.vocab_size 100", "tokenizer has 257 ids but the model's vocabulary is 100"),
    ("train --out=", "out is empty"),
    ("compare --batch-size 99999", "windows of 16 but a batch needs 99999"),
    ("compare --schemes pre post pre", "--schemes names pre twice"),
    ("compare --schemes pre,post", "cannot read scheme 'pre,post'"),
    ("compare --lrs 1e-3 0.001", "--lrs names a learning rate twice"),
    ("compare --launcher submitit --ray.gpus 2", "--ray.gpus does nothing here, it needs --launcher ray"),
    ("train --optim.warmup 0.2 --optim.warmup-steps 1", "it needs optim.warmup_steps to be left out: see to that, or"),
    ("eval nowhere --data x.txt --batch-size 4", "--batch-size does nothing here, it needs --tasks"),
    ("data inspect text.txt --vocab-size 300", "--vocab-size does nothing here, it needs prepare"),
    ("compare --launcher submitit --slurm.options gpu", "slurm.options are name=value, got 'gpu'"),
    ("train --preset nano-bert", "preset nano-bert attends to both sides of a token: it needs "),
    ("train --objective mlm", "tokenizer has 258 ids but the model's vocabulary is 257: set "),
    ("ladder --depth 99999", "depth must be between 1 and 1000, got 99999"),
    ("ladder --budgets many", "--budgets takes tokens for each parameter (20) or in all (500k, 4M), got 'many'"),
    ("ladder --budgets 20000", "2000 at most; for that many in all write 20k"),
    ("ladder --budgets 1 2", "several --budgets share a prefix of training: add --optim.schedule wsd"),
    ("ladder --depth 1 --budgets 0.01k", "make [0] steps of the budgets"),
    ("ladder --rates 0", "rates must be positive, got 0"),
    ("ladder --steps 100", "unknown option '--steps'"),
    ("ladder --model.layers 3", "--model.layers is what --depth sets"),
    ("check-transfer --widths 40", "a width must be a multiple of 16, the width of a head, got 40"),
    ("check-transfer --schemes rezero --depths 4 --widths 64", "rezero turns no token at initialization"),
    ("check-transfer --out .", "is not empty and holds no check of transfer"),
    ("check-transfer --lr 1e-30", "lr must be between 1e-07 and 0.1"),
    ("report . --size 60", "--size takes"),
    ("data prepare text.txt --vocab-size -5", "vocab_size must be at least 1"),
    ("train --model.context 1000000000000000000", "must be between 1 and 9.0072e+15"),
    ("eval", "MODEL is missing"),
    ("eval nowhere --data x.txt", "there is no run and no model folder nowhere"),
    ("generate \x1b[2J", r"there is no run and no model folder \x1b[2J"),  # nothing moves the terminal's cursor
    ("export nowhere --to text.txt", "text.txt is a file: choose another --to"),
    ("bench", "WHAT is missing: ops or train"),
    ("bench ops --shapes 4096", "shape '4096' is not ROWSxDIM"),
    ("bench train --schemes geonrom --out x", "did you mean 'geonorm'?"),
]


@each("line, said", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(
    line: str, said: str, capsys: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEONORM_CACHE", f"{tmp_path}-cache")
    (tmp_path / "text.txt").write_text("a line of text\n" * 200)
    words = line.split(" ") if "(" not in line else re.split(r" (?![^(]*\))", line)
    verb = words[0]
    given = {word.partition("=")[0].replace("-", "_") for word in words}
    for name, value in zip(*[iter(SMALL.get(verb, []))] * 2, strict=True):
        if name.replace("-", "_") not in given:
            words += [name, value]
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert said in err and len(err.splitlines()) == 1 and err.startswith(f"geonorm {verb}: "), err
    assert out == "" and [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@each(
    "error, status, line",
    [
        (OSError(28, "No space left on device", "runs/x/a.jsonl"), 2, "runs/x/a.jsonl: No space left on device"),
        (MemoryError("Unable to allocate 4 TiB"), 2, "out of memory (Unable to allocate 4 TiB)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory:\n x"), 2, "out of memory (DefaultCPUAllocator"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (RuntimeError("shape mismatch"), None, ""),
        (RuntimeError("CUDA error: an illegal memory access"), None, ""),
    ],
)
def test_what_a_command_raises(
    error: BaseException, status: int | None, line: str, monkeypatch: Any, capsys: Any
) -> None:
    """What the machine lacks is one line; faults of the program are not hidden."""

    def fail(_: Any) -> int:
        raise error

    monkeypatch.setitem(cli.VERBS, "train", fail)
    if status is None:
        with pytest.raises(RuntimeError, match=str(error)):
            main(["train"])
        return
    assert main(["train"]) == status
    err = capsys.readouterr().err
    assert err.startswith(f"geonorm train: {line}") and len(err.splitlines()) == 1
