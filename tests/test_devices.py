"""Which device a setting means."""

import pytest
import torch

from geonorm.devices import machine_here, pick_device, subnormals_as_zero
from geonorm.errors import ConfigError
from geonorm.schemes import parse


def test_a_gpu_that_is_not_there_is_refused_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert pick_device("cuda") == torch.device("cuda") and pick_device("cuda:1") == torch.device("cuda:1")
    assert machine_here(torch.device("cpu"), 2).memory == machine_here(torch.device("cpu")).memory / 2 > 0
    with pytest.raises(ConfigError, match="device 'cuda:2' is asked for, but the last GPU here is cuda:1"):
        pick_device("cuda:2")


@pytest.mark.parametrize("scheme", ["geonorm(alpha=0)", "geonorm(max_angle=0)", "ngpt(alpha=0)"])
def test_zero_is_not_positive_where_subnormals_are_zero(scheme: str) -> None:
    """The least number above 0 was a subnormal, so that a training accepted what the parser refuses outside of it."""
    with subnormals_as_zero(torch.device("cpu")), pytest.raises(ConfigError, match="must"):
        parse(scheme)


def test_subnormals_are_zero_within_and_as_before_after() -> None:
    """Of one thread: those of a pool that stood before keep their mode."""
    tiny, cpu = torch.tensor([1e-30]), torch.device("cpu")
    if not torch.set_flush_denormal(False):
        pytest.skip("this CPU has no such mode")
    with subnormals_as_zero(torch.device("meta")):
        assert (tiny * 1e-10).item() > 0  # not a CPU's
    with pytest.raises(ZeroDivisionError), subnormals_as_zero(cpu):
        assert (tiny * 1e-10).item() == 0 and (tiny * 1e-7).item() > 0
        with subnormals_as_zero(cpu):
            pass
        assert (tiny * 1e-10).item() == 0
        raise ZeroDivisionError
    assert (tiny * 1e-10).item() > 0
