"""Long names in narrow columns."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st

from geonorm.lab.statistics.comparison import aggregate
from geonorm.report.columns import cut_apart
from geonorm.report.style import looks
from geonorm.report.tables import text_lines
from geonorm.report.vega import Axis, Chart, figure

LONG = [f"geonorm(entry=embedding, update=unit, retraction=projection, decay={d}, index=sublayer)" for d in ("sqrt", 2)]


@given(st.lists(st.text("ab(", max_size=60), unique=True, max_size=9), st.integers(6, 40))
def test_names_stay_apart_within_their_room(names: list[str], room: int) -> None:
    found = cut_apart(names, room)
    assert list(found) == names and len(set(found.values())) == len(names)
    assert all(len(text) <= room and (len(name) > room or text == name) for name, text in found.items())


def test_schemes_that_differ_at_their_end_have_names_of_their_own_in_print() -> None:
    runs = [{"scheme": s, "seed": 0, "lr": 1e-3, "status": "finished", "val_loss": 3.0} for s in ("pre", *LONG)]
    lines = text_lines(aggregate(runs))
    first, second = ([line for line in lines[2:5] if word in line] for word in ("…decay=sqrt", "…decay=2"))
    assert len(first) == len(second) == 1 and first != second
    chart = Chart("", Axis(0, 1), None, looks(LONG))
    for name in LONG:
        chart.strip(name, "3.0000 ± 0.0010, n = 3 (and more words)", [(0.5, "")], (0.5, None, None))
    assert len({row["text"] for row in chart.texts}) == 3  # two names and one value
    assert '"labelLimit": 0' in json.dumps(figure([chart]))
