"""What is kept of every particle, in Python and beside the result of the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import geonorm
from geonorm.cli.main import main
from geonorm.dynamics import Flow, load_trajectories, simulate as simulation
from geonorm.dynamics.observables import gap
from geonorm.dynamics.sublayers import build_sublayers
from geonorm.errors import CheckpointError, ConfigError

BASE: dict[str, Any] = {"schemes": ["pre", "siamese"], "tokens": 4, "dim": 6, "time": 3.0, "points": 8, "seeds": 2}


def test_what_is_kept_is_what_was_measured() -> None:
    found = geonorm.simulate(**BASE, keep=["tokens", "stream", "update"])
    assert set(found.trajectories) == {"pre", "siamese"}
    for scheme, kept in found.trajectories.items():
        rows = [row for row in found.trace if row["scheme"] == scheme and row["seed"] == 1]
        assert kept["time"].tolist() == [row["time"] for row in rows]
        assert kept["tokens"].shape == kept["update"].shape == (2, 8, 4, 6)
        assert kept["stream"].shape == ((2, 8, 4, 6) if scheme == "pre" else (2, 8, 4, 2, 6))
        assert gap(kept["tokens"][1]).tolist() == pytest.approx([row["gap"] for row in rows], rel=1e-12)
        flow = Flow(scheme, build_sublayers(found.config, geonorm.parse(scheme), 1), found.config.layers)
        for place, time in enumerate(kept["time"].tolist()):
            state = kept["stream"][:, place]
            torch.testing.assert_close(flow.tokens(state), kept["tokens"][:, place], rtol=0, atol=0)
            torch.testing.assert_close(flow.update(state, time), kept["update"][:, place], rtol=1e-12, atol=1e-14)
    assert geonorm.simulate(**BASE).trajectories == {} and len(found.frame("trace")) == 32


def test_a_seed_that_ends_earlier_is_filled_with_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(simulation.TOGETHER, "float64", 0.3)
    settings = {"weights": "gaussian", "init": "uniform", "time": 40.0, "keep": ["tokens"], "points": 20, "seeds": 4}
    found = geonorm.simulate(**{**BASE, "schemes": ["post"], **settings})
    tokens, ended = found.trajectories["post"]["tokens"], []
    for seed in range(4):
        measured = sum(row["seed"] == seed for row in found.trace)
        assert tokens[seed, :measured].isfinite().all() and tokens[seed, measured:].isnan().all()
        ended.append(measured)
    assert tokens.shape[1] == max(ended) and len(set(ended)) > 1


def test_absurd_sizes_are_refused_before_anything_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "beginning", lambda *_: pytest.fail("computed"))
    with pytest.raises(ConfigError, match=r"--keep tokens stream would hold 1.43e\+03 GiB, and 8 GiB are the most"):
        geonorm.simulate(
            schemes=["pre"], tokens=100_000, dim=1000, points=60, seeds=16, init="uniform", keep=["tokens", "stream"]
        )
    with pytest.raises(ConfigError, match="names something twice"):
        geonorm.simulate(**BASE, keep=["tokens", "tokens"])
    with pytest.raises(ConfigError, match="did you mean 'tokens'"):
        geonorm.simulate(**BASE, keep=["token"])


WORDS = "simulate --schemes pre geonorm --tokens 4 --dim 4 --time 2 --points 8 --seeds 1 --keep tokens update --out"


def test_the_command_saves_them_and_goes_on_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, out = simulation.one, tmp_path / "out"

    def stop(config: Any, rule: Any, *rest: Any) -> Any:
        if str(rule) == "geonorm":
            raise KeyboardInterrupt
        return whole(config, rule, *rest)

    monkeypatch.setattr(simulation, "one", stop)
    assert main([*WORDS.split(), str(out)]) == 130
    first = load_trajectories(out)
    assert set(first) == {"pre"} and set(first["pre"]) == {"time", "tokens", "update"}
    monkeypatch.setattr(simulation, "one", whole)
    assert main([*WORDS.split(), str(out)]) == 0
    assert "kept: tokens, update, " in capsys.readouterr().out
    found = load_trajectories(str(out))
    assert set(found) == {"pre", "geonorm"} and torch.equal(found["pre"]["tokens"], first["pre"]["tokens"])
    (out / "trajectories.safetensors").write_bytes(b"cut")
    with pytest.raises(CheckpointError, match=r"trajectories.safetensors cannot be read"):
        load_trajectories(out)
    assert load_trajectories(tmp_path) == {}
