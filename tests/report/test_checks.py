"""What limits a comparison: each departure from the protocol is told, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from geonorm.report import build
from geonorm.report.checks import limits
from geonorm.report.runs import load
from geonorm.report.tables import LIMITS, markdown, text_lines

MakeRun = Callable[..., Path]


def test_the_terminal_has_the_limits_of_the_page(comparison_dir: Path) -> None:
    """What the page says against a comparison stands below the verdicts of the terminal too."""
    comparison = load(comparison_dir)
    found = limits(comparison)
    lines = text_lines(comparison.rows, found)
    said = " ".join(line.strip() for line in lines)
    assert "What limits this comparison:" in lines and len(found) >= 4
    assert all(f"- {limit}" in said for limit in found) and max(map(len, lines)) <= 100
    assert any("0.78 tokens per parameter" in limit for limit in found)
    assert LIMITS not in " ".join(text_lines(comparison.rows))


def test_rates_tuned_on_shorter_runs_are_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in range(5):
        make_run("pre", seed, phase="final")
    for lr in (1e-3, 3e-3, 1e-2):
        make_run("pre", 9, lr=lr, phase="tune", tokens=409_600)
    said = limits(load([tmp_path]))
    assert any("tuned on 410k of 819k tokens" in limit for limit in said)


def test_rates_tuned_on_longer_runs_are_a_limit_and_no_minimum(make_run: MakeRun, tmp_path: Path) -> None:
    """The minimum fitted through tuning runs of twice the length stood beside the loss of the final ones."""
    for seed in range(5):
        make_run("pre", seed, phase="final")
    for lr in (1e-3, 3e-3, 1e-2):
        make_run("pre", 9, lr=lr, phase="tune", tokens=1_638_400)
    found = load([tmp_path])
    assert any("tuned on 1.64M tokens, more than the 819k that are compared" in limit for limit in limits(found))
    assert found.rows[0]["fit"] is None


def test_a_scheme_that_scatters_far_more_than_the_others_is_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    noise = (-0.01, -0.005, 0.0, 0.005, 0.01)
    for scheme, width in (("pre", 1), ("peri", 1), ("post", 5)):
        for seed, off in enumerate(noise):
            make_run(scheme, seed, val_loss=3 + width * off)
    said = [limit for limit in limits(load([tmp_path])) if "scatter" in limit]
    assert len(said) == 1 and said[0].startswith("post: its seeds scatter 5 times as far as those of the others (p = ")


def test_spikes_that_are_the_batchs_stand_apart(make_run: MakeRun, tmp_path: Path) -> None:
    """Step 9 is strange to both runs; what older runs do not know is not said."""
    for scheme, steps in (("pre", [9]), ("post", [9, 30])):
        make_run(scheme, spikes=len(steps), spike_steps=steps, grad_spikes=0, grad_spike_steps=[])
    assert "| 1 (0) / 0 (0) |" in (text := markdown(load([tmp_path]).rows)) and "| 2 (1) / 0 (0) |" in text
    page = build([tmp_path], tmp_path / "page.html").read_text()
    assert "2 loss spikes and 0 gradient spikes in 1 finished run, 1 and 0 its own." in page
    make_run("peri", spikes=1, grad_spikes=0)
    assert "| 1 / 0 |" in markdown(load([tmp_path]).rows)


def test_a_scheme_that_diverged_early_says_nothing_of_the_length(make_run: MakeRun, tmp_path: Path) -> None:
    for seed in range(5):
        make_run("pre", seed, tokens=30_000_000)
        make_run("post", seed, tokens=40_960, status="diverged", val_loss=None)
    assert not any("tokens per parameter" in limit for limit in limits(load([tmp_path])))


def test_what_was_left_out_or_passed_over_is_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    """Shorter runs, other numbers of parameters within a scheme, losses that were null, steps that were skipped."""
    for seed in range(5):
        folder = make_run("pre", seed)
        summary = json.loads((folder / "summary.json").read_text())
        if seed == 1:
            summary |= {"parameters": 2 * summary["parameters"]}
        if seed == 2:
            summary["events"] = [{"step": 3, "action": "skip"}]
            with (folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": 10**6, "loss": None}) + "\n")
        (folder / "summary.json").write_text(json.dumps(summary))
    make_run("pre", 7, tokens=409_600)
    said = limits(load([tmp_path]))
    assert "pre: 1 shorter run left out, for lengths do not mix in a mean." in said
    assert any(text.startswith("The numbers of parameters differ by 100 %") for text in said)
    assert any(text.startswith("The training loss was not finite at some step of pre · seed 2") for text in said)
    assert any(text.startswith("pre · seed 2") and "1 step skipped or rewound" in text for text in said)


def test_runs_that_were_not_trained_alike_are_a_limit(make_run: MakeRun, tmp_path: Path) -> None:
    """Within a scheme, whose mean mixes them, and between schemes; not what changes no loss."""
    for scheme, optimizer, decay in (("pre", "adamw", 0.1), ("pre", "muon", 0.1), ("post", "adamw", 0.0)):
        folder = make_run(scheme, int(optimizer == "muon"))
        config = {"optim": {"name": optimizer, "weight_decay": decay}, "log": {"to": [optimizer]}}
        (folder / "config.yaml").write_text(json.dumps({**config, "scheme": scheme}))
    said = [limit for limit in limits(load([tmp_path])) if "differ in" in limit]
    assert said == [
        "pre: its mean is over runs that differ in optim.name (adamw and muon): give those a report of their own."
    ]
    for file in tmp_path.rglob("config.yaml"):
        other = json.loads((file.parent / "summary.json").read_text())["scheme"] == "post"
        file.write_text(json.dumps({"optim": {"weight_decay": float(other)}}))
    said = [limit for limit in limits(load([tmp_path])) if "differ in" in limit]
    assert said == ["The schemes were not trained alike: they differ in optim.weight_decay (0 and 1)."]


def test_a_page_of_some_schemes_has_the_limits_of_their_baseline(make_run: MakeRun, tmp_path: Path) -> None:
    """They stand or fall with it, shown or not; whether one scatters is a question to all."""
    noise = (-0.01, -0.005, 0.0, 0.005, 0.01)
    for lr, loss in ((3e-3, 3.0), (1e-3, 3.2)):
        make_run("pre", 0, lr=lr, val_loss=loss, parameters=2_000_000)
    for scheme, width in (("peri", 1), ("post", 5), ("geonorm", 1)):
        for seed, off in enumerate(noise):
            make_run(scheme, seed, val_loss=3 + width * off)
    whole = load([tmp_path])
    said = limits(whole.only(["post"]))
    for begin in ("1 seed: a claim", "pre: the best learning rate, 3e-3, is an edge", "The numbers of parameters",
                  "post: only 1 of 5 seeds", "post: its seeds scatter 5 times"):  # fmt: skip
        assert any(text.startswith(begin) for text in said), begin
    assert not any("geonorm" in text or "peri" in text for text in said)
    assert limits(whole.only([])) == limits(whole)
