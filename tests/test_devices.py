"""Which devices are refused, and that the reason is short."""

import pytest
import torch

from arcsm.devices import check_device
from arcsm.errors import InputError


def test_what_torch_does_not_know_or_have_is_refused_in_a_short_sentence() -> None:
    # A module torch.hpu is missed where others are refused; meta is there, but holds no numbers.
    for device in ("xla", "vulkan", "hpu", "meta", "foo", "", torch.device("meta")):
        with pytest.raises(InputError) as caught:
            check_device(device)
        assert str(caught.value) == (
            f"expected a device that torch can use here, got {str(device)!r}; use cpu, or cuda"
            " where there is a GPU"
        )


def test_of_a_gpu_the_first_sentence_of_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object, **__: object) -> None:
        raise RuntimeError("Found no NVIDIA driver. Please visit\nhttps://somewhere\nCompile with")

    monkeypatch.setattr(torch, "zeros", no_driver)
    with pytest.raises(InputError, match=r"got 'cuda:1' \(Found no NVIDIA driver\); use cpu$"):
        check_device("cuda:1")


def test_a_device_that_is_there() -> None:
    check_device("cpu")
    check_device(torch.device("cpu"))
