"""Fitting images: what is learned, interruption, memory, and what TensorBoard is told."""

import itertools
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import arcsm.train.staged
from arcsm.baselines import MixtureMADE
from arcsm.data import Images, to_pixels
from arcsm.errors import ArcsmError, InputError
from arcsm.images import Flips, PixelCells, fit_images, fitting, tracking
from arcsm.images.cells import WholeLevels
from arcsm.images.fitting import _deviation
from arcsm.images.memory import _available, largest_batch
from arcsm.images.settings import ImageSettings
from arcsm.images.soundness import check_alone
from arcsm.images.tracking import Tracker
from arcsm.model import ARCSM
from arcsm.staged import StagedARCSM
from arcsm.train import Progress

from .image_kinds import KINDS, pictures, settings


@pytest.mark.parametrize("kind", ["made", "made-likelihood"])
def test_bits_come_near_the_entropy_and_no_lower(kind: str) -> None:
    # Black or white with equal chance, and the other pixel the same: half a bit for each of two.
    pixels = np.random.default_rng(0).integers(0, 2, (512, 1, 1, 1), dtype=np.uint8) * 255
    pixels = pixels.repeat(2, axis=2)
    shares = [(pixels == value).mean() for value in (0, 255)]
    learned = settings(kind, steps=150, batch=128, learning_rate=1e-2, ema=0.95)
    both = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1).repeat(2, axis=2)
    bits = shares @ fit_images(pixels, learned).bits_per_dim(both)
    entropy = -sum(share * math.log2(share) for share in shares) / 2
    assert entropy - 1e-6 <= bits
    # One normal for two ends of the range spreads over all that lies between.
    assert bits < entropy + (0.25 if kind == "made" else 6)


@pytest.mark.parametrize("kind", ["made", "pixelcnn"])
def test_held_out_images_correct_the_widths(kind: str) -> None:
    """After few steps conditionals are as good as normal, and the levels are not: most are 128."""
    random = np.random.default_rng(5)
    pixels = random.integers(0, 256, (800, 4, 4, 1), dtype=np.uint8)
    pixels[random.random(pixels.shape) < 0.6] = 128
    pixels, other = pixels[:600], pixels[600:]
    options = settings(kind, steps=30, validation=0.3)
    plain = fit_images(pixels, replace(options, recalibrate=False))
    model = fit_images(pixels, options)
    assert isinstance(plain.density, ARCSM) and plain.density.recalibration is None
    assert isinstance(model.density, ARCSM) and model.density.recalibration is not None
    assert model.settings.recalibrate and not plain.settings.recalibrate
    assert model.bits_per_dim(other).mean() < plain.bits_per_dim(other).mean() - 0.1
    assert all(finding.good for finding in check_alone(model))


def test_nothing_held_out_corrects_nothing() -> None:
    model = fit_images(pictures(20), settings("made"))
    assert isinstance(model.density, ARCSM) and model.density.recalibration is None


def weights(model: Any) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in model.density.state_dict().items()}


@pytest.mark.parametrize("kind", ["made", "pixelcnn", "made-likelihood", "paper", "staged"])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(kind: str, tmp_path: Path) -> None:
    pixels = pictures(40, channels=3)
    steps = 20 if kind == "staged" else 6
    options = settings(kind, steps=steps, evaluate_every=2)
    whole = fit_images(pixels, options)
    told: list[int] = []

    def interrupt(progress: Progress) -> None:
        told.append(progress.step)
        if len(told) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_images(pixels, options, directory=tmp_path / "run", progress=interrupt)
    resumed = fit_images(pixels, options, directory=tmp_path / "run", resume=True)
    assert told == [2, 4, 6] and weights(resumed) == weights(whole)
    assert resumed.history is not None and whole.history is not None
    untimed = replace(resumed.history, seconds=whole.history.seconds)
    assert untimed == whole.history and len(whole.history.training) == steps // 2


def test_other_images_cannot_resume_a_run(tmp_path: Path) -> None:
    fit_images(pictures(40), settings("made"), directory=tmp_path / "run")
    with pytest.raises(ArcsmError, match="other data"):
        fit_images(255 - pictures(40), settings("made"), directory=tmp_path / "run", resume=True)
    with pytest.raises(ArcsmError, match="other data"):  # the same, but mirrored at random no more
        options = settings("made", flips=False)
        fit_images(pictures(40), options, directory=tmp_path / "run", resume=True)


def test_a_seed_gives_the_same_weights_and_another_one_others() -> None:
    pixels = pictures(20)
    one, again = (fit_images(pixels, settings("made", seed=3)) for _ in range(2))
    other = fit_images(pixels, settings("made", seed=4))
    assert weights(one) == weights(again) != weights(other)


def test_stages_are_told_of_as_one_training() -> None:
    told: list[Progress] = []
    options = settings("staged", steps=20, evaluate_every=2, validation=0.2)
    model = fit_images(pictures(40), options, progress=told.append)
    assert isinstance(model.density, StagedARCSM) and len(model.density.stages) == 10
    assert [state.step for state in told] == list(range(2, 21, 2))
    assert [state.done for state in told] == pytest.approx([i / 10 for i in range(1, 11)])
    assert all(one.seconds <= other.seconds for one, other in itertools.pairwise(told))
    history = model.history
    assert history is not None and history.steps == history.best_step == 20
    for curve in (history.training, history.validation):
        assert [step for step, _ in curve] == list(range(2, 21, 2))
    assert [loss for _, loss in history.training] == [state.loss for state in told]


def test_units_are_those_of_all_pixels_together() -> None:
    pixels = pictures(50)
    values = pixels / 255
    for kind in ("made", "made-likelihood"):
        density = fit_images(pixels, settings(kind)).density
        assert isinstance(density, ARCSM | MixtureMADE)
        np.testing.assert_allclose(density.shift.numpy(), values.mean(), rtol=1e-5)
        np.testing.assert_allclose(density.scale.numpy(), values.std(), rtol=1e-5)


@pytest.mark.parametrize("noise", ["fine", "paper"])
def test_the_deviation_is_that_of_what_is_trained_on(noise: str) -> None:
    pixels = pictures(500)
    found = _deviation(pixels, ImageSettings(noise=noise))
    random = np.random.default_rng(0)
    expected = (pixels + random.uniform(size=pixels.shape)) / 256 if noise == "paper" else None
    expected = pixels / 255 if expected is None else expected
    assert found == pytest.approx(expected.std(), rel=1e-3 if noise == "paper" else 1e-9)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("made", PixelCells()),
        ("pixelcnn", PixelCells()),
        ("made-likelihood", WholeLevels()),
        ("pixelcnn-likelihood", None),
        ("paper", None),
    ],
)
def test_targets_are_spread_as_the_loss_wants(
    kind: str, rule: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    fit = fitting.fit

    def spy(*args: Any, **options: Any) -> Any:
        seen.append(options)
        return fit(*args, **options)

    monkeypatch.setattr(fitting, "fit", spy)
    fit_images(pictures(20), settings(kind))
    assert seen[0]["spread"] == rule and seen[0]["augment"] == Flips((4, 4, 1))


def test_stages_train_on_mirrored_images_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[Any] = []
    fit = arcsm.train.staged.fit

    def spy(density: Any, rows: torch.Tensor, *args: Any, **options: Any) -> Any:
        changes.append(options["augment"])
        np.testing.assert_array_equal(to_pixels(rows, (4, 4, 1)), pixels)
        return fit(density, rows, *args, **options)

    monkeypatch.setattr(arcsm.train.staged, "fit", spy)
    pixels = pictures(20)
    for flips in (True, False):
        fit_images(pixels, settings("staged", flips=flips))
    assert changes == [Flips((4, 4, 1))] * 10 + [None] * 10
    changes.clear()
    fit_images(pixels, settings("staged", flips=True, upside_down=True))
    fit_images(pixels, settings("staged", flips=False, upside_down=True))
    assert changes == [Flips((4, 4, 1), (0, 1))] * 10 + [Flips((4, 4, 1), (0,))] * 10


def test_names_of_sets_decide_what_is_left_open() -> None:
    digits = Images(pictures(20), None, "mnist", "train")
    model = fit_images(digits, settings("paper"), prepared={"size": 4})
    assert model.name == "mnist" and model.settings.flips is False
    assert model.settings.langevin_steps == 20 and model.prepared == {"size": 4}


@pytest.mark.parametrize(
    ("images", "named"),
    [
        (pictures(1), "at least two images"),
        (pictures(4, channels=2), "got 2"),
        (np.full((4, 4, 4, 1), 7, np.uint8), "got 7 everywhere"),
        (pictures(4).astype(float), "uint8"),
    ],
)
def test_images_that_teach_nothing_are_refused(images: np.ndarray, named: str) -> None:
    with pytest.raises(InputError, match=named):
        fit_images(images, settings("made"))


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.device_count() > 7:
        pytest.skip("there are more GPUs than it takes")
    with pytest.raises(InputError, match=r"'cuda:7'.*use cpu"):
        fit_images(pictures(4), settings("made"), device="cuda:7")


@pytest.mark.parametrize("kind", ["made", "pixelcnn-likelihood"])
def test_a_batch_that_fits_is_named_where_memory_is_wanting(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    density = type(fit_images(pictures(4), settings(kind, steps=1)).density)
    loss_terms, tried = density.loss_terms, []

    def with_little_memory(self: Any, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        tried.append(len(x))
        if len(x) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return loss_terms(self, x, *args, **options)

    monkeypatch.setattr(density, "loss_terms", with_little_memory)
    with pytest.raises(ArcsmError, match=r"batches of 16 images, .* batch=4 would fit") as caught:
        fit_images(pictures(40), settings(kind))
    assert tried == [16, 8, 4] and not isinstance(caught.value, InputError)
    monkeypatch.setattr(density, "loss_terms", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(ArcsmError, match="one image at a time"):
        fit_images(pictures(40), settings(kind))


@pytest.mark.parametrize("kind", ["pixelcnn", "pixelcnn-likelihood"])
def test_what_cannot_fit_into_memory_is_refused_before_it_is_tried(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_room(share: float) -> None:
        room = int(4 * numbers * share)
        monkeypatch.setattr("arcsm.images.memory._available", lambda _: room)

    density: Any = fit_images(pictures(40), settings(kind)).density
    likelihood = kind == "pixelcnn-likelihood"
    numbers = density.streams.numbers_per_image if likelihood else density.context.numbers_per_row
    with_room(16 * 3)
    fit_images(pictures(40), settings(kind))
    monkeypatch.setattr(type(density), "loss_terms", None)  # not even tried
    with_room(16 * 3 - 0.1)
    with pytest.raises(ArcsmError, match=r"batches of 16 images, .* batch=5 would fit"):
        fit_images(pictures(40), settings(kind))
    with_room(2.9)
    with pytest.raises(ArcsmError, match=r"one image at a time .* size=64, to make them smaller"):
        fit_images(pictures(40), settings(kind))


def test_a_made_that_is_larger_than_memory_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    room = 7 * 4 * (16 * 48 + 48 * 48 + 48 * 16 * 16)
    monkeypatch.setattr("arcsm.images.memory._available", lambda _: room)
    fit_images(pictures(4), settings("made", steps=1))
    monkeypatch.setattr("arcsm.images.memory._available", lambda _: room - 1)
    monkeypatch.setattr("arcsm.images.fitting.build_density", None)
    with pytest.raises(ArcsmError, match=r"weights of the network, at least 15,360, .* PixelCNN"):
        fit_images(pictures(4), settings("made", steps=1))


def test_the_memory_of_this_machine_is_known_where_linux_tells_it() -> None:
    room = _available("cpu")
    assert room is None or 2**20 < room < 2**50
    assert (room is not None) == Path("/proc/meminfo").exists()
    assert _available("meta") is None


def test_pictures_that_are_called_as_a_set_are_no_set() -> None:
    models = {
        part: fit_images(Images(pictures(20), None, "mnist", part), settings("paper"))
        for part in ("train", "all")
    }
    found = {part: model.settings for part, model in models.items()}
    assert (found["train"].flips, found["train"].langevin_steps) == (False, 20)
    assert (found["all"].flips, found["all"].langevin_steps) == (True, 10)
    first = {part: model.density.noise.sigma_max for part, model in models.items()}
    assert first["train"] == pytest.approx(5 * first["all"], rel=1e-6)
    assert models["all"].name == "mnist"


def test_other_errors_are_not_taken_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("shapes do not match")

    loss_terms = ARCSM.loss_terms

    def broken_at_16(self: ARCSM, x: torch.Tensor, *args: Any, **options: Any) -> Any:
        return (broken if len(x) == 16 else loss_terms)(self, x, *args, **options)

    monkeypatch.setattr(ARCSM, "loss_terms", broken_at_16)
    with pytest.raises(RuntimeError, match="shapes"):
        fit_images(pictures(40), settings("made"))
    with pytest.raises(RuntimeError, match="shapes"):
        largest_batch(broken, 8)


class Writer:
    """What TensorBoard's writer is asked for."""

    def __init__(self, folder: str):
        self.folder, self.scalars, self.images = folder, [], []
        self.closed = False
        WRITERS.append(self)

    scalars: list[tuple[str, float, int]]
    images: list[tuple[tuple[int, ...], int]]

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def add_images(self, name: str, images: np.ndarray, step: int, dataformats: str) -> None:
        assert dataformats == "NHWC"
        self.images.append((images.shape, step))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


WRITERS: list[Writer] = []


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> list[Writer]:
    monkeypatch.setattr(tracking, "_summary_writer", lambda: Writer)
    WRITERS.clear()
    return WRITERS


@pytest.mark.parametrize("kind", ["made", "staged"])
def test_curves_and_samples_are_tracked(kind: str, writers: list[Writer], tmp_path: Path) -> None:
    options = settings(kind, steps=20, evaluate_every=10, validation=0.2)
    plain = fit_images(pictures(40), options)
    tracked = fit_images(pictures(40), options, track=tmp_path / "runs")
    assert weights(tracked) == weights(plain)  # images that are drawn change nothing
    (writer,) = writers
    assert writer.folder == str(tmp_path / "runs") and writer.closed
    history = tracked.history
    assert history is not None
    losses = [(value, step) for name, value, step in writer.scalars if name == "loss/training"]
    assert losses == [(loss, step) for step, loss in history.training]
    held_out = [(value, step) for name, value, step in writer.scalars if name == "loss/held out"]
    assert held_out == [(loss, step) for step, loss in history.validation]
    if kind == "staged":  # a stage alone cannot draw
        assert writer.images == []
    else:
        assert writer.images[0] == ((16, 4, 4, 1), 10)


def test_samples_take_a_tenth_of_the_time(writers: list[Writer], tmp_path: Path) -> None:
    times = iter(range(0, 1000, 3))  # every grid takes 3 seconds
    draw = lambda: np.zeros((16, 4, 4, 1), np.uint8)  # noqa: E731
    tracker = Tracker(tmp_path, draw, clock=lambda: float(next(times)))
    for second in range(1, 101):
        tracker(Progress(second, 100, 0.0, None, float(second), second / 100))
    # Of 3, 6, 9 … seconds a tenth of the time that has passed.
    assert [step for _, step in writers[0].images] == [1, 60, 90]


def test_tracking_without_tensorboard_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'arcsm\[track\]'"):
        fit_images(pictures(4), settings("made"), track=tmp_path / "runs")


def test_kinds_are_all_trained_by_fit() -> None:
    # Half precision of the context network: of every kind, as on a GPU.
    for kind in KINDS:
        steps = 10 if kind == "staged" else 1
        model = fit_images(pictures(8), settings(kind, steps=steps, bfloat16=True))
        assert all(value.isfinite().all() for value in model.density.state_dict().values()), kind
