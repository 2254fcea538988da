"""Models of plans as they are drawn: none is lost before it has learned anything."""

from __future__ import annotations

import runpy
from dataclasses import replace
from itertools import product

import pytest
import torch

from geonorm import Decoder
from geonorm.cli.arguments import read
from geonorm.lab.config import TrainCommand

from .made import ROOT


@pytest.mark.parametrize("write", ["add", "tangent", "normalise", "geodesic"])
def test_no_cell_of_008_is_lost_at_its_first_step(write: str) -> None:
    """Twelve blocks that read a raw stream without a ceiling overflow as they are drawn."""
    own = runpy.run_path(str(ROOT / "008-parts" / "runs.py"))
    for decay, ceiling in product(own["DECAYS"], own["CEILINGS"]):
        words = [*own["COMMON"], "--scheme", own["name_cell"](write, decay, ceiling)]
        config = read(TrainCommand, "geonorm train", words).run()
        torch.manual_seed(0)
        model = Decoder(replace(config.shape(config.scheme), vocab_size=64))
        ids = torch.randint(64, (2, 17))
        model.loss(ids[:, :-1], ids[:, 1:]).backward()
        assert sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None) < 100.0**2
