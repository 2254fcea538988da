"""What compare, simulate and probe return in Python: tables and figures, the same as the commands write."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import geonorm
from geonorm.errors import GeonormError

SIMULATION = {"schemes": ["pre", "geonorm"], "tokens": 4, "dim": 4, "time": 2.0, "points": 8, "seeds": 1}
MODEL = {"layers": 1, "width": 16, "heads": 2, "hidden": 16, "context": 16, "vocab_size": 257}


@pytest.fixture(scope="module")
def simulated() -> Any:
    return geonorm.simulate(**SIMULATION)


@pytest.fixture(scope="module")
def probed() -> Any:
    torch.manual_seed(0)
    model = geonorm.Decoder(geonorm.DecoderConfig(**MODEL, scheme="geonorm"))
    return geonorm.probe(model, torch.randint(257, (2, 16)), ablate_blocks=True)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("compared")
    (folder / "text.txt").write_text("".join(f"line {i} of a short text\n" for i in range(400)))
    return geonorm.compare(
        ["pre", "geonorm"], data=str(folder / "text.txt"), model=MODEL, tokens={"tokenizer": "byte"}, steps=4, seeds=2,
        evaluation={"tokens": 256, "trace_tokens": 64}, out=str(folder / "out"), jobs=1,
        runtime={"device": "cpu", "tensorboard": False},
    )  # fmt: skip


def test_tables_of_a_simulation(simulated: Any) -> None:
    assert list(simulated.frame()["scheme"]) == ["pre", "geonorm"]
    trace = simulated.frame("trace")
    assert len(trace) == len(simulated.trace) and list(trace["time"]) == [row["time"] for row in simulated.trace]


def test_tables_of_a_probe(probed: Any) -> None:
    assert list(probed.frame()["ratio"]) == [row["ratio"] for row in probed.sites]
    assert len(probed.frame("norms")) == len(probed.norms) and len(probed.frame("ablation")) == len(probed.ablation)
    with pytest.raises(GeonormError, match=r"unknown table 'norm'.*'norms'"):
        probed.frame("norm")


def test_tables_of_a_comparison(compared: Any) -> None:
    stored = json.loads((compared.path / "results.json").read_text())
    assert list(compared.frame()["val_loss_mean"]) == [row["val_loss_mean"] for row in stored["schemes"]]
    metrics = compared.frame("metrics")
    assert sorted(set(zip(metrics["scheme"], metrics["seed"], strict=True))) == [
        (scheme, seed) for scheme in ("geonorm", "pre") for seed in (0, 1)
    ]
    for name in ("metrics", "trace"):
        assert set(compared.frame(name)["lr"]) == {run["lr"] for run in stored["runs"]}
    assert metrics["step_lr"].nunique() > 1  # of the schedule
    assert set(compared.frame("trace")["site_scheme"]) == {"pre", "geonorm"}
    assert len(repr(compared)) < 300  # what a notebook prints
    settings = yaml.safe_load((compared.path / "config.yaml").read_text()) | {"schemes": "pre"}
    assert geonorm.compare(**settings).frame("runs").shape[0] == 4  # nothing is trained again


@pytest.mark.parametrize(
    ("study", "figure"), [("simulated", "collapse"), ("probed", "depth_use"), ("compared", "geometry")]
)
def test_figures_are_of_the_report(study: str, figure: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    result = request.getfixturevalue(study)
    drawn = result.plot(figure)
    assert drawn._repr_svg_().startswith("<svg") and len(repr(drawn)) < 80
    assert drawn.save(tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")
    with result.folder() as folder:
        geonorm.report.build(folder, tmp_path / "page.html", figures=tmp_path / "figures")
    assert drawn.save(tmp_path / "one.svg").read_bytes() == (tmp_path / "figures" / f"{figure}.svg").read_bytes()
    assert result.plot()._repr_svg_() != drawn._repr_svg_()
    with pytest.raises(GeonormError, match="unknown figure 'colapse'"):
        result.plot("colapse")
    with pytest.raises(GeonormError, match="unknown ending 'gif'"):
        drawn.save(tmp_path / "one.gif")
    assert not (tmp_path / "one.gif").exists()


def test_frames_without_pandas(simulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(GeonormError, match="needs pandas"):
        simulated.frame()
