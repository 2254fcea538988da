"""The command `geonorm`: one function per verb. torch is imported by a verb's work, never for its help."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ConfigError, GeonormError, unknown

HELP = """usage: geonorm VERB [options]      (geonorm VERB --help)

residual schemes for Transformers, trained side by side

verbs:
"""


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 done, 2 bad input or a diverged run (one line on stderr), 130 interrupted with everything saved."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP + "\n".join(f"  {name:9} {(verb.__doc__ or '').splitlines()[0]}" for name, verb in VERBS.items()))
        return 0
    if arguments[0] == "--version":
        from . import __version__

        print(__version__)
        return 0
    name, rest = arguments[0], arguments[1:]
    try:
        if name not in VERBS:
            raise ConfigError(unknown("verb", name, VERBS))
        return VERBS[name](rest) or 0
    except GeonormError as error:
        print(f"geonorm {name}: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        print(f"geonorm {name}: interrupted", file=sys.stderr)
        return 130


def compare(arguments: list[str]) -> int:
    """train several schemes side by side on the same text; ends in a table, figures and a page"""
    from .arguments import read
    from .lab.config import CompareConfig

    config = read(CompareConfig, "geonorm compare", arguments)
    from . import report
    from .lab import compare as lab
    from .lab.train import Interrupted
    from .report import tables

    try:
        results = lab.compare(config, live=sys.stdout.isatty())
    except Interrupted as stop:
        print(stop, file=sys.stderr)
        return 130
    out = Path(config.out)
    page = report.build([out], out / "report.html", figures=out / "figures")
    print("\n".join(tables.terminal(results["schemes"])))
    print(f"report: {page}")
    return 0


def train(arguments: list[str]) -> int:
    """train one model, or go on with a run that was stopped"""
    from .arguments import read

    dry = "--dry-run" in arguments or "--dry_run" in arguments
    config = read_train([a for a in arguments if a not in ("--dry-run", "--dry_run")], read)
    if dry:
        from .lab.plan import plan

        print(plan(config))
        return 0
    from .lab.train import Interrupted
    from .lab.train import train as run

    try:
        summary = run(config)
    except Interrupted as stop:
        print(f"{stop}; the same command goes on from there", file=sys.stderr)
        return 130
    print(f"val_loss {summary['val_loss']:.4f}  bits per byte {summary['val_bpb']:.4f}  in {config.out}")
    return 0


def read_train(arguments: list[str], read: Callable[..., Any]) -> Any:
    from .lab.config import TrainConfig

    return read(TrainConfig, "geonorm train [--dry-run]", arguments)


@dataclass(frozen=True)
class Evaluate:
    """Loss, perplexity and bits per byte of a run on any text."""

    run: str = ""
    data: str = ""
    """Text to evaluate on, all of it or up to --tokens."""
    tokens: int | None = None
    """Most tokens to read."""
    out: str | None = None
    """Directory for summary.json."""
    device: str = "auto"
    """auto, cpu or cuda."""


def evaluate(arguments: list[str]) -> int:
    """loss, perplexity and bits per byte of a run on any text"""
    from .arguments import read

    options = read(Evaluate, "geonorm eval", arguments, {"run": "Run directory."})
    if not options.data:
        raise ConfigError("eval needs --data, the text to evaluate on")
    from .lab.use import evaluate_text

    result = evaluate_text(Path(options.run), options.data, options.tokens, options.device)
    print(json.dumps(result, indent=1))
    if options.out:
        from .lab.run import write_json

        Path(options.out).mkdir(parents=True, exist_ok=True)
        write_json(Path(options.out) / "summary.json", result)
    return 0


@dataclass(frozen=True)
class Generate:
    """Text from a trained run."""

    run: str = ""
    prompt: str = ""
    """Beginning of the text."""
    tokens: int = 100
    """New tokens."""
    temperature: float = 0.8
    """0 takes the likeliest token each time."""
    top_k: int | None = 50
    """Sample among this many likeliest tokens."""
    seed: int = 0
    """Seed of the sampling."""
    device: str = "auto"
    """auto, cpu or cuda."""


def generate(arguments: list[str]) -> int:
    """text from a trained run"""
    from .arguments import read

    options = read(Generate, "geonorm generate", arguments, {"run": "Run directory."})
    from .lab.use import generate_text

    for piece in generate_text(
        Path(options.run),
        options.prompt,
        options.tokens,
        options.temperature,
        options.top_k,
        options.seed,
        options.device,
    ):
        print(piece, end="", flush=True)
    print()
    return 0


@dataclass(frozen=True)
class Report:
    """A self-contained page from run or comparison directories."""

    dirs: list[str] = field(default_factory=list)
    """Comparison or run directories."""
    out: str = "report.html"
    """The page to write."""
    figures: str | None = None
    """Directory for PNG and SVG figures."""


def report(arguments: list[str]) -> int:
    """a self-contained page from run or comparison directories"""
    from .arguments import read

    count = next((i for i, word in enumerate(arguments) if word.startswith("-")), len(arguments))
    folders, rest = arguments[:count], arguments[count:]
    options = read(Report, "geonorm report DIR ...", [*(["--dirs", *folders] if folders else []), *rest])
    if not options.dirs:
        raise ConfigError("report needs at least one run or comparison directory")
    from .report import build

    figures = Path(options.figures) if options.figures else None
    try:
        print(build([Path(folder) for folder in options.dirs], Path(options.out), figures=figures))
    except OSError as error:
        raise ConfigError(str(error)) from None
    return 0


def schemes(arguments: list[str]) -> int:
    """equation, source and fields of every residual scheme, or of one: geonorm schemes [NAME] [--json]"""
    from .catalogue import catalogue, describe, json_text

    if "--help" in arguments or "-h" in arguments:
        print("usage: geonorm schemes [NAME] [--json]")
        return 0
    as_json = "--json" in arguments
    chosen = [word for word in arguments if word != "--json"]
    if len(chosen) > 1 or any(word.startswith("-") for word in chosen):
        raise ConfigError("usage: geonorm schemes [NAME] [--json]")
    if as_json:
        print(json_text(chosen[0] if chosen else None))
    else:
        print(describe(chosen[0]) if chosen else catalogue())
    return 0


@dataclass(frozen=True)
class Data:
    """What a text source holds (inspect), or its tokens written to the cache (prepare)."""

    action: str = ""
    source: str = ""
    tokenizer: str | None = None
    """byte, bpe or a tokenizer.json; bpe for prepare when not given."""
    vocab_size: int = 1024
    """Tokens of an own BPE."""
    cache: str | None = None
    """Folder of prepared tokens; $GEONORM_CACHE or ~/.cache/geonorm when not given."""


def data(arguments: list[str]) -> int:
    """what a text source holds (inspect SOURCE), or its tokens in the cache (prepare SOURCE)"""
    from .arguments import read

    words = {"action": "inspect or prepare.", "source": "Text, as for --data of train."}
    options = read(Data, "geonorm data", arguments, words)
    if options.action not in ("inspect", "prepare"):
        raise ConfigError(unknown("action", options.action, ["inspect", "prepare"]))
    from .lab.data import describe, load_tokenizer, open_source, prepare

    cache = Path(options.cache) if options.cache else None
    source = open_source(options.source)
    name = options.tokenizer or ("bpe" if options.action == "prepare" else None)
    tokenizer = load_tokenizer(name, source, options.vocab_size, cache) if name else None
    if options.action == "inspect" or tokenizer is None:
        print(json.dumps(describe(source, tokenizer), indent=1, ensure_ascii=False))
        return 0
    print(json.dumps(prepare(source, tokenizer, cache).meta, indent=1, ensure_ascii=False))
    return 0


VERBS: dict[str, Callable[[list[str]], int]] = {
    "compare": compare,
    "train": train,
    "eval": evaluate,
    "generate": generate,
    "report": report,
    "schemes": schemes,
    "data": data,
}
