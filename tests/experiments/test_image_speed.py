"""The speed of PixelCNN++: what is timed, and what is made of the times."""

import json
from typing import Any

import pytest
import torch
from known import seeded

from arcsm.errors import InputError
from arcsm.experiments import image_speed, image_timing
from arcsm.experiments.experiment import Piece, Place
from arcsm.experiments.image_speed import BUDGETS, SAMPLERS, figures, metrics, pieces, run, verdicts
from arcsm.experiments.image_timing import (
    EAGER,
    make_model,
    make_step,
    paper_seconds,
    paper_walk,
    product_flops,
    step_flops,
)
from arcsm.images import ImageModel
from arcsm.model import ARCSM
from arcsm.staged import StagedARCSM

SMOKE, GPU = BUDGETS["smoke"], BUDGETS["gpu"]


def spied_model(monkeypatch: pytest.MonkeyPatch) -> list[ImageModel]:
    """Return a list to which every model that is made is added."""
    made: list[ImageModel] = []

    def make(*arguments: Any, **options: Any) -> ImageModel:
        made.append(make_model(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(image_timing, "make_model", make)
    return made


@pytest.mark.parametrize("method", ["csm", "likelihood"])
def test_a_step_trains_the_model(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = spied_model(monkeypatch)
    given: list[Any] = []
    step = make_step(SMOKE, "tiny", method, batch=3, mode=EAGER, device="cpu")
    density = made[0].density
    before = [parameter.detach().clone() for parameter in density.parameters()]
    plain = density.loss_terms

    def loss_terms(x: torch.Tensor, noise: Any, **options: Any) -> torch.Tensor:
        given.append((x, options["jitter"]))
        return plain(x, noise, **options)

    monkeypatch.setattr(density, "loss_terms", loss_terms)
    step()
    moved = [
        bool((old != new).any()) for old, new in zip(before, density.parameters(), strict=True)
    ]
    assert sum(moved) > 0.8 * len(moved) and density.training
    ((x, jitter),) = given
    assert x.shape == (3, 48) and torch.equal((x * 255).round() / 255, x)
    if method == "likelihood":  # whose cells count as a whole
        assert jitter is None
    else:
        inside = (x > 0) & (x < 1)
        assert jitter[inside].abs().max() <= 0.5 / 255 + 1e-7 and jitter.unique().numel() > 100
        step()
        assert not torch.equal(given[1][1], jitter)  # fresh noise each time


def test_models_have_the_same_backbone_and_the_units_of_pixels() -> None:
    own, other = (make_model(SMOKE, "tiny", method, "cpu") for method in ("csm", "likelihood"))
    assert isinstance(own.density, ARCSM)
    mine = {name: p.shape for name, p in own.density.context.streams.named_parameters()}
    theirs = {name: p.shape for name, p in other.density.streams.named_parameters()}
    assert mine == theirs
    assert own.density.shift.unique().item() == pytest.approx(0.47)
    assert own.density.scale.unique().item() == pytest.approx(0.25)


def test_flops_are_counted_for_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    def known_step(*_: Any, batch: int, mode: str, device: str) -> Any:
        assert mode == EAGER
        one, other = torch.ones(batch, 5), torch.ones(5, 7)
        return lambda: torch.mm(one, other)

    monkeypatch.setattr(image_timing, "make_step", known_step)
    assert step_flops({**SMOKE, "counted": 4}, "tiny", "csm", "cpu") == 2 * 5 * 7
    monkeypatch.setattr(image_timing, "seconds", lambda step, device, inner: 0.5)
    assert product_flops(16, "cpu", bfloat16=True) == 2 * 16**3 / 0.5


def test_flops_of_a_step_grow_with_the_filters() -> None:
    wide = {**SMOKE, "options": {"filters": [8, 8], "blocks": 1, "levels": 2}}
    one, two = (step_flops(told, "tiny", "likelihood", "cpu") for told in (SMOKE, wide))
    # Most products are between layers of filters, so that their number goes with the square.
    assert 2.5 < two / one < 4


def test_the_paper_scheme_draws_what_its_stages_do() -> None:
    model = make_model(SMOKE, "tiny", "csm", "cpu", noise="paper")
    assert isinstance(model.density, ARCSM)
    staged = StagedARCSM([model.density] * 10)
    expected = staged.sample(3, generator=seeded(1), langevin_steps=2)
    walk = paper_walk(model, 3, steps=2, generator=seeded(1))
    for scalars in range(1, 8):
        x = next(walk)
        torch.testing.assert_close(x[:, :scalars], expected[:, :scalars], rtol=1e-4, atol=1e-4)
        assert (x[:, scalars:] == 0).all()


def test_the_paper_scheme_passes_whole_images_for_every_scalar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(SMOKE, "tiny", "csm", "cpu", noise="paper")
    passes: list[tuple[int, ...]] = []
    plain = type(model.density.context).forward

    def forward(self: Any, x: torch.Tensor, condition: Any = None) -> torch.Tensor:
        passes.append(tuple(x.shape))
        return plain(self, x, condition)

    monkeypatch.setattr(type(model.density.context), "forward", forward)
    seen: list[float] = []
    times = paper_seconds(SMOKE, model, "cpu", seen.append)
    assert len(times) == SMOKE["scalars"] and min(times) > 0 and seen[-1] == 1
    assert passes == [(4, 48)] * (10 * (SMOKE["scalars"] + 1))


def test_the_paper_scheme_needs_a_ladder() -> None:
    for method in ("csm", "likelihood"):
        with pytest.raises(InputError, match="ladder of noise levels"):
            next(
                paper_walk(make_model(SMOKE, "tiny", method, "cpu"), 1, steps=1, generator=seeded())
            )


def test_pieces_are_steps_by_mode_and_samplers_by_size() -> None:
    names = [piece.name for piece in pieces(GPU)]
    assert names[:2] == ["step.small.128.compiled", "step.small.128.eager"]
    assert len(names) == 3 + len(SAMPLERS) and "paper.small" in names


def test_draws_are_timed_with_the_correction_of_widths() -> None:
    corrected, plain = (
        make_model(SMOKE, "tiny", "csm", "cpu", noise=noise).density for noise in ("fine", "paper")
    )
    assert isinstance(corrected, ARCSM) and corrected.recalibration is not None
    assert isinstance(plain, ARCSM) and plain.recalibration is None


def test_every_piece_runs() -> None:
    settings = {**SMOKE, "repeats": 2}
    seen: list[float] = []
    raw = {one.name: run(settings, one, Place("cpu", seen.append)) for one in pieces(settings)}
    json.dumps(raw, allow_nan=False)
    step = raw["step.tiny.4.eager"]
    assert {name: len(times) for name, times in step["seconds"].items()} == {
        "csm": 2,
        "likelihood": 2,
    }
    assert step["flops_per_image"]["csm"] > step["flops_per_image"]["likelihood"] > 0
    assert step["card"] is None and step["product_flops_per_s"] > 0
    own, paper = raw["own.tiny"], raw["paper.tiny"]
    assert own["timed_scalars"] == own["scalars"] == 48 and len(own["seconds"]) == 1
    assert paper["timed_scalars"] == 2 and paper["scalars"] == 48
    found = metrics(settings, raw)
    assert {one.holds for one in verdicts(settings, found)} == {None}
    assert set(figures(settings, raw)) == {"steps", "samplers"}


def test_the_paper_scheme_is_scaled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_speed, "paper_seconds", lambda *_: [0.5, 0.25])
    piece = next(one for one in pieces(SMOKE) if one.name == "paper.tiny")
    raw = run(SMOKE, piece, Place("cpu", lambda _: None))
    assert raw["seconds"] == [24.0, 12.0]


def test_samplers_are_asked_for_what_they_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Fake:
        dims = 48

        def sample(self, n: int, **options: Any) -> None:
            asked.append((n, options))

    def make(settings: Any, size: str, method: str, device: str, **told: Any) -> Fake:
        asked.append((method, told))
        return Fake()

    monkeypatch.setattr(image_speed, "make_model", make)
    for sampler in ("own", "likelihood", "langevin"):
        run(
            SMOKE,
            Piece("x", {"kind": "sampler", "sampler": sampler, "size": "tiny"}),
            Place("cpu", lambda _: None),
        )
    langevin = {"batch_size": 4, "method": "langevin", "langevin_steps": 2}
    assert asked == [
        ("csm", {}), *[(4, {"batch_size": 4})] * 2,
        ("likelihood", {}), *[(4, {"batch_size": 4})] * 2,
        ("csm", {"noise": "paper"}), *[(4, langevin)] * 2,
    ]  # fmt: skip


def gpu_raw(own: float, sampled: float) -> dict[str, Any]:
    """Return data with a step of 100 ms by maximum likelihood, at its best."""
    raw: dict[str, Any] = {}
    for piece in pieces(GPU):
        if piece.labels["kind"] == "step":
            # Where there are two ways to compile, each method is at its best in another.
            only = piece.labels["batch"] == 64
            plain = piece.labels["mode"] == "eager"
            raw[piece.name] = {
                **piece.labels,
                "seconds": {
                    "csm": [own if only or plain else 1.5 * own] * 3,
                    "likelihood": [0.15 if plain else 0.1] * 3,
                },
                "flops_per_image": {"csm": 2e11, "likelihood": 1e11},
                "parameters": {"csm": 11, "likelihood": 10},
                "product_flops_per_s": 5e14,
                "card": "NVIDIA H200",
            }
        else:
            whole = piece.labels["sampler"] != "paper"
            raw[piece.name] = {
                **piece.labels,
                "images": 64,
                "seconds": [sampled] if whole else [1000.0, 3000.0, 2000.0],
                "timed_scalars": 3072 if whole else 8,
                "scalars": 3072,
            }
    return raw


def test_ratio_and_shares_are_those_of_the_faster_way() -> None:
    found = metrics(GPU, gpu_raw(own=0.11, sampled=20.0))

    def of(name: str, **labels: Any) -> Any:
        fitting = [o for o in found if o.name == name and labels.items() <= o.labels.items()]
        assert len(fitting) == 1
        return fitting[0]

    where = {"size": "small", "batch": 128}
    assert of("step of CSM in steps of maximum likelihood", **where).value == pytest.approx(1.1)
    rate = of("images a second", **where, method="csm")
    assert rate.value == pytest.approx(128 / 0.11) and rate.labels["mode"] == "eager"
    assert of("images a second", **where, method="likelihood").labels["mode"] == "compiled"
    share = of("share of the peak of a product in the same run", **where, method="likelihood")
    assert share.value == pytest.approx(1280 * 1e11 / 5e14)
    nominal = of("share of the nominal peak in bfloat16", **where, method="likelihood")
    assert nominal.value == pytest.approx(1280 * 1e11 / 989e12)
    assert nominal.labels["peak, TFLOP/s"] == 989
    paper = of("seconds of 64 images", size="small", sampler=SAMPLERS["paper"])
    assert paper.value == 2000 and paper.n == 3 and paper.labels["T"] == 10
    assert paper.labels["timed"] == "8 of 3,072 scalars, scaled up to all"
    assert of("seconds of 64 images", size="small", sampler=SAMPLERS["own"]).labels["timed"] == (
        "whole images"
    )


def test_the_peak_of_other_cards_is_not_made_up() -> None:
    raw = gpu_raw(own=0.1, sampled=1.0)
    for one in raw.values():
        one["card"] = "Some other card"
    nominal = [one for one in metrics(GPU, raw) if one.name.startswith("share of the nominal")]
    assert nominal and all(one.value is None and "Some other card" in one.reason for one in nominal)


@pytest.mark.parametrize(
    ("own", "sampled", "holds"),
    [(0.11, 20.0, True), (0.1149, 59.9, True), (0.1151, 60.0, False)],
)
def test_verdicts_are_the_goals(own: float, sampled: float, holds: bool) -> None:
    said = verdicts(GPU, metrics(GPU, gpu_raw(own, sampled)))
    assert [one.holds for one in said] == [holds] * 3
    assert f"{own * 10:.2f} times as long" in said[0].text
    assert f"{2000 / sampled:,.0f} times as long" in said[-1].text


def test_figures_have_the_best_steps_and_say_what_is_scaled_up() -> None:
    drawn = figures(GPU, gpu_raw(own=0.12, sampled=20.0))
    (steps,) = drawn["steps"].axes
    assert list(steps.lines[1].get_xdata()) == pytest.approx([120.0] * 2)
    (samplers,) = drawn["samplers"].axes
    cases = [label.get_text() for label in samplers.get_yticklabels()]
    assert len(cases) == len(SAMPLERS) and "scaled up" in cases[-1] and "scaled" not in cases[0]
    assert samplers.get_xscale() == "log"
