"""Plans of experiments: every run that one asks for is a command that `geonorm train` takes."""

from __future__ import annotations

import json
import lzma
import runpy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from itertools import product
from math import log2
from pathlib import Path
from typing import Any

import pytest

from geonorm.cli.arguments import read
from geonorm.lab.config import TrainCommand
from geonorm.lab.data import open_source
from geonorm.models.decoder import Decoder
from geonorm.schemes import parse

from .made import ROOT, plan_of


def finished(grid: Mapping[str, Any], loss: Callable[[float], float]) -> dict[str, Any]:
    """Every run of a grid, with a loss that its rate says."""
    rates = {name: float(name.rpartition("-lr")[2].partition("-seed")[0]) for name in grid}
    return {name: {"lr": lr, "status": "finished", "val_loss": loss(lr)} for name, lr in rates.items()}


def test_every_run_of_016_is_a_command() -> None:
    grid = plan_of("016-streams")({})
    assert len(grid) == 25 * 3
    first = {name: list(words) for name, words in grid.items() if "lr0.006" in name}  # reading all takes a minute
    configs = {name: read(TrainCommand, "geonorm train", words).run() for name, words in first.items()}
    assert len(configs) == 25
    shapes = {name: config.shape(config.scheme) for name, config in configs.items()}
    assert all(parse(config.scheme) for config in configs.values())
    assert {c.optim.name for n, c in configs.items() if n.startswith("modern")} == {"muon"}
    assert {s.init for n, s in shapes.items() if n.startswith("zero")} == {"zero"}
    assert {s.hidden for n, s in shapes.items() if n.startswith("modern")} == {256}  # two matrices for three of 172
    assert {s.width for s in shapes.values()} == {64} and {c.steps for c in configs.values()} == {4000}


def test_016_extends_rates_and_then_asks_for_seeds() -> None:
    """A loss that falls with the rate up to 1.2e-2 asks for an octave more; one with an interior best for seeds."""
    plan = plan_of("016-streams")
    first = plan({})
    wider = plan(finished(first, lambda lr: 3 + abs(lr - 1.2e-2)))
    assert len(wider) == 25 * 4 and any("lr0.024" in name for name in wider)
    seeded = plan(finished(first, lambda lr: 3 + abs(lr - 6e-3)))
    assert len(seeded) == 25 * 5 and sum("lr0.006-seed2" in name for name in seeded) == 25
    assert all(words[words.index("--seed") + 1] == name.rpartition("seed")[2] for name, words in seeded.items())


def test_every_run_of_007_is_a_command() -> None:
    """Six ceilings in the telling settings; four at two rates in the others, and at 12 layers; a seed more at the best
    rates of the telling ones, at octaves beyond the three where the best is at an end."""
    plan = plan_of("007-clamp")
    first = plan({})
    assert len(first) == 2 * 6 * 3 + 4 * 4 * 2 + 2 * 2 * 3 + 2 * 4 * 2
    told = [item for item in first.items() if "layers" in item[0]]
    some = [item for item in [*list(first.items())[::15], *told[::4]] if "hold" not in item[0]]
    configs = {name: read(TrainCommand, "geonorm train", list(words)).run() for name, words in some}
    assert {c.shape(c.scheme).layers for c in configs.values()} == {4, 12}
    best = finished(first, lambda lr: 3 + abs(lr - 6e-3))
    seeded = [name for name in plan(best) if name.endswith("seed1")]
    assert len(plan(best)) == len(first) + len(seeded) and len(seeded) == 12
    assert all("lr0.006" in name and "layers" not in name for name in seeded)
    higher = plan(finished(first, lambda lr: 3 - lr))
    assert {name.rpartition("-lr")[2] for name in higher if name not in first} == {"0.024-seed0"}


def test_every_run_of_008_is_a_command() -> None:
    """Four writes, four decays, with a ceiling and free, all at one rate, and all but half of the constant ones at
    another; four controls; three decays at the harmonic's sum under every write and a second seed under two, at one
    rate. Of any two levels of two factors there is a cell at the lower rate."""
    grid = plan_of("008-parts")({})
    assert len(grid) == 32 + 16 + 2 * 4 + 12 + 4 + 12
    lower = {words[words.index("--scheme") + 1] for name, words in grid.items() if "-lr0.003-" in name}
    own = runpy.run_path(str(ROOT / "008-parts" / "runs.py"))
    cells = set(product(*map(tuple, (own["WRITES"], own["DECAYS"], own["CEILINGS"]))))
    some = {cell for cell in cells if own["name_cell"](*cell) in lower}
    for places in ((0, 1), (0, 2), (1, 2)):
        assert {tuple(cell[n] for n in places) for cell in some} == {tuple(cell[n] for n in places) for cell in cells}
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for words in list(grid.values())[::9]]
    shapes = [config.shape(config.scheme) for config in configs]
    assert {(shape.layers, shape.gains) for shape in shapes} == {(12, False)}
    assert sum(name.startswith("geonorm-") and "alpha" not in name for name in grid) == 8 + 4 + 2 + 3
    for words in grid.values():
        assert parse(words[words.index("--scheme") + 1])


def test_017_chooses_rates_with_one_seed_and_asks_for_seeds_there() -> None:
    """Every scheme best at half the paper's rate: half octaves about it for the paper's two, five seeds of these
    with either entry, three of the others, and no rate is asked for because a second seed was worse."""
    plan = plan_of("017-paper-recipe")
    known: dict[str, Any] = {}
    for _ in range(4):
        known = finished(plan(known), lambda lr: 3 + abs(lr - 3.6e-3))
    grid = plan(known)
    assert set(grid) == set(known)
    runs = {name: [n for n in grid if n.startswith(f"books-{name}-lr0.0036-")] for name in ("pre", "geonorm")}
    assert [len(found) for found in runs.values()] == [5, 5]
    assert sum(n.startswith("books-geonorm-entry-embedding-721140-lr0.0036-") for n in grid) == 5
    half = [name.partition("-lr")[0] for name in grid if "lr0.00255" in name]
    names = ("pre-entry-embedding-bb08ee", "geonorm-entry-embedding-721140", "pre", "geonorm")
    assert half == [f"books-{name}" for name in names]
    assert not [name for name in grid if "lr0.0144" in name]
    for name in known:
        known[name] = {**known[name], "val_loss": known[name]["val_loss"] + (not name.endswith("seed0"))}
    assert set(plan(known)) == set(grid)


def test_every_run_of_009_is_a_command_and_branches_from_one_before() -> None:
    """Ten schemes on books at four budgets, four on LaTeX at three, two at two lengths; three rates of each. A
    budget whose best rate is the highest asks for an octave there, and no other budget does; the longest one is trained
    at the rate that is best at the one before."""
    plan = plan_of("009-tokens")
    first = plan({})
    assert len(first) == 3 * (10 * 4 + 4 * 3 + 2 * 2)
    order = list(first)
    for name, words in first.items():
        if "--branch" in words:
            trunk = words[words.index("--branch") + 1]
            assert order.index(trunk) < order.index(name)
            own, other = (w[w.index("--lr") :] for w in (words[: words.index("--branch")], first[trunk]))
            assert own == other[: len(own)]
    some = [list(words) for name, words in first.items() if "-geonorm-" in name and "lr0.003" in name]
    configs = [read(TrainCommand, "geonorm train", words).run() for words in some]
    assert {c.shape(c.scheme).context * c.batch_size for c in configs} == {512}
    assert {c.steps for c in configs} == {2000, 4000, 8000, 16000} and {c.optim.schedule for c in configs} == {"wsd"}

    def known(name: str) -> dict[str, Any]:
        lr = float(name.rpartition("-lr")[2].partition("-seed")[0])
        return {"lr": lr, "status": "finished", "val_loss": 3 - lr if "-1M-" in name else 3 + abs(lr - 3e-3)}

    again = plan({name: known(name) for name in first})
    fresh = [name for name in again if name not in first]
    octaves = [name for name in fresh if name.endswith("lr0.012-seed0")]
    longest = [name for name in fresh if "-16M-lr0.003-seed0" in name]
    assert len(octaves) == 14 and all("-1M-" in name for name in octaves) and len(longest) == 10
    assert all(again[name][-1] == name.replace("-16M-", "-8M-") for name in longest)
    assert sum("seed0" in name for name in fresh) == 14 + 10
    assert sum("-16M-lr0.003-seed1" in name for name in fresh) == 4
    assert not any("0.0015-seed1" in name for name in fresh)
    all_of_it = {name: known(name) | {"val_loss": 9.0} if "-seed0" not in name else known(name) for name in again}
    assert [name for name in plan(all_of_it) if "-16M-" in name] == [name for name in again if "-16M-" in name]


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


def test_every_run_of_010_is_a_command_of_twenty_tokens_a_parameter() -> None:
    grid = plan_of("010-size")({})
    assert len(grid) == (2 * 4 + 2) * 3
    for words in list(grid.values())[::7]:
        config = read(TrainCommand, "geonorm train", list(words)).run()
        shape = config.shape(config.scheme)
        assert shape.width == 16 * shape.layers == 16 * shape.heads
        tokens = config.steps * config.batch_size * shape.context
        assert tokens / Decoder(shape).parameter_count() == pytest.approx(20, rel=0.01)


def test_010_asks_for_half_octaves_with_the_raw_entry_and_for_seeds_where_one_is_best() -> None:
    plan, known = plan_of("010-size"), dict[str, Any]()
    best = 4.7e-3 * 2**0.5  # of the smallest size half an octave from what its rule says; of the others far above
    while missing := [name for name in plan(known) if name not in known]:
        known |= finished(dict.fromkeys(missing), lambda lr: 3 + abs(lr - best))
    small = {name.rpartition("-lr")[2] for name in known if name.startswith("3-geonorm-entry-embedding")}
    octaves = {f"{rate}-seed0" for rate in ("0.00235", "0.0047", "0.0094")}
    assert small == octaves | {f"0.00665-seed{seed}" for seed in range(4)} | {"0.00332-seed0"}
    assert not any("0.00665" in name or "0.00332" in name for name in known if name.startswith("3-geonorm-lr"))


def test_010_goes_by_half_octaves_at_its_largest_size_until_the_best_is_interior() -> None:
    plan, known = plan_of("010-size"), dict[str, Any]()
    while missing := [name for name in plan(known) if name not in known]:
        known |= finished(dict.fromkeys(missing), lambda lr: 3 + abs(lr - 1.5e-3))
    large = {name.rpartition("-lr")[2] for name in known if name.startswith("6-pre")}
    assert large == {f"{rate}-seed0" for rate in ("0.00107", "0.00152", "0.00215", "0.00304")} | {"0.00152-seed1"}


def test_every_run_of_011_is_a_command() -> None:
    """Two decades with and without warm-up, three widths at multiples of the best rate, then two seeds more at the best
    rates."""
    plan = plan_of("011-rate")
    first = plan({})
    again = plan(finished(first, lambda lr: 3 + abs(lr - 4e-3)))
    assert len(first) == 2 * 8 * 6
    assert len(again) == len(first) + 2 * 4 * 3 + 4 * 2 + 2 * 6 * 2  # at width 64 the best rate itself is there
    wide = {name: list(words) for name, words in again.items() if not name.startswith("64")}
    assert {name.split("-lr")[1] for name in wide} == {f"{rate}-seed0" for rate in ("0.004", "0.04", "0.12")}
    some = [*list(first.items())[:: len(first) // 6], *list(wide.items())[:2]]
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for _, words in some]
    assert {c.optim.warmup for c in configs} == {0.1, 0.0} and {c.steps * c.batch_size for c in configs} == {8000}
    assert {c.shape(c.scheme).head_dim for c in configs} == {16}


def test_every_run_of_018_is_a_command_on_text_that_can_be_predicted_in_part(tmp_path: Path) -> None:
    grid = plan_of("018-norms")({})
    assert len(grid) == 2 * 3 * 4 * 2 * 3
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for words in list(grid.values())[:48:5]]
    assert {c.data.rpartition("/")[2] for c in configs} == {"books", "copy", "addition"}
    assert {(s.width, s.heads) for s in (c.shape(c.scheme) for c in configs)} == {(4, 1), (64, 4)}
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


def test_every_run_of_019_is_a_command_of_the_length_that_001_and_003_had() -> None:
    """Twelve rows of 001 and six of 003 at three rates; one that is best at the highest goes on by an octave."""
    plan = plan_of("019-again")
    first = plan({})
    assert len(first) == 12 * 3 + 6 * 3
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for words in list(first.values())[::7]]
    assert {c.steps * c.batch_size * 128 for c in configs} == {1_003_520, 409_600}
    assert {c.data for c in configs} == {"books-small"} and all(c.evaluation.whole for c in configs)
    higher = [name for name in plan(finished(first, lambda lr: 3 - lr)) if name not in first]
    assert len(higher) == 18 and {name.rpartition("-lr")[2] for name in higher} == {"0.012-seed0", "0.024-seed0"}


def test_every_run_of_020_is_a_command_that_changes_one_field() -> None:
    grid = plan_of("020-fields")({})
    assert len(grid) == 20 * 2 * 2
    schemes = {parse(words[words.index("--scheme") + 1]) for words in grid.values()}
    base = parse("geonorm(entry=embedding)")
    changed = [[f.name for f in fields(base) if getattr(scheme, f.name) != getattr(base, f.name)] for scheme in schemes]
    assert sorted(map(len, changed)) == [0, *[1] * 19]
    configs = [read(TrainCommand, "geonorm train", list(words)).run() for words in list(grid.values())[::19]]
    assert {c.shape(c.scheme).init for c in configs} == {"neox"} and {c.steps for c in configs} == {4000}


def test_every_run_of_013_is_a_command_of_the_regime_that_it_shares_with_016() -> None:
    plan = plan_of("013-candidate")

    def select(known: Mapping[str, Any]) -> dict[str, Sequence[str]]:
        return {name: words for name, words in plan(known).items() if name.startswith("select-")}

    grid = select({})
    assert len(grid) == (13 + 4) * 3 - 5 * 2
    schemes = {parse(words[words.index("--scheme") + 1]) for words in grid.values()}
    assert sum(getattr(scheme, "update", "raw") == "unit" for scheme in schemes) == 13 and len(schemes) == 17
    words = next(iter(grid.values()))
    other = next(list(w) for n, w in plan_of("016-streams")({}).items() if n.startswith("plain-geonorm-lr0.006"))
    one, two = (read(TrainCommand, "geonorm train", list(each)).run() for each in (words, other))
    assert replace(one, scheme="pre") == replace(two, scheme="pre")
    seeded = select(finished(grid, lambda lr: 3 + abs(lr - 6e-3)))
    assert len(seeded) == len(grid) + 8  # rivals, and the five that are out, ask for nothing more


def test_013_tries_its_candidate_with_seeds_that_chose_nothing() -> None:
    """Seven schemes at three rates; then ten fresh seeds at each best, and of the candidate ten at equal time. Which
    rate is best is not for the fresh seeds to say."""
    own = runpy.run_path(str(ROOT / "013-candidate" / "runs.py"))
    candidate = "geonorm(update=unit, alpha=0.5)"

    def plan(known: Mapping[str, Any]) -> Mapping[str, Sequence[str]]:
        grid: Mapping[str, Sequence[str]] = own["plan_confirmation"](known, candidate, 1.25)
        return grid

    first = plan({})
    assert len(first) == 7 * 3 and all(name.endswith("-seed0") for name in first)
    known = finished(first, lambda lr: 3 + abs(lr - 6e-3))
    grid = plan(known)
    fresh = {name: words for name, words in grid.items() if name not in first}
    assert len(fresh) == 8 * 10 and all("lr0.006" in name for name in fresh)
    assert {name.rpartition("-seed")[2] for name in fresh} == set(map(str, range(10, 20)))
    configs = {name: read(TrainCommand, "geonorm train", list(fresh[name])).run() for name in list(fresh)[:8]}
    assert sorted((c.steps, c.scheme == candidate) for c in configs.values()) == [
        (6400, True), *[(8000, False)] * 6, (8000, True),
    ]  # fmt: skip
    assert set(plan(known | finished(fresh, lambda lr: 9.0))) == set(grid)


def test_021_goes_on_by_half_octaves_and_asks_for_seeds_at_three_rates() -> None:
    """Best at 3e-3 for Pre-Norm, two half octaves below the first rates, and at 8.5e-3 for GeoNorm, in their middle."""
    plan, known = plan_of("021-schedule"), dict[str, Any]()
    while missing := [name for name in plan(known) if name not in known]:
        for name in missing:
            lr = float(name.rpartition("-lr")[2].partition("-seed")[0])
            loss = 3 + abs(lr - (8.5e-3 if "geonorm" in name else 3e-3))
            known[name] = {"lr": lr, "status": "finished", "val_loss": loss}
    rates = {name.rpartition("-lr")[2].partition("-seed")[0] for name in known if "cosine-pre-lr" in name}
    assert rates == {"0.017", "0.012", "0.00849", "0.006", "0.00424", "0.003", "0.00212"}
    seeded = [name for name in known if name.startswith("constant-geonorm-entry") and name.endswith("-seed14")]
    assert {name.rpartition("-lr")[2] for name in seeded} == {"0.006-seed14", "0.00849-seed14", "0.012-seed14"}
    assert len(known) == 2 * (7 + 4 + 2 * 3 * 4) + 2 * (7 + 4 + 2 * 3 * 2)
    words = plan({})[next(iter(plan({})))]
    assert read(TrainCommand, "geonorm train", words).run().optim.warmup_steps == 200
    later = [name for name in known if name.startswith("cosine-geonorm-entry") and not name.endswith("seed10")]
    for name in later:  # by the other seeds the highest of the three is best
        known[name] = {**known[name], "val_loss": 3 - known[name]["lr"]}
    more = {name.rpartition("-lr")[2] for name in plan(known) if name not in known}
    assert more == {f"0.017-seed{seed}" for seed in range(11, 15)}


def test_022_tunes_the_embedding_apart_and_then_asks_for_fresh_seeds() -> None:
    """A loss with its minimum at 2.61e-3 and 16 times that for the embedding is found for every scheme."""
    plan, known = plan_of("022-embedding-rate"), {}
    for _ in range(30):
        missing = {name: words for name, words in plan(known).items() if name not in known}
        for name, words in missing.items():
            config = read(TrainCommand, "geonorm train", words).run() if len(known) < 40 else None
            assert config is None or (config.scheme and config.optim.floor == 0 and config.steps == 12_900)
            rate, embedding = float(words[words.index("--lr") + 1]), words[words.index("--optim.rates") + 1]
            far = abs(log2(rate / 2.61e-3)) + abs(log2(float(embedding.removeprefix("embed=")) / 16))
            known[name] = {"lr": rate, "status": "finished", "val_loss": 3.5 + 0.01 * far}
        if not missing:
            break
    final = [name for name in plan(known) if not name.endswith("-seed1000000")]
    assert len({name.rpartition("-e16-lr")[0] for name in final if "-e16-lr0.00261-" in name}) == 10
    assert {name.rpartition("-seed")[2] for name in final} == {"20", "21", "22", "23", "24"}
    assert len(final) == 5 * (10 + 2), "every scheme at its best, two also with the embedding at the matrices' rate"
