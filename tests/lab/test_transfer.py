"""`geonorm check-transfer`: the turn of an optimizer step orders the rules as their best rates over depth do."""

import json
from pathlib import Path
from typing import Any

import pytest

from geonorm.cli.main import main
from geonorm.lab import transfer
from geonorm.lab.transfer import check_transfer, measure_step_turns
from geonorm.lab.transfer_config import TransferConfig

CONSTANT = """
from geonorm import Scheme, sphere

class Constant(Scheme):
    def read(self, x, p, site):
        return x

    def write(self, x, u, p, site, h=1.0):
        v = sphere.tangent(x, u)
        return x + 0.05 * h * sphere.radius(x) * v / sphere.radius(v)
"""
"""Equal steps across the token, however long the update."""


def small(out: Path, *schemes: str, **settings: Any) -> dict[str, Any]:
    sizes = {"depths": [4, 16], "widths": [32], "width": 32, "seeds": 2}
    return check_transfer(TransferConfig(schemes=list(schemes), out=str(out), **(sizes | settings)))


def test_the_turn_over_depth_orders_the_decays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ratios at width 64 are in docs/theory-depth.md; at width 32 they are near these."""
    monkeypatch.setattr(transfer, "STEPS", (1,))
    summary = small(tmp_path / "out", "geonorm", "geonorm(decay=sqrt)", "geonorm(decay=constant, alpha=0.3)")
    written = [json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()]
    assert len(written) == 3 * 2 * 2
    turns = {(row["scheme"], row["depth"], row["seed"]): row["turn"] for row in written}
    for seed in range(2):
        names = [scheme["scheme"] for scheme in summary["schemes"]]
        harmonic, sqrt, equal = (turns[name, 16, seed] / turns[name, 4, seed] for name in names)
        assert 1.3 < harmonic < 1.9 < 2.5 < sqrt < 0.9 * equal
    ratio, low, high = summary["schemes"][0]["depth"][-1]["ratio_1"]
    assert low < ratio < high
    # harmonic: the path of angles predicts the turn, as C hardly depends on depth; where the path grows, C grows
    harmonic, sqrt, equal = (
        scheme["depth"][-1]["coherence"] / scheme["depth"][0]["coherence"] for scheme in summary["schemes"]
    )
    assert 0.85 < harmonic < 1.15 < 1.3 < min(sqrt, equal)
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["schemes"] == summary["schemes"]


def test_planted_constant_steps_have_a_depth_exponent_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("planted.py").write_text(CONSTANT)
    words = "--schemes ./planted.py:Constant --depths 2 8 --widths 64 --width 32 --depth 2 --seeds 2 --out here"
    assert main(["check-transfer", *words.split()]) == 0
    text = " ".join(capsys.readouterr().out.split())
    (scheme,) = json.loads(Path("here/summary.json").read_text())["schemes"]
    assert scheme["exponents"]["depth"]["1"][0] == pytest.approx(1.0, abs=0.1)
    ratio = scheme["depth"][-1]["ratio_1"][0]
    assert f"learning rate of matrices or the angle of every sub-layer by {1 / ratio:.3g}" in text
    assert f"From width 32 to width 64 one step turns the final state {scheme['width'][-1]['ratio_1'][0]:.3g}" in text
    assert Path("here/report.html").read_text().count("<svg") >= 2 and Path("here/figures/turn.svg").exists()
    assert main("report here --format csv --out here.csv".split()) == 0
    assert f",depth,8,32,{scheme['depth'][-1]['turn']}," in Path("here.csv").read_text()
    written = Path("here/rows.jsonl").read_text().splitlines()
    assert Path("here/environment.json").exists() and {json.loads(line)["steps"] for line in written} == {1, 4, 16}


def test_the_turn_of_one_step_is_proportional_to_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a scheme of two streams; its rows are a function of the seed."""
    monkeypatch.setattr(transfer, "STEPS", (1,))
    for scheme in ("geonorm", "residual_dual"):
        one, two = (measure_step_turns(scheme, 2, 32, 5, lr)[0] for lr in (1e-5, 2e-5))
        assert two["turn"] == pytest.approx(2 * one["turn"], rel=0.02) and two["path"] == one["path"]
        assert two["coherence"] == pytest.approx(one["turn"] / (1e-5 * 32 * one["path"]), rel=0.02)  # lr, width
        assert measure_step_turns(scheme, 2, 32, 5, 1e-5)[0] == one != measure_step_turns(scheme, 2, 32, 6, 1e-5)[0]
