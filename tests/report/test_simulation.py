"""The report of a simulation: theory is theory, and the spheres are the particles."""

import json
import re
import shutil
import subprocess
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import geonorm
from geonorm import report
from geonorm.dynamics.pictures import FRAMES
from geonorm.errors import GeonormError
from geonorm.lab.study_folder import save
from geonorm.report.simulation import SCALE, SavedSimulation, unpack
from geonorm.settings import to_dict

SETTINGS: dict[str, Any] = {"schemes": ["pre", "post"], "tokens": 6, "time": 200.0, "points": 30, "seeds": 1}


def page_of(found: Any, folder: Path) -> str:
    with found.folder() as place:
        for file in place.glob("*.json*"):
            file.write_text(file.read_text().replace('"post"', '"<b>"'))
        return report.build(place, folder / "page.html").read_text(encoding="utf-8")


def frames_of(page: str) -> list[list[Any]]:
    return [json.loads(unescape(text)) for text in re.findall(r'data-frames="([^"]*)"', page)]


@pytest.fixture(scope="module")
def found() -> Any:
    return geonorm.simulate(**SETTINGS, dim=8)


def test_a_chart_without_theory_says_so(tmp_path: Path) -> None:
    """A narrow cone in a network as drawn has a law of its cosine, none of its speed."""
    narrow = geonorm.simulate("pre", tokens=3, dim=8, seeds=1, init="cone", delta=1e-3, weights="network",
                              per="layer", method="layers", time=8.0, points=9)  # fmt: skip
    save(tmp_path, to_dict(narrow.config), {}, narrow.files())
    study = SavedSimulation.load(tmp_path)
    charts = study.charts()
    study.summary["seeds"] = 2
    assert not study.mean("pre", "gap"), "one of two seeds is no mean"
    (cosine,), (speed, radius) = charts["cosine"], charts["speed"]
    assert cosine.note == radius.note == "Markers: simulation, lines: theory."
    assert speed.note == "Simulation, mean over seeds." and speed.rows
    for text in ("{", "[]", '{"schemes": 3}'):
        (tmp_path / "summary.json").write_text(text)
        with pytest.raises(GeonormError, match=r"is damaged: .*; the same geonorm simulate writes it anew"):
            SavedSimulation.load(tmp_path)


def test_a_slider_through_frames_of_every_scheme(found: Any, tmp_path: Path) -> None:
    page = page_of(found, tmp_path)
    (times,) = (json.loads(unescape(text)) for text in re.findall(r'data-times="([^"]*)"', page))
    pre, post = frames_of(page)
    assert len(times) == len(pre) == FRAMES and times[0] == 1 and times[-1] == pytest.approx(201)
    assert all(b > a for a, b in pairwise(times))
    assert pre[0] == post[0] and pre[-1][0] > 0.9 and pre[0][0] < 0.1
    assert len(post) < FRAMES and post[-1][0] == 1.0  # nothing is left to see
    for frame in (pre[0], pre[11], post[-1]):
        points = torch.tensor(unpack(frame[1]))
        assert points.shape == (80, 3)
        torch.testing.assert_close(points.norm(dim=-1), torch.ones(80), atol=3 / SCALE, rtol=0)
        mean = points.double().mean(0).square().sum().item()
        assert (80 * mean - 1) / 79 == pytest.approx(frame[0], abs=1e-4)
    assert '<input type="range" min="0" max="23"' in page and "<b>" not in page and page.count('class="globes"') == 1
    assert "://" not in page.replace("http://www.w3.org", "") and len(page) < 250_000
    section = page.partition('class="spheres"')[2].partition("</section>")[0]
    assert "n = 80 tokens · d = 3" in section and "T = 200" in section
    with found.folder() as place:
        charts = SavedSimulation.load(place).charts()["sphere"]
    assert len(charts) == 8 and charts[0].title == "pre, t = 1" and charts[3].title == "pre, t = 201"


def test_what_has_no_sphere_in_three_dimensions_is_the_simulation_itself(tmp_path: Path) -> None:
    found = geonorm.simulate(
        **{**SETTINGS, "schemes": ["pre"], "time": 12.0, "points": FRAMES}, dim=8, weights="kaiming", init="uniform"
    )
    (frames,) = frames_of(page_of(found, tmp_path))
    by_time = {row["time"]: row["cos_pair"] for row in found.trace}
    assert 16 < len(frames) <= FRAMES and len(unpack(frames[0][1])) == 6
    for frame in found.particles["frames"]["pre"]:
        assert frame["cos"] == pytest.approx(by_time[frame["time"]], abs=1e-6)
    assert max(abs(c) for _, text in frames for point in unpack(text) for c in point) <= 1


MOVES = """<script>addEventListener("load", () => {
  Element.prototype.setPointerCapture = () => {};  // of a pointer that is not there
  const globe = document.querySelector(".spheres"), slider = globe.querySelector("input"), seen = [];
  const look = () => seen.push([globe.querySelector("output").textContent,
    [...globe.querySelectorAll("figure")].map(figure => [...figure.querySelectorAll("[data-tip]")].map(
      mark => mark.getAttribute("transform")).join(";"))]);
  const point = (kind, x, y) => globe.querySelector("svg").dispatchEvent(
    new PointerEvent(kind, {clientX: x, clientY: y, pointerId: 1, bubbles: true}));
  look();
  slider.value = 0; slider.dispatchEvent(new Event("input")); look();
  point("pointermove", 40, 40); look();
  point("pointerdown", 40, 40); point("pointermove", 90, 60); point("pointerup", 90, 60); look();
  point("pointermove", 10, 10); look();
  document.body.innerHTML = "<pre id='seen'></pre>";
  document.body.firstChild.textContent = JSON.stringify(seen);
});</script>"""


def test_the_slider_and_a_drag_move_every_sphere_in_a_browser(found: Any, tmp_path: Path) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("needs a browser")
    page = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", page_of(found, tmp_path))
    (tmp_path / "moved.html").write_text(page.replace("</body>", MOVES + "</body>"), encoding="utf-8")
    words = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
             "--dump-dom", (tmp_path / "moved.html").as_uri()]  # fmt: skip
    try:
        shown = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True).stdout
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"the browser does not start: {error}")
    (text,) = re.findall(r'<pre id="seen">(.*?)</pre>', shown, re.S)
    middle, start, hovered, dragged, released = json.loads(unescape(text))
    assert start[0] == "1.00" and middle[0] != start[0]
    assert all(a != b for a, b in zip(middle[1], start[1], strict=True)) and start[1][0] == start[1][1]
    assert hovered == start and released == dragged and dragged[0] == start[0]
    assert all(a != b for a, b in zip(dragged[1], start[1], strict=True)) and dragged[1][0] == dragged[1][1]
