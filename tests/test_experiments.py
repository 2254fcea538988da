"""Plans of experiments: every run that one asks for is a command that `geonorm train` takes, and a run of it trains."""

from __future__ import annotations

import ast
import importlib
import json
import lzma
import runpy
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from geonorm.cli.arguments import read
from geonorm.cli.main import main
from geonorm.lab.config import TrainCommand
from geonorm.lab.convert.config import ConvertConfig
from geonorm.lab.data import open_source
from geonorm.nn.models import build
from geonorm.schemes import parse

ROOT = Path(__file__).parents[1] / "experiments"
Plan = Callable[[Mapping[str, Any]], Mapping[str, Sequence[str]]]


def plan_of(name: str) -> Plan:
    plan: Plan = runpy.run_path(str(ROOT / name / "runs.py"))["plan"]
    return plan


def test_every_run_of_016_is_a_command() -> None:
    grid = plan_of("016-streams")({})
    assert len(grid) == 26 * 3
    first = {name: list(words) for name, words in grid.items() if "lr0.006" in name}  # reading all takes a minute
    configs = {name: read(TrainCommand, "geonorm train", words).run() for name, words in first.items()}
    assert len(configs) == 26
    shapes = {name: config.decoder(config.scheme) for name, config in configs.items()}
    assert all(parse(config.scheme) for config in configs.values())
    assert {c.optim.name for n, c in configs.items() if n.startswith("modern")} == {"muon"}
    assert {s.init for n, s in shapes.items() if n.startswith("zero")} == {"zero"}
    assert {s.hidden for n, s in shapes.items() if n.startswith("modern")} == {256}  # two matrices for three of 172
    assert {s.width for s in shapes.values()} == {64} and {c.steps for c in configs.values()} == {4000}


def test_016_extends_rates_and_then_asks_for_seeds() -> None:
    """A loss that falls with the rate up to 1.2e-2 asks for an octave more; one with an interior best for seeds."""
    plan = plan_of("016-streams")

    def known(grid: Mapping[str, Any], best: float) -> dict[str, Any]:
        rates = {name: float(name.rpartition("-lr")[2].partition("-seed")[0]) for name in grid}
        return {n: {"lr": lr, "status": "finished", "val_loss": 3 + abs(lr - best)} for n, lr in rates.items()}

    first = plan({})
    wider = plan(known(first, 1.2e-2))
    assert len(wider) == 26 * 4 and any("lr0.024" in name for name in wider)
    seeded = plan(known(first, 6e-3))
    assert len(seeded) == 26 * 5 and sum("lr0.006-seed2" in name for name in seeded) == 26
    assert all(words[words.index("--seed") + 1] == name.rpartition("seed")[2] for name, words in seeded.items())


def test_tables_and_figures_of_016(tmp_path: Path) -> None:
    """Planted: `nag` 0.1 above `pre` where outputs are drawn, 0.3 above it where they start at 0; two regimes make one
    family of p."""
    rows, traces = [], ["run,step,clamped"]
    for cell, worse in (("plain", 0.1), ("zero", 0.3)):
        for scheme, plus in (("nag", worse), ("pre", 0.0)):
            for lr, seed in ((3e-3, 0), (6e-3, 0), (6e-3, 1), (6e-3, 2), (1.2e-2, 0)):
                loss = 3 + abs(lr - 6e-3) * 50 + plus * (1 + 0.01 * (seed - 1)) + 0.02 * seed
                run = f"{cell}-{scheme}-lr{lr:g}-seed{seed}"
                rows.append(
                    {"run": run, "scheme": scheme, "lr": lr, "seed": seed, "status": "finished", "val_loss": loss,
                     "val_loss_average": loss - 0.01}
                )  # fmt: skip
                if scheme == "nag":
                    traces += [f"{run},{step},{share}" for step, share in ((1, 0.1), (2, 0.4), (2, 0.6))]
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "traces.csv").write_text("\n".join(traces) + "\n")
    made = runpy.run_path(str(ROOT / "016-streams" / "table.py"))
    made["main"](tmp_path)
    text = (tmp_path / "table.md").read_text()
    plain = text[text.index("## plain") : text.index("## zero")].splitlines()
    base, own = (next(line for line in plain if line.startswith(f"| {name} |")).split(" | ") for name in ("pre", "nag"))
    assert base[2].startswith("3.0200") and own[3].startswith("+0.1000 (") and own[7] == "50%" and base[7] == "–"
    p, adjusted = map(float, own[4].split(", "))
    assert adjusted == pytest.approx(2 * p, rel=0.05)  # of equal p, the smaller counts twice
    assert "| nag | +0.200 (+0.195 to +0.205) |" in text
    assert (tmp_path / "figures" / "differences.svg").exists() and (tmp_path / "figures" / "rates.svg").exists()


def test_every_run_of_009_is_a_command_and_branches_from_one_before() -> None:
    """Nine schemes on books at five budgets, four on LaTeX at three, four at two lengths; three rates of each. A budget
    whose best rate is the highest asks for an octave there, and no other budget does."""
    plan = plan_of("009-tokens")
    first = plan({})
    assert len(first) == 3 * (9 * 5 + 4 * 3 + 2 * 4)
    order = list(first)
    for name, words in first.items():
        if "--branch" in words:
            trunk = words[words.index("--branch") + 1]
            assert order.index(trunk) < order.index(name)
            own, other = (w[w.index("--lr") :] for w in (words[: words.index("--branch")], first[trunk]))
            assert own == other[: len(own)]
    some = [list(words) for name, words in first.items() if "-geonorm-" in name and "lr0.003" in name]
    configs = [read(TrainCommand, "geonorm train", words).run() for words in some]
    assert {c.decoder(c.scheme).context * c.batch_size for c in configs} == {512}
    assert {c.steps for c in configs} == {2000, 4000, 8000, 16000, 32000} and {c.optim.schedule for c in configs} == {
        "wsd"
    }

    def known(name: str) -> dict[str, Any]:
        lr = float(name.rpartition("-lr")[2].partition("-seed")[0])
        return {"lr": lr, "status": "finished", "val_loss": 3 - lr if "-1M-" in name else 3 + abs(lr - 3e-3)}

    again = plan({name: known(name) for name in first})
    fresh = [name for name in again if name not in first]
    assert {name.partition("-lr")[2] for name in fresh if "seed0" in name} == {"0.012-seed0"}
    assert all("-1M-" in name for name in fresh if "seed0" in name) and sum("seed0" in name for name in fresh) == 13
    assert sum("-16M-lr0.003-seed1" in name for name in fresh) == 9 and not any(
        "0.0015-seed1" in name for name in fresh
    )


def test_latex_is_split_by_work(tmp_path: Path) -> None:
    """No work is in both parts, and what is held out is a twentieth at most."""
    own = runpy.run_path(str(ROOT / "009-tokens" / "works.py"))
    documents = [{"source": f"a/{n % 40}:file{n}", "text": f"work {n % 40} " * 10} for n in range(200)]
    for part, some in (("train", documents[5:]), ("validation", documents[:5])):
        with lzma.open(tmp_path / f"{part}.jsonl.xz", "wt") as file:
            file.writelines(json.dumps(document) + "\n" for document in some)
    own["main"](tmp_path, tmp_path / "out")
    found = {part: set(open_source(str(tmp_path / "out")).documents(part)) for part in ("train", "validation")}
    works = {part: {text.split()[1] for text in texts} for part, texts in found.items()}
    assert not works["train"] & works["validation"] and len(works["train"] | works["validation"]) == 40
    assert len(works["validation"]) == 2


def test_a_branch_waits_for_its_trunk_and_does_without_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a trunk on record alone there is no folder: its branch is trained from the first step."""
    own = runpy.run_path(str(ROOT / "programme.py"))
    done: list[list[str]] = []

    def trains(command: list[str], check: bool) -> Any:
        out = Path(command[-1])
        done.append(command[4:-2])
        out.mkdir(parents=True)
        (out / "config.yaml").touch()
        (out / "summary.json").write_text(json.dumps({"status": "finished", "val_loss": 1.0}))
        return type("Done", (), {"returncode": 0})

    monkeypatch.setattr("subprocess.run", trains)
    (tmp_path / "results.jsonl").write_text(json.dumps({"run": "kept", "val_loss": 1.0}) + "\n")
    grid = {
        "long": ["--steps", "4", "--branch", "short"],
        "short": ["--steps", "2"],
        "longer": ["--steps", "9", "--branch", "kept"],
    }
    assert own["carry_out"](tmp_path, lambda known: grid, tmp_path / "out") == 0
    assert done == [["--steps", "2"], ["--steps", "4", "--branch", str(tmp_path / "out" / "short")], ["--steps", "9"]]


def test_every_run_of_010_is_a_command_of_twenty_tokens_a_parameter() -> None:
    grid = plan_of("010-size")({})
    assert len(grid) == 3 * 4 * 3
    for words in list(grid.values())[::9]:
        config = read(TrainCommand, "geonorm train", list(words)).run()
        shape = config.decoder(config.scheme)
        assert shape.width == 16 * shape.layers == 16 * shape.heads
        tokens = config.steps * config.batch_size * shape.context
        assert tokens / build(shape).parameter_count() == pytest.approx(20, rel=0.01)


def test_every_run_of_011_is_a_command() -> None:
    """Two decades with and without warm-up, three widths at multiples of the best rate, then a second seed."""
    plan = plan_of("011-rate")
    first = plan({})
    assert len(first) == 2 * 2 * 8 * 6
    lrs = {name: float(name.rpartition("-lr")[2].partition("-seed")[0]) for name in first}
    again = plan({n: {"lr": lr, "status": "finished", "val_loss": 3 + abs(lr - 4e-3)} for n, lr in lrs.items()})
    assert len(again) == len(first) + 2 * 4 * 3 + 4 * 2  # at width 64 the best rate itself is there
    wide = {name: list(words) for name, words in again.items() if not name.startswith("64")}
    assert {name.split("-lr")[1] for name in wide} == {f"{rate}-seed0" for rate in ("0.004", "0.04", "0.12")}
    some = [*list(first.items())[:: len(first) // 6], *list(wide.items())[:2]]
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for _, words in some]
    assert {c.optim.warmup for c in configs} == {0.1, 0.0} and {c.steps * c.batch_size for c in configs} == {8000}
    assert {c.decoder(c.scheme).head_dim for c in configs} == {16}


def test_every_run_of_014_is_a_command() -> None:
    grid = plan_of("014-beyond-decoders")({})
    assert len(grid) == (4 * 6 + 1) * 3
    first = {name.partition("-")[0]: list(words) for name, words in reversed(grid.items())}
    configs = {name: read(TrainCommand, "geonorm train", words).run() for name, words in first.items()}
    shapes = {name: config.shape(config.scheme) for name, config in configs.items()}
    vision = shapes["vision"]
    assert (vision.layers, vision.width, vision.context, configs["vision"].data) == (36, 48, 17, "vision")
    assert {shapes[name].width for name in ("mlm", "denoise", "long")} == {64}
    assert {name: config.objective for name, config in configs.items()} == {
        "vision": "classify", "mlm": "mlm", "denoise": "denoise", "long": "mlm",
    }  # fmt: skip
    for words in grid.values():
        parse(words[words.index("--scheme") + 1])


def test_014_asks_for_seeds_and_climbs_where_rates_stay_stable() -> None:
    """Vision with the best at the middle rate: two seeds more at it, then one octave beyond the highest rate, another
    if that is stable, and none behind one that is not."""
    plan = plan_of("014-beyond-decoders")

    def known(grid: Mapping[str, Any], unstable: float) -> dict[str, Any]:
        found = {}
        for name in grid:
            lr = float(name.rpartition("-lr")[2].partition("-seed")[0])
            middle = 2e-3 if name.startswith("vision") else 4e-3
            loss = 9.0 if lr >= unstable else 2 + abs(lr - middle)
            found[name] = {"lr": lr, "status": "finished", "val_loss": loss}
        return found

    first = plan({})
    again = plan(known(first, 1.0))
    assert len(again) == len(first) + 25 * 2 + 7 and sum("lr0.008-" in name for name in again if name[0] == "v") == 7
    families = ["vision"] * 36 + ["mlm"] * 30 + ["denoise"] * 30 + ["long"] * 30 + ["vision"] * 6
    assert [name.partition("-")[0] for name in again] == families
    assert sum("lr0.016-" in name for name in plan(known(again, 1.0))) == 7
    assert not any("lr0.016-" in name for name in plan(known(again, 8e-3)))


def test_rates_of_a_scheme_that_never_trained_are_not_climbed() -> None:
    stable = runpy.run_path(str(ROOT / "014-beyond-decoders" / "table.py"))["largest_stable"]
    inf = float("inf")
    assert stable({1e-3: 2.5, 2e-3: 2.0, 4e-3: 2.19}) == (4e-3, False)
    assert stable({1e-3: 9.0, 2e-3: 2.0, 4e-3: 2.21, 8e-3: 2.1}) == (2e-3, True)
    assert stable({2e-3: 2.0, 4e-3: inf}) == (2e-3, True)
    assert stable({2e-3: inf, 4e-3: inf}) == (None, True)
    assert stable({1e-3: 2.2, 2e-3: 2.3}, 2.3) == (None, True)  # what knows nothing is not stable
    assert stable({1e-3: 2.1, 2e-3: 2.3}, 2.3) == (2e-3, False)


def test_tables_and_figures_of_014(tmp_path: Path) -> None:
    """On planted results: accuracy with its spread, differences paired by seed, the largest stable rate; the figures
    have a line for each scheme."""
    rows = []
    for family, worse in (("vision", 0.1), ("mlm", 0.0)):
        for scheme, plus in (("geonorm", worse), ("pre", 0.0)):  # `pre` is the baseline wherever it stands
            for lr, seed in ((1e-3, 0), (2e-3, 0), (2e-3, 1), (2e-3, 2), (4e-3, 0)):
                lost = scheme == "geonorm" and lr == 4e-3
                rows.append(
                    {
                        "run": f"{family}-{scheme}-lr{lr:g}-seed{seed}", "scheme": scheme, "lr": lr, "seed": seed,
                        "status": "diverged" if lost else "finished",
                        "val_loss": None if lost else 2 + abs(lr - 2e-3) * 200 + plus + 0.01 * seed,
                        "val_accuracy": None if lost else 0.40 - plus / 2 + 0.01 * seed,
                    }
                )  # fmt: skip
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    head = "run,step,stack,layer,kind,angle,grad_norm\n"
    trace = [
        f"vision-{scheme}-lr0.002-seed0,{step},,{layer},{kind},0.{layer + 1},{step}\n"
        for scheme in ("pre", "geonorm") for step in (1, 2) for layer in range(3) for kind in ("attn", "mlp")
    ]  # fmt: skip
    (tmp_path / "traces.csv").write_text(head + "".join(trace))
    made = runpy.run_path(str(ROOT / "014-beyond-decoders" / "table.py"))
    made["main"](tmp_path)
    vision, mlm = (tmp_path / "table.md").read_text().split("## mlm")
    base, row = [line.split(" | ") for line in vision.splitlines() if line.startswith(("| pre", "| geonorm"))]
    assert base[0] == "| pre" and base[2] == "2.0100 ± 0.0100"
    assert base[6:10] == ["41.0% ± 1.0", "–", "2e-3 interior", "2e-3"]
    assert row[3].startswith("+0.10") and row[6:8] == ["36.0% ± 1.0", "−5.0 (−5.0 to −5.0)"]
    assert row[9] == "2e-3" and row[10].startswith("1 diverged")
    assert "| denoise" not in mlm and "36.0%" not in mlm
    drawn = [(tmp_path / "figures" / f"{name}.svg").read_text() for name in ("rates", "depth")]
    assert all("geonorm" in text and "pre" in text for text in drawn)
    assert "Loss of masked tokens" in drawn[0] and "Gradient over depth" in drawn[1]


def test_differences_at_equal_rates_are_paired_and_moderated(tmp_path: Path) -> None:
    """Two pairs at one rate, two at another, one at a third; a seed without a twin is in no pair. Equal spreads are
    pooled: sd 0.01 with two degrees of freedom, t = 4.303."""
    losses = {
        "pre": {(1e-3, 0): 3.0, (1e-3, 1): 3.1, (2e-3, 0): 3.2, (2e-3, 1): 3.2, (4e-3, 0): 3.4, (4e-3, 1): 9.0},
        "geonorm": {(1e-3, 0): 3.1, (1e-3, 1): 3.2 + 0.02**0.5 / 10, (2e-3, 0): 3.0, (2e-3, 1): 3.0 + 0.02**0.5 / 10,
                    (4e-3, 0): 3.4, (8e-3, 0): 1.0},
    }  # fmt: skip
    runs = [
        {"run": f"books-{s}-lr{lr:g}-seed{n}", "scheme": s, "lr": lr, "seed": n, "val_loss": loss, "status": "finished"}
        for s, found in losses.items()
        for (lr, n), loss in found.items()
    ]
    made = runpy.run_path(str(ROOT / "curves.py"))
    gaps = {gap.lr: gap for gap in made["compare_at_rates"](runs, "pre")}
    half = 0.02**0.5 / 20
    assert {lr: gap.mean for lr, gap in gaps.items()} == pytest.approx({1e-3: 0.1 + half, 2e-3: -0.2 + half, 4e-3: 0})
    assert gaps[1e-3].moderated[1] - gaps[1e-3].mean == pytest.approx(4.3027 * 0.01 / 2**0.5, rel=1e-3)
    assert gaps[1e-3].own[1] - gaps[1e-3].mean == pytest.approx(12.706 * 0.01 / 2**0.5, rel=1e-3)
    assert gaps[4e-3].moderated[1] == pytest.approx(4.3027 * 0.01, rel=1e-3) and list(gaps[4e-3].pairs) == [0]
    assert gaps[4e-3].own is None
    (tmp_path / "results.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    made["main"](tmp_path, "pre", ["geonorm"])
    written = (tmp_path / "rates.md").read_text()
    assert "| `geonorm` | 8e-3 | 1 | 1.0000 | – | – |" in written
    assert "| `geonorm` | last | 8e-3 | 1.0000 | −2.000, 1 |" in written
    assert "| `pre` | last | 1e-3 | 3.0000, 3.1000 | – |" in written
    assert (
        "| `pre` | last |" in written.rpartition("parabolas")[2] and "averaged" not in written
    )  # a parabola has its minimum among three rates
    assert "at the same rate" in (tmp_path / "figures" / "rates.svg").read_text()
    assert made["main"](tmp_path, "pre", ["post"]) == 2


def test_every_run_of_015_is_a_command(tmp_path: Path) -> None:
    """Of every way a command; conversions spend as many tokens as the runs from scratch."""
    grid = runpy.run_path(str(ROOT / "015-conversion" / "runs.py"))["plan"](tmp_path)
    assert len(grid) == 2 * 6 * 3
    seen = {}
    for name, (verb, *words) in grid.items():
        if name.endswith("seed0"):
            seen[name] = read({"convert": ConvertConfig, "train": TrainCommand}[verb], f"geonorm {verb}", words)
    tokens = {int(c.tokens) if isinstance(c, ConvertConfig) else c.steps * c.batch_size * 128 for c in seen.values()}
    assert tokens == {4000 * 256}
    assert {(c.way, c.course) for c in seen.values() if isinstance(c, ConvertConfig)} == {
        ("abrupt", "global"), ("match", "global"), ("gradual", "global"), ("gradual", "layers"),
    }  # fmt: skip
    assert {name: c.to for name, c in seen.items() if "baseline" in name} == {
        "raw-baseline-seed0": "pre(entry=embedding)", "sphere-baseline-seed0": "pre",
    }  # fmt: skip


def test_geometry_of_014_is_told_by_scheme_and_rate() -> None:
    """Planted: gradients that grow tenfold a block, a first block worth 0.3 of four."""
    own = runpy.run_path(str(ROOT / "014-beyond-decoders" / "geometry.py"))
    sites = [{"layer": layer, "grad_norm": 10.0**layer} for layer in range(6) for _ in range(2)]
    blocks = own["by_block"](sites, "grad_norm", own["geometric"])
    assert blocks == pytest.approx([10.0**layer for layer in range(6)])
    assert own["compare_thirds"](blocks) == pytest.approx(1e4) and own["geometric"]([0.0, 0.0]) > 0
    row = {
        "run": "mlm-pre-lr0.002-seed0", "family": "mlm", "stack": "decoder", "scheme": "pre", "lr": 2e-3, "loss": 5.0,
        "angle": [0.5236, 0.0349], "pair": [0.1, 0.9], "ones": 0.8, "turned": None, "turned_plain": None,
        "gradient": 2.0, "use": [0.3, 0.1, 0.0, 0.02],
    }  # fmt: skip
    text = own["tabulate"]([row, {**row, "gradient": 4.0}])
    assert "| pre | 2e-3 | decoder | 2 | 30 ± 0 | 2 ± 0 | – | – | 0.8 ± 0 |" in text
    assert "| 3 ± 1 | 0.2 ± 0 | 0.01 ± 0 |" in text


def test_every_run_of_018_is_a_command_on_text_that_can_be_predicted_in_part(tmp_path: Path) -> None:
    grid = plan_of("018-norms")({})
    assert len(grid) == 3 * 3 * 4 * 2 * 3
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for words in list(grid.values())[:72:5]]
    assert {c.data.rpartition("/")[2] for c in configs} == {"books", "copy", "addition"}
    assert {(s.width, s.heads) for s in (c.decoder(c.scheme) for c in configs)} == {(4, 1), (16, 2), (64, 4)}
    made = runpy.run_path(str(ROOT / "018-norms" / "tasks.py"))
    made["LINES"].update(train=(2, 50), validation=(1, 20))
    made["main"](tmp_path)
    for task in made["TASKS"]:
        parts = [open_source(str(tmp_path / task)).documents(part) for part in ("train", "validation")]
        (first, second), (held,) = map(list, parts)
        lines = (first + second + held).splitlines()
        assert len(lines) == 120 and first != second
        if task == "copy":
            assert all(word == again and len(word) == 15 for word, again in (line.split(">") for line in lines))
        else:
            assert all((int(line[:2]) + int(line[3:5]) - int(line[6:])) % 97 == 0 for line in lines)


WRONG = {
    "no experiment": ("programme.py", ["run", "nowhere", "out"], "nowhere has no runs.py"),
    "no folder of runs": ("programme.py", ["keep", "017-paper-recipe"], "keep needs OUT"),
    "no results": ("curves.py", ["016-streams", "pre", "geonorm"], "016-streams has no results.jsonl"),
    "no such scheme": ("curves.py", ["017-paper-recipe", "pre", "nobody"], "has no runs of nobody on books"),
    "no traces": ("clamp.py", ["003-zoo"], "003-zoo has no traces.csv"),
    "no run with a ceiling": ("clamp.py", ["017-paper-recipe", "nowhere"], "has no such runs, or none with a ceiling"),
    "no words": ("heads.py", [], "the following arguments are required: OUT.csv, RUN"),
    "no table": ("heads.py", ["runs/a", "runs/b"], "runs/a is no .csv in a folder that is there"),
    "no run": ("heads.py", ["heads.csv", "nowhere"], "nowhere has no config.yaml: name the folder of a run"),
    "no comparison": (
        "collect.py",
        ["nowhere", "001-placement-on-cpu"],
        "nowhere has no results.json: name the folder",
    ),
    "nothing collected": ("collect.py", ["016-streams"], "016-streams has no results.jsonl: name the folder of a comp"),
    "no experiment's folder": ("collect.py", ["nowhere"], "nowhere has no README.md"),
    "none of the runs": ("014-beyond-decoders/geometry.py", ["nowhere"], "nowhere holds none of the runs"),
    "no sources": ("015-conversion/runs.py", ["run", "nowhere", "out"], "nowhere lacks books-pre"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_words_are_answered_in_a_line(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script, words, said = WRONG[what]
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", [script, *(str(tmp_path / word) if word == "out" else word for word in words)])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / script), run_name="__main__")
    assert left.value.code == 2 and said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_heads_of_a_run_that_cannot_be_read_leave_no_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("scheme: nobody\n")
    monkeypatch.setattr("sys.argv", ["heads.py", str(tmp_path / "heads.csv"), str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "heads.py"), run_name="__main__")
    said = capsys.readouterr().err
    assert left.value.code == 2 and "unknown scheme 'nobody'" in said and not (tmp_path / "heads.csv").exists()


def test_the_table_of_015_says_what_each_way_reached() -> None:
    """Two seeds of a source: abrupt ends 0.1 above its baseline, global 0.1 below it after 3/4 of its way there."""
    own = runpy.run_path(str(ROOT / "015-conversion" / "runs.py"))

    def row(end: float, begin: float, status: str = "finished") -> dict[str, Any]:
        course = [[2000, begin + (end - begin) / 2], [4000, end]]
        return {"status": status, "val_loss": end, "conversion": {"loss_at_start": begin}, "course": course}

    rows = {}
    for seed, noise in enumerate((0.0, 0.01)):
        rows[f"raw-baseline-seed{seed}"] = row(3.0 + noise, 3.2)
        rows[f"raw-abrupt-seed{seed}"] = row(3.1 + 2 * noise, 5.0)
        rows[f"raw-global-seed{seed}"] = row(2.9 + noise, 3.3 + noise)
        rows[f"raw-match-seed{seed}"] = row(9.0, 9.0, "diverged")
    text = own["tabulate"](rows)
    assert "| raw | abrupt | 2 | 5.0000 | 3.1100 | 3.1100 | +0.1050 [+0.0415, +0.1685] | never |" in text
    assert "| raw | global | 2 | 3.3050 | 2.9050 | 2.9050 | -0.1000 [-0.1000, -0.1000] | 0.77M |" in text
    assert "| raw | baseline | 2 | 3.2000 | 3.0050 | 3.0050 | – | – |" in text and "match" not in text
    assert "| raw | global | abrupt | -0.2050 [-0.2685, -0.1415] |" in text and "| raw | global | baseline |" in text
    away_and_back = [(0.0, 2.9), (0.5, 3.3), (1.0, 2.9)]
    assert own["reach"](away_and_back, 3.0) == pytest.approx(0.875) and own["reach"](away_and_back, 2.8) is None


def test_015_keeps_names_of_sources_and_no_paths(tmp_path: Path) -> None:
    own = runpy.run_path(str(ROOT / "015-conversion" / "runs.py"))
    own["keep"].__globals__["HERE"] = tmp_path
    run = tmp_path / "out" / "raw-abrupt-seed0"
    run.mkdir(parents=True)
    conversion = {"from": "/home/me/017/books", "settings": {"model": "/home/me/017/books", "to": "geonorm"}}
    (run / "summary.json").write_text(json.dumps({"status": "finished", "val_loss": 3.5, "conversion": conversion}))
    own["keep"](tmp_path / "out")
    (row,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert row["conversion"] == {"from": "books", "settings": {"model": "books", "to": "geonorm"}}


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["plain-mhc-", "zero-nag-", "modern-geonorm-", "neox-geonorm"])
def test_a_run_of_016_trains_at_tiny_size(cell: str, tmp_path: Path) -> None:
    words = next(list(words) for name, words in plan_of("016-streams")({}).items() if name.startswith(cell))
    (tmp_path / "text.txt").write_text("".join(f"line {n} of a text that is short, {n * n}\n" for n in range(2000)))
    small = {
        "--data": tmp_path / "text.txt", "--steps": 3, "--model.width": 16, "--model.hidden": 16, "--model.layers": 2,
        "--model.context": 16, "--model.vocab_size": 260, "--evaluation.every": 3, "--evaluation.tokens": 256,
        "--evaluation.trace_tokens": 32,
    }  # fmt: skip
    pairs = zip(words[::2], words[1::2], strict=True)
    kept = [word for pair in pairs if pair[0] not in small for word in pair]
    given = [str(word) for pair in small.items() for word in pair]
    out = tmp_path / "run"
    assert main(["train", *kept, *given, "--tokens.tokenizer", "byte", "--out", str(out)]) == 0
    assert (out / "summary.json").exists()


def test_scripts_of_experiments_import_what_there_is() -> None:
    """Most of them run for hours and are read by no other test."""
    names = [
        (file, node.module, alias.name)
        for file in [*ROOT.glob("*.py"), *ROOT.glob("*/*.py")]
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("geonorm")
        for alias in node.names
    ]
    assert len(names) > 50
    for file, module, name in names:
        found = importlib.import_module(str(module))
        assert hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}")), (file, name)
