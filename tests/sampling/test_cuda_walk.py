"""On a GPU: the captured walk, and the kernel of the flow, draw what the eager walk draws."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from chains import KINDS, condition_for, every_kind, random_chain, uniforms

import arcsm.sampling.captured
from arcsm.conditional import Noise
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.sampling.captured import can_capture
from arcsm.sampling.chain import Draw, TensorSnap

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    # The compiler's advice to round products of matrices to 10 bits.
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores"),
]


def on_gpu(**options: Any) -> ARCSM:
    return random_chain(**options).cuda()


def compare(model: ARCSM, rows: int, *, seed: int = 1, **options: Any) -> None:
    """Draw both ways from the same numbers."""
    uniform = uniforms(rows, model.dims, seed=seed)
    options["condition"] = condition_for(model, rows, seed=seed)
    found = model.sample(rows, uniform=uniform, **options)
    assert found.is_cuda
    expected = model.sample(rows, uniform=uniform, compile=False, **options)
    tolerance = 1e-8 if found.dtype == torch.float64 else 1e-3
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the graphs that are captured, by their rows: powers of 2, at least 64."""
    found: list[int] = []
    whole = arcsm.sampling.captured._CapturedWalk

    def counted(model: ARCSM, rows: int, snap: TensorSnap | None) -> Any:
        found.append(rows)
        return whole(model, rows, snap)

    monkeypatch.setattr(arcsm.sampling.captured, "_CapturedWalk", counted)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@every_kind
def test_cuda_graph_draws_what_the_walk_draws(
    kind: str, dtype: torch.dtype, captures: list[int]
) -> None:
    model = on_gpu(dtype=dtype, **KINDS[kind])
    compare(model, 37)
    assert captures == [64]
    compare(model, 37, seed=2)  # other numbers, another condition: the same graph
    assert captures == [64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_cuda_graph_draws_what_a_recalibrated_walk_draws(
    dtype: torch.dtype, captures: list[int]
) -> None:
    model = on_gpu(dtype=dtype)
    rows = model.sample(500, uniform=0.25 + uniforms(500, model.dims, seed=4) / 2)
    compare(model, 37)
    model.recalibrate(rows)
    compare(model, 37)
    model.recalibrate(rows[:100])
    compare(model, 37)
    assert captures == [512, 64, 64, 64]  # other curves, another graph


@pytest.mark.parametrize("known", [1, 3, 4])
def test_cuda_graph_keeps_what_is_given(known: int, captures: list[int]) -> None:
    model = on_gpu(**KINDS["everything"])
    first = list(model.context.order[:known])
    given = model.shift[first] + uniforms(6, known, seed=2).cuda()
    compare(model, 6, given=given)
    compare(model, 6, given=given[:1].cpu())
    compare(model, 6)
    assert captures == [64]
    x = model.sample(6, given=given, condition=condition_for(model, 6))
    assert torch.equal(x[:, first], given)


def test_cuda_graph_of_another_number_of_rows(captures: list[int]) -> None:
    model = on_gpu(**KINDS["conditioned"])
    for rows in (5, 1, 2, 64, 63):
        compare(model, rows)
    assert captures == [64]
    compare(model, 205, batch_size=100)  # two whole batches, and five rows more
    compare(model, 205, batch_size=100)
    assert captures == [64, 128]
    compare(model, 129)  # the one that was used last stays
    compare(model, 5)
    assert captures == [64, 128, 256]
    compare(model, 100)
    assert captures == [64, 128, 256, 128]


@pytest.mark.parametrize("kind", ["plain", "everything"])
def test_cuda_graph_follows_the_weights(kind: str, captures: list[int]) -> None:
    model = on_gpu(**KINDS[kind])
    compare(model, 9)
    parts = [*model.parameters(), model.shift, model.scale]
    for part in parts:  # each of them is read where it lies
        part.mul_(1.05)
        compare(model, 9)
    assert captures == [64]
    other = on_gpu(seed=1, **KINDS[kind])
    model.load_state_dict(other.state_dict())
    compare(model, 9)
    model.load_state_dict(copy.deepcopy(on_gpu(seed=2, **KINDS[kind]).state_dict()), assign=True)
    model.requires_grad_(False)
    compare(model, 9)
    model.float()
    compare(model, 9)
    assert captures == [64, 64, 64]


def test_cuda_graph_follows_weights_that_come_to_the_same_place() -> None:
    """Memory that old weights leave is soon given to new ones."""
    model, uniform = on_gpu(), uniforms(9, 4)
    for seed in range(4):
        other = on_gpu(seed=seed)
        for _ in range(3):
            state = {name: part.clone() for name, part in other.state_dict().items()}
            model.load_state_dict(state, assign=True)
            model.requires_grad_(False)
            del state
        found = model.sample(9, uniform=uniform)
        expected = other.sample(9, uniform=uniform, compile=False)
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_cuda_graph_follows_the_noise_and_the_steps(captures: list[int]) -> None:
    model = on_gpu()
    compare(model, 9)
    model.flow_steps = 20
    compare(model, 9)
    model.noise = Noise(3.0, 0.5)
    compare(model, 9)
    assert captures == [64, 64, 64]


def test_cuda_graphs_of_copies_are_their_own() -> None:
    model = on_gpu()
    compare(model, 9)
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        parameter.mul_(0.8)
    compare(other, 9)
    compare(model, 9)


def test_cuda_graphs_go_with_their_model() -> None:
    model = on_gpu()
    compare(model, 9)
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None


def test_cuda_samples_come_from_the_generator() -> None:
    model = on_gpu()
    draws = [
        model.sample(5, generator=torch.Generator("cuda").manual_seed(seed)) for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    uniform = torch.rand(
        5, 4, generator=torch.Generator("cuda").manual_seed(1), device="cuda", dtype=torch.float64
    )
    torch.testing.assert_close(model.conditional_cdf(draws[0]), uniform, rtol=0, atol=3e-7)
    with pytest.raises(InputError, match="a generator on the device of the model, cuda, got one"):
        model.sample(5, generator=torch.Generator())


def test_cuda_samples_at_the_ends_of_probability() -> None:
    model = on_gpu(dtype=torch.float32)
    ends = torch.tensor([0.0, 1.0])
    uniform = torch.cartesian_prod(ends, ends, ends, ends)
    found = model.sample(16, uniform=uniform)
    expected = model.sample(16, uniform=uniform, compile=False)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("rows", [1, 3, 4, 5, 1000])
@pytest.mark.parametrize("steps", [1, 3, 8, 13])
def test_cuda_kernel_is_the_flow(rows: int, steps: int) -> None:
    """For numbers of rows and steps that do not fill the kernel's blocks."""
    from arcsm.conditional import FlowDensity, TanhSumHead
    from arcsm.conditional.fused import fused_quantile

    noise = Noise(3.0, 0.1)
    head = TanhSumHead(4, steps=steps, normal_at=3.0).double().cuda().requires_grad_(False)
    for parameter in head.parameters():
        parameter.add_(0.5 * torch.randn_like(parameter))
    context = torch.randn(rows, 4, dtype=torch.float64, device="cuda")
    probability = uniforms(rows, 1).cuda()
    found = fused_quantile(head, noise)(context, probability[:, 0])
    expected = FlowDensity(head.family(context), noise).quantile(probability)[:, 0]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_cuda_walks_that_are_no_fixed_program_are_not_captured(captures: list[int]) -> None:
    model = on_gpu()
    assert can_capture(model, Draw())
    for how in (
        Draw(method="quadrature"),
        Draw(method="langevin"),
        Draw(solver="jacobi"),
        Draw(snap=lambda d, drawn, x: drawn),
    ):
        assert not can_capture(model, how)
    narrow = on_gpu(noise=Noise(1.5, 0.3))
    assert not can_capture(narrow, Draw())
    compare(narrow, 5)
    compare(model, 5, solver="jacobi")
    compare(model, 5, solver="gauss-seidel", block=2)
    compare(model, 5, method="quadrature")
    assert model.sample(5, method="langevin").is_cuda
    assert captures == []
    uniform = uniforms(5, 4)
    snapped = [
        model.sample(5, uniform=uniform, compile=fast, snap=lambda d, drawn, x: drawn.round())
        for fast in (True, False)
    ]
    torch.testing.assert_close(snapped[0], snapped[1])
    assert captures == []
