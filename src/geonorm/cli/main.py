"""The command `geonorm`: one function per verb. torch is imported by a verb's work, never for its help."""

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .. import __version__, elsewhere, output
from ..bench.config import OpsBench, TrainBench
from ..dynamics.config import SimulateConfig
from ..errors import ConfigError, GeonormError, Interrupted, is_out_of_memory, require, unknown
from ..lab.compare.config import CompareConfig, Grid
from ..lab.compare.ladder_config import LadderConfig
from ..lab.config import ExportConfig, TrainCommand
from ..lab.evaluate.config import EvalConfig, GenerateConfig
from ..lab.transfer_config import TransferConfig
from ..measure.config import ProbeConfig
from ..progress import show_progress, watched
from ..report.config import ReportConfig
from ..settings import Settings
from .arguments import HELP, HelpAsked, read
from .config import DataConfig, RegisterConfig, SameConfig, SchemesConfig

USAGE = """usage: geonorm VERB [options]      (geonorm VERB --help)

residual schemes for Transformers, trained side by side

verbs:"""
STATUS = """
geonorm VERB --help: what people set most, and two examples; --help-all: every option
exit status: 0 done; 1 rules that differ (same); 2 bad input, a diverged or a failed run; 130 interrupted, saved"""


TYPED: ContextVar[list[str]] = ContextVar("typed")
"""The command line."""
SEEN_ENOUGH = ("schemes", "data", "generate", "eval", "-h", "--help", "--version")
"""What only prints, or saves before it prints: who closes the pipe has seen enough. Of all others it stops the work."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one verb and returns the exit status. Errors that a user can act on are one line on stderr."""
    output.prepare()
    try:
        return run_verb(sys.argv[1:] if arguments is None else arguments)
    finally:
        output.settle()


def run_verb(arguments: list[str]) -> int:
    name, *rest = arguments or ["--help"]
    try:
        if name in ("-h", "--help"):
            verbs = [f"  {verb:14} {(run.__doc__ or '').splitlines()[0]}" for verb, run in VERBS.items()]
            print("\n".join([USAGE, *verbs, STATUS]))
            return 0
        if name == "--version":
            print(__version__)
            return 0
        if name not in VERBS:
            raise ConfigError(unknown("verb", name, VERBS))
        return copy_context().run(run, name, rest)  # --trust-code holds for this command
    except BrokenPipeError:
        return 0 if name in SEEN_ENOUGH else 130
    except (GeonormError, OSError, MemoryError, RuntimeError, ModuleNotFoundError) as error:
        line = problem(error)
        if (rank := output.speaker(error)) is not None:
            output.complain(f"geonorm {name}: {rank}{line}")
        return 2
    except Interrupted as stop:
        if output.first():
            output.complain(str(stop))
        return 130
    except KeyboardInterrupt:
        output.complain(f"geonorm {name}: interrupted")
        return 130
    finally:
        elsewhere.MODULES.clear()


def run(name: str, arguments: list[str]) -> int:
    TYPED.set(["geonorm", name, *arguments])
    try:
        command = name if name in COMMANDS else f"{name} {choose_command(name, arguments)}"
        rest = arguments[len(command.split()) - 1 :]
        return VERBS[name](read(COMMANDS[command], f"geonorm {command}", rest)) or 0
    except HelpAsked as last_lines:
        with suppress(BrokenPipeError):  # `| head` has seen enough
            print(last_lines)
        return 0


def choose_command(name: str, arguments: list[str]) -> str:
    """The second word of a verb that has several commands."""
    kinds = {command.split()[1]: kind for command, kind in COMMANDS.items() if command.startswith(f"{name} ")}
    require(arguments, f"WHAT is missing: {' or '.join(kinds)} (see --help)")
    if arguments[0] in HELP:
        lines = [f"  {what:9} {' '.join((kind.__doc__ or '').split())}" for what, kind in kinds.items()]
        usage = f"usage: geonorm {name} WHAT [options]      (geonorm {name} WHAT --help)"
        raise HelpAsked("\n".join([usage, "", *lines]))
    if arguments[0] not in kinds:
        raise ConfigError(unknown("benchmark", arguments[0], kinds))
    return arguments[0]


def problem(error: Exception) -> str:
    """An error that a user can act on, as one line; raises it again if it is a fault of the program."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = " ".join(str(error).splitlines())
    if is_out_of_memory(error):
        return f"out of memory ({text[:160]}); a smaller batch or model, or --runtime.recompute, needs less"
    if (name := str(getattr(error, "name", "")).partition(".")[0]) in ("scipy", "vl_convert", "rich"):
        return f"this needs {name}: pip install 'geonorm[train]'"  # imported by many rooms, brought by one extra
    if not isinstance(error, (GeonormError, OSError)):
        raise error
    return text


def run_compare(config: CompareConfig) -> None:
    """train several schemes side by side on the same text; ends in a table, figures and a page"""
    from ..lab.compare import compare as lab

    study(config, lab.run_comparison)


def run_ladder(config: LadderConfig) -> None:
    """train schemes at several sizes and lengths; ends in effective speed-ups"""
    from ..lab.compare import ladder as lab

    study(config, lab.train_ladder)


def study(config: Grid, run: Callable[..., dict[str, Any]]) -> None:
    """Makes the runs of a study, then its page, and prints its table."""
    results = run(config, live=watched(), command=TYPED.get())
    failed = [run for run in results["runs"] if run["status"] not in ("finished", "diverged")]
    if len(failed) < len(results["runs"]):
        publish(Path(config.out))
    if earlier := [run["run"] for run in failed if not run["requested"]]:
        print(f"runs of earlier commands that did not finish: {', '.join(earlier)}")
    if current := [run["run"] for run in failed if run["requested"]]:
        raise GeonormError(f"runs that did not finish: {', '.join(current)}; the same command tries them again")


def publish(out: Path) -> None:
    """Writes the page and the figures of a study into its folder, and prints its summary."""
    from ..report import build, summarize

    page = build([out], out / "report.html", figures=out / "figures")
    print("\n".join(summarize(out, output.columns(100))))
    print(f"report: {page}")


def run_train(command: TrainCommand) -> None:
    """train one model, or go on with a run that was stopped"""
    if command.dry_run:
        from ..lab.plan import plan, table

        planned = plan(command, command.world_size or 1)
        settings = json.dumps(planned["settings"], indent=1)
        print(json.dumps(planned, indent=1) if command.json else f"{settings}\n{table(planned)}")
        return
    from ..lab.train.loop import train as run
    from ..lab.train.summary import result_line

    with show_progress(watched(), tell=False) as progress:
        summary = run(command, progress=progress, profiled=command.profile)
    if output.first():
        print(f"{result_line(summary)}  in {command.out}")


def run_eval(config: EvalConfig) -> None:
    """loss on any text, and tasks, of a run, an exported folder or any Hugging Face model"""
    from ..lab.evaluate.evaluate import evaluate_model as run
    from ..lab.runs.folder import save_summary

    result = run(config, live=sys.stderr.isatty())
    save_summary(config.out, result)  # before a pipe to `head` closes
    print(json.dumps(result, indent=1))


def run_generate(config: GenerateConfig) -> None:
    """text from a trained run or a Hugging Face model"""
    from ..lab.evaluate.generate import generate_text

    for piece in generate_text(config):
        print(piece, end="", flush=True)
    print()


def run_export(options: ExportConfig) -> None:
    """a finished run as a model folder for transformers"""
    from ..lab.export import export_run

    print("\n".join(export_run(options)))


def run_report(options: ReportConfig) -> None:
    """one self-contained page about comparisons, runs, simulations and probes; or LaTeX, CSV, PDF"""
    from ..report import build
    from ..report.formats import ENDINGS

    out = options.out or f"report{ENDINGS[options.format]}"
    if wrong := [label for label in options.labels if "=" not in label]:
        raise GeonormError(f"--labels {wrong[0]} is not NAME=LABEL")
    labels = dict(label.rsplit("=", 1) for label in options.labels)
    print(build(options.dirs, out, options.figures, format=options.format, schemes=options.schemes,
                panels=options.panels, labels=labels, size=options.size or ()))  # fmt: skip


def run_bench(config: OpsBench | TrainBench) -> None:
    """speed: operations beside their peers (ops), training steps (train)"""
    from ..bench import ops, train

    if isinstance(config, OpsBench):
        ops.bench_ops(config)
    else:
        train.bench_train(config)


def run_simulate(config: SimulateConfig) -> int:
    """schemes as particle systems on the sphere: how fast tokens come together, beside theory"""
    from ..lab import study_folder

    out, settings = Path(config.out), asdict(config)
    study_folder.check_directory(out, settings)
    from ..devices import pick_device
    from ..dynamics.simulate import Simulation, run_simulation
    from ..lab.runs import environment

    sources = study_folder.describe_sources(config.schemes)
    described = environment.collect(pick_device(config.device)) | {"schemes": sources}
    before = study_folder.read_interrupted(out, described)
    simulation = Simulation(config, **before) if before else Simulation.empty(config)
    try:
        with show_progress(watched()) as progress:
            run_simulation(config, progress=progress.show, into=simulation)
    except BaseException as stop:
        if not simulation.summary["schemes"]:
            raise
        study_folder.save(out, settings, described, simulation.files(), simulation.trajectories)
        missing = ", ".join(simulation.summary["missing"])
        output.complain(
            f"geonorm simulate: finished schemes are in {out}, missing: {missing}; the same command goes on with these"
        )
        if not isinstance(stop, KeyboardInterrupt):
            raise
        return 130
    study_folder.save(out, settings, described, simulation.files(), simulation.trajectories)
    publish(out)
    if config.keep:
        stored = out / study_folder.TRAJECTORIES
        print(f"stored: {', '.join(config.keep)}, {stored.stat().st_size / 2**20:.3g} MiB in {stored}")
    return 0


def run_probe(config: ProbeConfig) -> None:
    """what normalization does to hidden states: any Hugging Face model or run, sub-layer by sub-layer"""
    from ..lab import probe as lab

    with show_progress(watched()) as progress:
        lab.probe_models(config, progress.show)
    publish(Path(config.out))


def run_check_transfer(config: TransferConfig) -> None:
    """how far one optimizer step turns the final state over depth and width: does a learning rate transfer?"""
    from ..lab import transfer

    with show_progress(watched()) as progress:
        transfer.check_transfer(config, progress.show)
    publish(Path(config.out))


def run_register(config: RegisterConfig) -> None:
    """the residual rule of any causal family or checkpoint, with its angles: geonorm register [MODEL ...]"""
    from ..devices import pick_device
    from ..lab.runs import environment
    from ..lab.study_folder import check_directory, save
    from ..measure.load import hugging_face
    from ..report import build

    out, settings = Path(config.out), asdict(config)
    check_directory(out, settings, "register", "models")
    hugging_face()
    from ..hf.rules import read_rules

    with show_progress(watched()) as progress:
        rules = read_rules(config.models, progress.show)
    save(out, settings, environment.collect(pick_device("cpu")), {"summary.json": {"kind": "register", "rules": rules}})
    build([out], out / "register.csv", format="csv")
    publish(out)


def run_same(config: SameConfig) -> int:
    """say whether residual rules are one function: geonorm same A B"""
    from ..equality import same, sort_into_classes
    from ..schemes import names

    if len(config.schemes) == 2:
        first, second = config.schemes
        answer = same(first, second)
        print(answer)
        return 0 if answer else 1
    for rules in sort_into_classes(config.schemes or names()):
        print(" = ".join(map(str, rules)))
    return 0


def run_schemes(config: SchemesConfig) -> None:
    """equation, source and fields of every residual scheme, or of one: geonorm schemes [NAME] [--json]"""
    from .catalogue import catalogue, describe_scheme, json_text

    if config.out:
        from .pictures import draw_schemes

        for path in draw_schemes(config.name, Path(config.out)):
            print(path)
    elif config.json:
        print(json_text(config.name))
    else:
        print(describe_scheme(config.name) if config.name else catalogue())


def run_data(options: DataConfig) -> None:
    """what a text source holds (inspect SOURCE), or its tokens in the cache (prepare SOURCE)"""
    from ..lab.data import inspect_source, load_tokenizer, open_source, tokenize

    source = open_source(options.source, options.field)
    if options.action == "inspect":
        about = inspect_source(source)
    else:
        tokenizer = load_tokenizer(options.tokenizer, source, options.vocab_size)
        about = tokenize(source, tokenizer, limit=options.limit).meta
    print(json.dumps(about, indent=1, ensure_ascii=False))


COMMANDS: dict[str, type[Settings]] = {
    "compare": CompareConfig,
    "ladder": LadderConfig,
    "train": TrainCommand,
    "eval": EvalConfig,
    "generate": GenerateConfig,
    "export": ExportConfig,
    "report": ReportConfig,
    "bench ops": OpsBench,
    "bench train": TrainBench,
    "probe": ProbeConfig,
    "simulate": SimulateConfig,
    "check-transfer": TransferConfig,
    "schemes": SchemesConfig,
    "register": RegisterConfig,
    "same": SameConfig,
    "data": DataConfig,
}
VERBS: dict[str, Callable[[Any], int | None]] = {
    verb.__name__.removeprefix("run_").replace("_", "-"): verb
    for verb in (run_compare, run_ladder, run_train, run_eval, run_generate, run_export, run_report, run_bench,
                 run_probe, run_simulate, run_check_transfer, run_schemes, run_register, run_same,
                 run_data)
}  # fmt: skip
