"""The nearest valid name: what others call a setting comes before what is spelt alike."""

from __future__ import annotations

from typing import Any

from geonorm.errors import CALLED, nearest
from geonorm.lab.config import TrainCommand
from geonorm.settings import options

from .rows import each

SETTINGS = options(TrainCommand)


@each(
    "name, meant",
    [
        ("model.hidden_size", "model.width"),  # and not model.hidden, which is spelt alike
        ("model.intermediate_size", "model.hidden"),
        ("model.n_embd", "model.width"),
        ("model.rms_norm_eps", "model.eps"),
        ("model.hidden_act", "model.mlp"),
        ("model.rope_parameters", "model.rope_theta"),
        ("num_hidden_layers", "model.layers"),
        ("max_grad_norm", "optim.clip"),
        ("learning_rate", "lr"),
        ("model.widht", "model.width"),
    ],
)
def test_settings_that_others_call_otherwise(name: str, meant: str, capsys: Any) -> None:
    from geonorm.cli.main import main

    assert nearest(name, SETTINGS) == f"did you mean '{meant}'?"
    flag = f"--{meant.replace('_', '-')}"
    assert main(["train", f"--{name}", "1", "--dry-run"]) == 2
    err = capsys.readouterr().err
    assert f"did you mean '{flag}'?" in err and err.count("\n") == 1


def test_every_name_of_others_leads_to_a_setting_that_is_there() -> None:
    for name in CALLED:
        for asked in (name, f"model.{name}"):
            if asked not in SETTINGS:
                told = nearest(asked, SETTINGS)
                ours = {place for meant in CALLED[name] for place in (meant, f"model.{meant}")}
                assert told.split("'")[1] in ours & set(SETTINGS), (asked, told)


def test_what_is_not_there_is_not_proposed() -> None:
    assert nearest("n_embd", ["steps", "hidden"]) == ""
    assert nearest("hidden_size", ["steps", "hidden_sizes"]) == "did you mean 'hidden_sizes'?"
    assert nearest("qqqq", ["steps"]) == ""
