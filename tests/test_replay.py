"""Work that is replayed: the same as work that is done, on a CPU and as a graph on a GPU."""

from typing import Any

import pytest
import torch

from arcsm.replay import WARM_UP, Replayed, ReplayedAround, compiled

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])


@devices
@pytest.mark.parametrize("wanted", [True, False])
def test_every_call_does_the_work_once(device: str, wanted: bool):
    total, step = torch.zeros((), device=device), torch.ones((), device=device)
    ran = []

    def work() -> torch.Tensor:
        ran.append(True)
        total.add_(step)
        return total * 2

    replayed = Replayed(work, device, wanted=wanted)
    for call in range(1, 9):
        step.fill_(call)
        assert replayed().item() == call * (call + 1)
    captured = wanted and device == "cuda"
    assert replayed.captures == replayed.replays == captured
    # While it is captured it runs once more, and does nothing.
    assert len(ran) == (WARM_UP + 1 if captured else 8)


@devices
def test_numbers_of_a_generator_are_new_each_time(device: str):
    generator = torch.Generator(device).manual_seed(3)
    replayed = Replayed(
        lambda: torch.rand(4, generator=generator, device=device), device, generators=[generator]
    )
    drawn = torch.stack([replayed().clone() for _ in range(8)])
    other = torch.Generator(device).manual_seed(3)
    expected = torch.stack([torch.rand(4, generator=other, device=device) for _ in range(8)])
    assert torch.equal(drawn, expected)


def test_what_is_compiled_has_a_memory_of_its_own_and_short_sums_written_out(
    monkeypatch: pytest.MonkeyPatch,
):
    told: list[tuple[Any, dict[str, Any]]] = []

    def keep(function: Any, **options: Any) -> Any:
        told.append((function, options))
        return function

    def double(x: int) -> int:
        return 2 * x

    monkeypatch.setattr(torch, "compile", keep)
    assert compiled(double)(3) == compiled(double)(3) == 6
    (first, options), (second, _) = told
    assert first.__code__ is not second.__code__
    assert options["options"] == {"unroll_reductions_threshold": 17}


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])
def test_what_cannot_be_captured_is_done_all_the_same(device: str):
    total = torch.zeros((), device=device)
    lost: list[Any] = []

    def work() -> None:
        total.add_(1)
        total.item()  # waits for the device, which a graph cannot

    replayed = Replayed(work, device, lost=lambda: lost.append(True))
    with pytest.warns(UserWarning, match="cannot be captured as a graph: "):
        for _ in range(WARM_UP + 2):
            replayed()
    assert total.item() == WARM_UP + 2 and lost == [True]
    assert not replayed.captures and not replayed.replays


def around(device: str, find: Any, spoil: bool = False) -> tuple[ReplayedAround, torch.Tensor]:
    """Return work with a backward pass in its second half, and the weight that it moves."""
    weight = torch.ones((), device=device, requires_grad=True)
    factor = torch.zeros((), device=device)

    def before() -> torch.Tensor:
        return weight * weight

    def between(square: torch.Tensor) -> None:
        factor.fill_(find(square.item()))  # waits for the device

    def after(square: torch.Tensor) -> None:
        (slope,) = torch.autograd.grad(square, weight)
        with torch.no_grad():
            weight.add_(factor * slope)
        if spoil:
            weight.item()

    return ReplayedAround(before, between, after, device), weight


@devices
def test_the_host_has_a_part_between_two_graphs(device: str):
    seen: list[float] = []

    def find(square: float) -> float:
        seen.append(square)
        return 0.25

    replayed, weight = around(device, find)
    for call in range(1, 9):
        replayed()
        assert weight.item() == pytest.approx(1.5**call)
    assert seen == pytest.approx([1.5 ** (2 * call) for call in range(8)])
    assert replayed.captures == replayed.replays == (device == "cuda")


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=gpu)])
def test_where_one_of_two_graphs_cannot_be_captured_there_is_none(device: str):
    replayed, weight = around(device, lambda square: 0.25, spoil=True)
    with pytest.warns(UserWarning, match="cannot be captured as a graph: "):
        for call in range(1, WARM_UP + 4):
            replayed()
            assert weight.item() == pytest.approx(1.5**call)
    assert not replayed.captures and not replayed.replays
