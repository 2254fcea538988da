"""The nearest valid name: what others call a setting comes before what is spelt alike."""

from typing import Any

import pytest

from geonorm.errors import CALLED, ConfigError, nearest
from geonorm.lab.config import TrainCommand, TrainConfig
from geonorm.settings import from_dict, options

from .rows import each

SETTINGS = options(TrainCommand)


@each(
    "name, meant",
    [
        ("model.hidden_size", "model.width"),  # and not model.hidden, which is spelt alike
        ("model.n_embd", "model.width"), ("num_hidden_layers", "model.layers"), ("learning_rate", "lr"),
        ("seq_len", "model.context"),  # and not seed
        ("model.widht", "model.width"), ("dropout", "model.attn_dropout"), ("wandb", "log.to wandb"),
        ("bf16", "runtime.dtype bf16"), ("grad_accum", "micro_batch"), ("batch", "batch_size"),
    ],
)  # fmt: skip
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
                ours = {place.split()[0] for meant in CALLED[name] for place in (meant, f"model.{meant}")}
                assert told.split("'")[1].split()[0] in ours & set(SETTINGS), (asked, told)


def test_options_of_another_group_and_settings_in_python() -> None:
    flags = [option.flag for option in SETTINGS.values()]
    pairs = ("--compile", "--runtime.compile"), ("--weight_decay", "--optim.weight-decay"), ("--optim.lr", "--lr")
    assert [nearest(flag, flags) for flag, _ in pairs] == [f"did you mean '{meant}'?" for _, meant in pairs]
    for name, meant in (("seq_len", "model.context"), ("weight_decay", "optim.weight_decay")):
        with pytest.raises(ConfigError, match=f"unknown setting '{name}': did you mean '{meant}'"):
            from_dict(TrainConfig, {name: 1})


def test_what_is_not_there_is_not_proposed() -> None:
    assert nearest("n_embd", ["steps", "hidden"]) == ""
    assert nearest("my.txt", ["books.txt", "my.text"]) == "did you mean 'my.text'?"
    assert nearest("hidden_size", ["steps", "hidden_sizes"]) == "did you mean 'hidden_sizes'?"
    assert nearest("qqqq", ["steps"]) == ""
