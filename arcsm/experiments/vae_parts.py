"""What the experiment on VAEs is made of: images, networks, a trained stack, and its pictures."""

import hashlib
import json
import math
import statistics
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from arcsm.data.images import Images
from arcsm.data.images.places import user_cache
from arcsm.errors import InputError
from arcsm.experiments.experiment import Piece, Settings
from arcsm.experiments.image_parts import DATA, load_data, load_features, to_png
from arcsm.experiments.vae_budgets import CONTROL
from arcsm.files import write_json
from arcsm.plots.pictures import picture_grid
from arcsm.vae import (
    ESTIMATORS,
    AISSettings,
    BernoulliDecoder,
    BinaryImages,
    ConvolutionalBody,
    ConvolutionalDecoder,
    Decoder,
    Encoder,
    EntropyEstimator,
    FreeEncoder,
    GaussianEncoder,
    ImageSource,
    ImplicitEncoder,
    ScaledImages,
    VAESettings,
    VAEStack,
    ais,
    binarise,
    importance_bounds,
    make_estimator,
    normal_proposal,
    reverse_ais,
)

_COLUMNS = 8
# Draws of each validation image that are looked at together.
_DRAWS_AT_ONCE = 10
# Columns of a traversal: normal quantiles from 5 % to 95 %.
_TRAVERSAL = 9
_ENCODERS: dict[str, type[Encoder]] = {
    "elbo": GaussianEncoder,
    "stein": FreeEncoder,
    "spectral": FreeEncoder,
    "ssm": FreeEncoder,
    "ssm-ar": ImplicitEncoder,
    "csm": ImplicitEncoder,
    CONTROL: ImplicitEncoder,
}
# Of the states that are kept: another one where those of older code are not to be gone on with.
_STATE_VERSION = 10


class Pictures:
    """Training, validation and test images of a set, as its likelihood needs them."""

    def __init__(self, settings: Settings, data: str):
        train, test = load_data(settings["sources"][data])
        held_out = settings["validation_images"]
        if len(train) <= held_out:
            raise InputError(
                f"expected more than {held_out} training images of {data}, got {len(train)};"
                " fetch the whole set"
            )
        self.data, self.train, self.test = data, train, test
        self.binary = data == "mnist"
        self.shape = train.shape
        levels = self._levels(train)
        kind = BinaryImages if self.binary else ScaledImages
        self.source: ImageSource = kind(levels[:-held_out].contiguous())
        self.validation = self._fixed(levels[-held_out:], 1)
        self.observed = self._fixed(self._levels(test), 0)

    def _levels(self, images: Images) -> Tensor:
        pixels = torch.from_numpy(np.ascontiguousarray(images.pixels))
        return pixels.flatten(1) if self.binary else pixels.movedim(-1, 1).contiguous()

    def _fixed(self, levels: Tensor, seed: int) -> Tensor:
        if self.binary:
            return binarise(levels, generator=torch.Generator().manual_seed(seed))
        return levels.float() / 127.5 - 1

    def to_pixels(self, means: Tensor) -> np.ndarray:
        """Return images that a decoder shows, as bytes (n, height, width, channels)."""
        height, width, channels = self.shape
        share = means if self.binary else (means + 1) / 2
        levels = (share.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
        if self.binary:
            return levels.view(-1, height, width, channels).numpy()
        return levels.view(-1, channels, height, width).movedim(1, -1).contiguous().numpy()


def title_of(data: str, latent: int) -> str:
    """Return the name of a table for readers."""
    return f"{DATA[data]}, {latent} latents"


def settings_of(settings: Settings, data: str, left_out: Collection[str]) -> dict[str, Any]:
    """Return what is said of one of the sets, and of all of them, but for some."""
    common = {key: value for key, value in settings.items() if key not in left_out}
    return common | {key: settings[key][data] for key in ("sources", "training")}


def settings_for(settings: Settings, method: str) -> dict[str, Any]:
    """Return settings of one set with what is said of a method in the place of that of all."""
    estimator, training = estimator_of(method), settings["training"]
    own = {key: settings[key].get(estimator) for key in ("particles", "score_layers")}
    rate = training["score_learning_rate"].get(estimator)
    return {**settings, **own, "training": {**training, "score_learning_rate": rate}}


def check_pieces(settings: Settings, pieces: Sequence[Piece]) -> None:
    """Refuse pieces whose images, or the network of FID for them, are not there."""
    for data in dict.fromkeys(piece.labels["data"] for piece in pieces):
        if not Pictures(settings, data).binary:
            load_features(settings, "cpu")


def seeds_together(settings: Settings, data: str) -> Sequence[Sequence[int]]:
    """Return the seeds of the runs on a set, those together that are trained side by side.

    Convolutions gain nothing by being done side by side.
    """
    return [settings["seeds"]] if data == "mnist" else [[one] for one in settings["celeba_seeds"]]


def make_parts(
    settings: Settings, method: str, latent: int, shape: tuple[int, int, int], binary: bool
) -> tuple[Encoder, Decoder, EntropyEstimator]:
    """Return encoder, decoder and estimator; decoders are the same for all methods."""
    kind, estimator = _ENCODERS[method], estimator_of(method)
    side, _, channels = shape
    decoder: Decoder
    if binary:
        pixels = math.prod(shape)
        decoder = BernoulliDecoder(latent, pixels, hidden=settings["hidden"])
        features, body = pixels, None
    else:
        decoder = ConvolutionalDecoder(latent, channels, width=settings["width"], side=side)
        body = ConvolutionalBody(channels, width=settings["width"], side=side)
        features = body.features
    encoder = kind(latent, features, hidden=settings["hidden"], body=body)
    options = {}
    if ESTIMATORS[estimator].learns:
        options = {"width": settings["score_width"], "layers": settings["score_layers"][estimator]}
    return encoder, decoder, make_estimator(estimator, encoder, features, **options)


def estimator_of(method: str) -> str:
    """Return the name of the estimator that a method takes."""
    return "ssm" if method == CONTROL else method


def make_stack(
    settings: Settings,
    pictures: Pictures,
    method: str,
    latent: int,
    seeds: Sequence[int],
    device: str,
) -> VAEStack:
    """Return the runs of a method, one for each seed, before their first step."""
    training, estimator = dict(settings["training"][pictures.data]), estimator_of(method)
    score_rates = training.pop("score_learning_rate")
    told = VAESettings(
        method=estimator,
        particles=settings["particles"].get(estimator, training["decoded"]),
        score_learning_rate=score_rates.get(estimator, 2e-4),
        score_updates=settings["score_updates"],
        head_start=settings["head_start"],
        scores_before=settings["scores_before"],
        average=settings["average"],
        decay=settings["decay"],
        compile=settings["compile"],
        tf32=settings["tf32"],
        **training,
    )
    make = partial(make_parts, settings, method, latent, pictures.shape, pictures.binary)
    return VAEStack(make, pictures.source, told, seeds=seeds, device=device)


def train_stack(
    settings: Settings,
    pictures: Pictures,
    stack: VAEStack,
    folder: Path,
    progress: Callable[[float], None],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Train the runs of a stack; return their curves with bounds on validation images.

    The state is kept in the folder, that of the end as well, and what is there is gone on with: of
    a run that was interrupted the rest, of a finished one nothing is trained.
    """
    validation = pictures.validation.to(stack.device)
    bounds: dict[int, list[list[float]]] = {}
    path = folder / "bounds.json"
    if path.exists() and (folder / "vae.safetensors").exists():
        bounds = {int(step): value for step, value in json.loads(path.read_text()).items()}

    def look(stack: VAEStack) -> None:
        found = [
            bounds_of(*stack.run(i), validation, settings["validation_draws"])
            for i in range(len(stack.seeds))
        ]
        bounds[stack.step] = found
        write_json(path, {str(step): value for step, value in bounds.items()})
        means = (statistics.mean(one[i] for one in found) for i in range(2))
        tell("ELBO {:.2f}, IWAE {:.2f}".format(*means))
        progress(stack.step / stack.settings.steps)

    curve = stack.train(folder=folder, save_seconds=settings["save_seconds"], progress=look)
    return {
        "step": curve.step,
        "seconds": curve.seconds,
        "loss": curve.loss,
        "score_loss": curve.score_loss,
        "elbo": [[one[0] for one in bounds.get(step, [])] for step in curve.step],
        "iwae": [[one[1] for one in bounds.get(step, [])] for step in curve.step],
    }


def bounds_of(encoder: Encoder, decoder: Decoder, x: Tensor, samples: int) -> list[float]:
    """Return the mean ELBO and IWAE bound of images, with a normal proposal for every encoder."""
    generator = torch.Generator(x.device).manual_seed(0)
    proposal = normal_proposal(encoder, x, draws=64, generator=generator)
    # A few draws at a time: those of large images would fill a GPU that several runs share.
    found = importance_bounds(
        decoder, x, proposal, samples=samples, at_once=_DRAWS_AT_ONCE, generator=generator
    )
    return [found.elbo.mean().item(), found.iwae.mean().item()]


def measure_likelihood(
    settings: Settings,
    pictures: Pictures,
    encoder: Encoder,
    decoder: Decoder,
    device: str,
    progress: Callable[[float], None],
) -> dict[str, Any]:
    """Return −log p of test images by AIS and by IWAE, and the gap of AIS on simulated images."""
    generator = torch.Generator(device).manual_seed(0)
    told = AISSettings(**settings["ais"])
    observed = pictures.observed.to(device)
    some = observed[: settings["ais_images"]]
    with warnings.catch_warnings():  # chains that are stuck are counted
        warnings.simplefilter("ignore", UserWarning)
        found = [
            ais(decoder, x, told, generator=generator, progress=progress)
            for x in some.split(settings["ais_batch"])
        ]
        z = torch.randn(
            settings["simulated_images"], decoder.dims, generator=generator, device=device
        )
        with torch.no_grad():
            simulated = decoder.sample(z, generator=generator)
        few = replace(told, compile=False)  # for these it would take longer than they do
        lower = ais(decoder, simulated, few, generator=generator)
        upper = reverse_ais(decoder, simulated, z, few, generator=generator)
    bounds = []
    for x in observed.split(settings["iwae_batch"]):
        proposal = normal_proposal(encoder, x, generator=generator)
        samples = settings["iwae_samples"]
        bounds.append(importance_bounds(decoder, x, proposal, samples=samples, generator=generator))
    logs = torch.cat([one.log_likelihood for one in found])
    return {
        "ais": -logs.mean().item(),
        "ais_images": len(logs),
        "acceptance": torch.cat([one.acceptance for one in found]).mean().item(),
        "stuck": int(torch.cat([one.stuck for one in found]).sum()),
        "gap": (upper.log_likelihood - lower.log_likelihood).mean().item(),
        "iwae": -torch.cat([one.iwae for one in bounds]).mean().item(),
        "elbo": -torch.cat([one.elbo for one in bounds]).mean().item(),
        "iwae_images": len(observed),
    }


@torch.no_grad()
def draw_pictures(
    pictures: Pictures, encoder: Encoder, decoder: Decoder, device: str
) -> dict[str, str]:
    """Return grids, as PNG in base 64: samples, reconstructions, and walks along latents.

    Reconstructions stand below their originals where these may be shown: those of CelebA may not.
    """
    generator = torch.Generator(device).manual_seed(0)
    dims, enlarge = decoder.dims, max(1, 32 // pictures.shape[0])
    # Pictures in colour take more room in a record.
    shown = _COLUMNS**2 if pictures.binary else _COLUMNS**2 // 2
    z = torch.randn(shown, dims, generator=generator, device=device)
    x = pictures.observed[: 2 * _COLUMNS].to(device)
    eps = torch.randn(1, len(x), dims, generator=generator, device=device)
    again = decoder.means(encoder(x, eps)[0])
    if pictures.binary:
        rows = zip(x.split(_COLUMNS), again.split(_COLUMNS), strict=True)
        again = torch.cat([part for pair in rows for part in pair])
    middle = torch.linspace(0.05, 0.95, _TRAVERSAL, device=device)
    walked = walked_latents(dims, binary=pictures.binary)
    walk = torch.zeros(walked, _TRAVERSAL, dims, device=device)
    for d in range(walked):
        walk[d, :, d] = torch.special.ndtri(middle)

    def grid(means: Tensor, columns: int) -> str:
        pixels = pictures.to_pixels(means)
        return to_png(picture_grid(pixels, columns=columns, enlarge=enlarge, gap=1))

    return {
        "samples": grid(decoder.means(z), _COLUMNS),
        "reconstructions": grid(again, _COLUMNS),
        "traversal": grid(decoder.means(walk.flatten(0, 1)), _TRAVERSAL),
    }


def walked_latents(dims: int, *, binary: bool) -> int:
    """Return along how many latents, the first ones, pictures walk."""
    return min(dims, _COLUMNS if binary else _COLUMNS // 2)


@torch.no_grad()
def draw_samples(
    pictures: Pictures, decoder: Decoder, count: int, seed: int, device: str
) -> np.ndarray:
    """Return means of latents drawn from the prior, as bytes."""
    generator = torch.Generator(device).manual_seed(seed)
    drawn = []
    for first in range(0, count, 500):
        size = (min(500, count - first), decoder.dims)
        z = torch.randn(size, generator=generator, device=device)
        drawn.append(pictures.to_pixels(decoder.means(z)))
    return np.concatenate(drawn)


def state_folder(piece: Piece, device: str) -> Path:
    """Return where the state of the runs of a piece is kept, in the cache of the user."""
    about = [piece.depends_on, torch.device(device).type, _STATE_VERSION]
    text = json.dumps(about, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return user_cache() / "arcsm" / "vae" / digest


@contextmanager
def alone_with(folder: Path, piece: Piece) -> Iterator[None]:
    """Keep other processes from the state of a piece; refuse where one is at work with it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(
            f"expected no other process at work on {piece.name}, got one that holds"
            f" {lock.lock_file!r}: its state would be written over; wait until it is finished, or"
            " choose other pieces"
        ) from error
    try:
        yield
    finally:
        lock.release()
