"""How far long commands say they are: bars in 80 columns where someone watches, lines elsewhere; no real clock."""

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from geonorm.lab.train.hooks import ProgressReport
from geonorm.output import columns
from geonorm.progress import NAME, Bars, Pace, Unwatched, shorten, show_progress, span


def test_the_time_left_is_that_of_what_was_done_since() -> None:
    pace = Pace(50, iter([10.0, 30.0, 50.0]).__next__)
    assert pace.left(50, 150) is None and pace.left(20, 150) is None  # nothing yet; back at an earlier step
    assert pace.left(60, 150) == 20.0 * 90 / 10
    assert pace.left(150, 150) == 0.0


def test_the_first_steps_of_a_run_which_may_compile_say_nothing_of_the_time_left() -> None:
    lines: list[str] = []
    state: Any = SimpleNamespace(step=0, schedule=SimpleNamespace(steps=9, phase=lambda step: "warm-up"))
    report = ProgressReport(state, "run", lines.append, Unwatched(False))
    for state.step in (1, 2):
        report.before_evaluation(state)
        report.on_log(state, [{"step": state.step, "loss": 1.0, "val_loss": 1.0, "tokens_per_second": 5.0}])
    assert [line.endswith("left") for line in lines] == [False, True]


def test_names_times_and_lines_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {0.4: "0:00", 59.6: "1:00", 125: "2:05", 3600: "1:00:00", 187200: "2 d 4 h"}
    assert {seconds: span(seconds) for seconds in times} == times
    name = shorten("geonorm-decay-sqrt-max_angle-pi-8-ab12cd-lr0.005-seed11")
    assert len(name) == NAME and name.startswith("geonorm") and name.endswith("seed11") and "…" in name
    assert columns(100) == 100  # a file
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    assert (columns(100), columns(60)) == (80, 60)


def test_rows_fit_80_columns() -> None:
    from rich.console import Console

    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    bars = Bars(console)
    note = "100000/200000 warm-up loss 12.3456 and more"
    bars.show("[red]a scheme with a name that is very much too long", 0.5, note, 99999)
    bars.show("peri", 0.25)
    with console.capture() as capture:
        console.print(bars.rows.get_renderable())
    lines = capture.get().splitlines()
    assert len(lines) == 2 and all(len(line) <= 80 for line in lines), lines
    assert lines[0].startswith("[red]a") and "100000/200000 warm-up loss 12.3456" in lines[0] and "1 d 3 h" in lines[0]
    assert lines[1].startswith("peri") and "25%" in lines[1]


@pytest.mark.parametrize("tell", [True, False])
def test_nothing_moves_in_a_file(tell: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with show_progress(live=False, tell=tell) as shown:
        for share in (0.3, 0.6, 1.0):
            shown.show("pre", share, "said", 3.0)
        shown.drop("pre")
    out, err = capsys.readouterr()
    assert type(shown) is Unwatched and not shown.watched and out == "" and err == ("pre: done\n" if tell else "")
