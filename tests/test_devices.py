"""Which device a setting means."""

from __future__ import annotations

import pytest
import torch

from geonorm.devices import pick_device
from geonorm.errors import ConfigError


def test_a_gpu_that_is_not_there_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda") == torch.device("cuda") and pick_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="device 'cuda:2' is asked for, but the last GPU here is cuda:1"):
        pick_device("cuda:2")
