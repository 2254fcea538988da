"""The report of a probe: which series each panel names, and the numbers of its CSV."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch

import geonorm
from geonorm.errors import GeonormError
from geonorm.lab.probe import probe_files, save
from geonorm.report import build
from geonorm.report.charts import Axis, Chart, figure
from geonorm.report.probe import SavedProbe


def test_each_panel_names_the_series_that_it_has() -> None:
    """A parallel block is one sub-layer with a gradient norm, and without W1 and W2."""
    rows: list[dict[str, Any]] = [{"t": t, "grad_norm": t, "grad_w1": t, "grad_w2": t} for t in (1, 2, 3)]
    trace = {"llama": rows, "neox": [{"t": t, "grad_norm": 2.0} for t in (1, 2, 3)]}
    charts = SavedProbe(Path("probe"), {"models": []}, trace, {}, {}).charts()["gradients"]
    drawn = [list(dict.fromkeys(row["s"] for row in chart.rows["line"])) for chart in charts]
    assert drawn == [["llama", "neox"], ["llama"], ["llama"]]
    wide = Chart("words " * 7, Axis(0, 1), Axis(0, 1), {}, width=270)  # a letter may have 9 pixels
    assert len(figure([wide])["concat"][0]["title"]["text"]) == 2 and len(figure(charts, "caption")["concat"]) == 3
    assert len({chart.title for chart in charts}) == 3 and all(chart.meaning and chart.y.title for chart in charts)


def test_the_csv_has_numbers_and_damage_is_one_line(tmp_path: Path) -> None:
    shape = geonorm.DecoderConfig(scheme="pre", layers=4, width=16, heads=2, hidden=16, vocab_size=32)
    found = geonorm.probe(geonorm.Decoder(shape), torch.randint(0, 32, (4, 16)), ablate_blocks=True)
    save(tmp_path / "probe", {}, {}, probe_files([found]))
    with open(build(tmp_path / "probe", tmp_path / "p.csv", format="csv")) as file:
        (row,) = csv.DictReader(file)
    assert float(row["ratio"]) == pytest.approx(sum(site["ratio"] for site in found.sites) / 8, rel=1e-12)
    assert (int(row["sites"]), row["scheme"], int(row["depth"])) == (8, "pre", 4)
    assert float(row["power_low"]) <= float(row["power_of_t"]) <= float(row["power_high"])
    study = SavedProbe.load(tmp_path / "probe")
    titles, _ = study.tables()["Means"]
    assert [row["t"] for row in study.single_blocks(study.names[0])] == [1, 2, 3, 4], "pairs are no single blocks"
    assert len(set(titles)) == len(titles) and study.keys == {study.names[0]: "pre"}
    (tmp_path / "probe" / "trace.jsonl").write_text("3\n")
    with pytest.raises(GeonormError, match=r"is damaged: trace\.jsonl holds no JSON object; the same geonorm probe"):
        SavedProbe.load(tmp_path / "probe")
