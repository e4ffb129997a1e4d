"""Training of VAEs: several runs of one method side by side, each step one graph on a GPU.

A step draws images, latents from the encoder, lets the score estimator learn from the latents
(detached), and then moves encoder and decoder up the gradient of

    E[log p(x|z) + log p(z)] + entropy surrogate.

The runs of a stack differ in their seeds alone. On a GPU a step is captured once and replayed:
images, weights and the states of the optimisers stay where they are, and nothing is asked of the
host. What cannot be captured, eigenvectors for instance, runs step by step.
"""

import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arcsm.autoregressive import seeded
from arcsm.devices import check_device
from arcsm.errors import InputError, NonFiniteLossError
from arcsm.vae.data import ImageSource
from arcsm.vae.decoders import Decoder, log_prior
from arcsm.vae.encoders import Encoder, normal_entropy
from arcsm.vae.estimators import ESTIMATORS, EntropyEstimator, centred, diverged
from arcsm.vae.settings import Curve, VAESettings
from arcsm.vae.stack import ModuleStack
from arcsm.vae.state import load_run, save_run

# Steps taken one by one before one is captured: the first ones allocate and choose kernels.
_WARM_UP = 3
# What the host has to look at in the middle cannot be captured.
_UNCAPTURED = ("spectral",)


Parts = Callable[[], tuple[Encoder, Decoder, EntropyEstimator]]


class Drawn(NamedTuple):
    """Latents of a step, with what they come from; all with a first axis of runs."""

    features: Tensor
    z: Tensor
    mean: Tensor
    log_scale: Tensor


class VAEStack:
    """Runs of one method side by side, from the seeds that their weights are drawn from."""

    def __init__(
        self,
        make: Parts,
        source: ImageSource,
        settings: VAESettings,
        *,
        seeds: Sequence[int],
        device: str = "cpu",
    ):
        check_device(device)
        if not seeds:
            raise InputError("expected at least one seed, got none; each run has one")
        self.settings, self.source, self.seeds = settings, source.to(device), tuple(seeds)
        self.device = torch.device(device)
        members = []
        for seed in seeds:
            with seeded(seed):
                members.append(make())
        encoders, decoders, estimators = zip(*members, strict=True)
        _check_method(estimators[0], settings)
        self.encoders = ModuleStack(encoders, device)
        self.decoders = ModuleStack(decoders, device)
        self._estimator = estimators[0]
        self.fields = ModuleStack(estimators, device) if estimators[0].learns else None
        self._seed = hash(tuple(seeds)) % 2**31
        self.generator = torch.Generator(self.device).manual_seed(self._seed)
        on_gpu = self.device.type == "cuda"
        self._weights = [*self.encoders.parameters.values(), *self.decoders.parameters.values()]
        # RMSProp, but that its first steps are no ten times as long as later ones: Adam without
        # momentum.
        self._optimizer = _adam(self._weights, settings.learning_rate, (0.0, 0.99), on_gpu)
        self._score_optimizer: torch.optim.Optimizer | None = None
        if self.fields is not None:
            weights = list(self.fields.parameters.values())
            self._score_optimizer = _adam(
                weights, settings.score_learning_rate, (0.9, 0.99), on_gpu
            )
        runs = len(seeds)
        self.step, self.seconds, self.curve = 0, 0.0, Curve()
        self._counter = torch.zeros((), dtype=torch.long, device=device)
        self._totals = torch.zeros(2, runs, device=device)
        # The first step at which the estimator, or the autoencoder, was not finite, for each run.
        self._bad = torch.full((2, runs), -1, dtype=torch.long, device=device)
        self._side = torch.cuda.Stream(device) if on_gpu and self.fields is not None else None
        if settings.compile:
            for name in ("_encode", "_log_joint", "_score_losses", "_scores"):
                setattr(self, name, torch.compile(getattr(self, name), dynamic=False))
        # Whether steps are replayed as a graph; known for certain after the first few.
        self.captured = on_gpu and settings.capture and settings.method not in _UNCAPTURED
        self._graph: torch.cuda.CUDAGraph | None = None
        self._taken = 0

    def train(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        save_seconds: float = 60.0,
        progress: Callable[["VAEStack"], None] | None = None,
    ) -> Curve:
        """Train to the last step; with a folder, from where a former run of it has stopped."""
        path = None if folder is None else Path(folder) / "vae.safetensors"
        if path is not None and path.exists():
            load_run(self, path)
        began, saved = time.monotonic() - self.seconds, time.monotonic()
        if self.step == 0 and self.fields is not None:
            for _ in range(self.settings.head_start):
                self._learn_from_fresh_latents(self._draw())
            self._totals.zero_()
        while self.step < self.settings.steps:
            self.advance()
            if self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps:
                self._record(time.monotonic() - began)
                if progress is not None:
                    progress(self)
                if path is not None and time.monotonic() - saved > save_seconds:
                    save_run(self, path)
                    saved = time.monotonic()
        return self.curve

    def advance(self) -> None:
        """Take a step: as a graph, once that is captured."""
        if not self.captured:
            self.take_step()
        elif self._graph is not None:
            self._graph.replay()
        elif self._taken < _WARM_UP:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.take_step()
            torch.cuda.current_stream().wait_stream(stream)
            self._taken += 1
        else:
            self._capture()
        self.step += 1

    def _capture(self) -> None:
        """Capture a step and take it; if the device cannot, go on step by step."""
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        try:
            with torch.cuda.graph(graph):
                self.take_step()
        except RuntimeError as error:
            torch.cuda.synchronize()
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"a step cannot be captured as a graph: {reason}", stacklevel=4)
            self.captured = False
            # The former one may believe that it is still being captured.
            self.generator = torch.Generator(self.device).manual_seed(self._seed + self.step)
            self.take_step()
        else:
            self._graph = graph
            graph.replay()  # while it was captured, nothing was done

    def take_step(self) -> None:
        """Do the work of one step on the device; nothing here waits for it."""
        self._counter += 1
        x = self._draw()
        drawn = self._encode(x, self._noise())
        z = drawn.z
        scores = None
        if self.fields is not None:
            noise = self._noise()
            with self._beside():
                scores, ready = self._teach(x, Drawn(*(part.detach() for part in drawn)), noise)
            log_joint = self._log_joint(x, z)  # meanwhile
            self._wait(ready)
            scores = centred(scores)
        else:
            log_joint = self._log_joint(x, z)
            if self.settings.method != "elbo":  # by kernels: further axes may stand in front
                with torch.no_grad():
                    scores = self._estimator.scores(z)
        if scores is None:
            surrogate = normal_entropy(drawn.log_scale).mean(-1)
        else:
            surrogate = -(scores * z).sum(-1).mean((-2, -1))
        self._descend(1, -log_joint - surrogate, self._optimizer, self._weights)
        if self._side is not None:  # until then all that it reads is kept
            torch.cuda.current_stream().wait_stream(self._side)

    def _encode(self, x: Tensor, eps: Tensor) -> "Drawn":
        """Return features of x, latents, and the units of the encoders."""
        features = self.encoders.call("features", x)
        return Drawn(features, *self.encoders.call("latents_and_units", features, eps))

    def _log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """Return E log p(x, z) of each run."""
        shown = z[:, : self.settings.decoded]
        return (self.decoders.call("log_prob", x, shown) + log_prior(shown)).mean((-2, -1))

    def _teach(
        self, x: Tensor, drawn: "Drawn", noise: Tensor
    ) -> tuple[Tensor, "torch.cuda.Event | None"]:
        """Let the score estimators learn from latents; return scores at them, and when they are."""
        losses, scores = self._score_losses(drawn, noise)
        before = self.settings.scores_before
        # What is learned then need not be waited for, unless it is from latents of further passes:
        # the encoder must not move under them.
        ready = self._mark() if before and self.settings.score_updates == 1 else None
        self._learn(losses)
        for _ in range(self.settings.score_updates - 1):
            self._learn_from_fresh_latents(x)
        if not before:
            with torch.no_grad():
                scores = self._scores(drawn)
        return scores, ready or self._mark()

    def _learn_from_fresh_latents(self, x: Tensor) -> None:
        with torch.no_grad():
            drawn = self._encode(x, self._noise())
        self._learn(self._score_losses(drawn, self._noise())[0])

    def _learn(self, losses: Tensor) -> None:
        assert self.fields is not None and self._score_optimizer is not None
        self._descend(0, losses, self._score_optimizer, list(self.fields.parameters.values()))

    def _score_losses(self, drawn: "Drawn", noise: Tensor) -> tuple[Tensor, Tensor]:
        assert self.fields is not None
        features, z, *units = drawn
        losses, scores = self.fields.call("loss_and_scores", z, features, noise, *units)
        return losses, scores

    def _scores(self, drawn: "Drawn") -> Tensor:
        assert self.fields is not None
        features, z, *units = drawn
        return self.fields.call("scores_in", z, features, *units)

    def _beside(self) -> AbstractContextManager[Any]:
        """Return where scores are learned: beside the decoder, on another stream of a GPU."""
        if self._side is None:
            return nullcontext()
        self._side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._side)

    def _mark(self) -> "torch.cuda.Event | None":
        return None if self._side is None else self._side.record_event()

    def _wait(self, ready: "torch.cuda.Event | None") -> None:
        if ready is not None:
            torch.cuda.current_stream().wait_event(ready)

    def _draw(self) -> Tensor:
        return self.source.draw(len(self.seeds), self.settings.batch, self.generator)

    def _noise(self) -> Tensor:
        settings = self.settings
        shape = (len(self.seeds), settings.particles, settings.batch, self._estimator.dims)
        return torch.randn(shape, generator=self.generator, device=self.device)

    def _descend(
        self, kind: int, losses: Tensor, optimizer: torch.optim.Optimizer, weights: list[Tensor]
    ) -> None:
        gradients = torch.autograd.grad(losses.sum(), weights)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
        losses = losses.detach()
        self._totals[kind] += losses
        bad = ~losses.isfinite() & (self._bad[kind] < 0)
        self._bad[kind] = torch.where(bad, self._counter, self._bad[kind])

    def _record(self, seconds: float) -> None:
        """Look at what the steps since the last time have left; refuse to go on from NaN."""
        for kind, what in enumerate((diverged, _autoencoder_diverged)):
            steps = [step for step in self._bad[kind].tolist() if step >= 0]
            if steps:
                raise what(ESTIMATORS[self.settings.method].name, min(steps))
        count = self.step - (self.curve.step[-1] if self.curve.step else 0)
        score, loss = (self._totals / count).tolist()
        self._totals.zero_()
        self.seconds = seconds
        self.curve.step.append(self.step)
        self.curve.seconds.append(seconds)
        self.curve.loss.append(loss)
        updates = self.settings.score_updates
        self.curve.score_loss.append([value / updates for value in score])

    def run(self, index: int) -> tuple[Encoder, Decoder]:
        """Return encoder and decoder of one run, as modules of their own."""
        encoder, decoder = self.encoders.member(index), self.decoders.member(index)
        assert isinstance(encoder, Encoder) and isinstance(decoder, Decoder)
        return encoder, decoder

    def about(self) -> dict[str, Any]:
        """Return what a run must share with another to be gone on with."""
        settings = {
            k: v for k, v in asdict(self.settings).items() if k not in ("capture", "compile")
        }
        return {"settings": settings, "seeds": list(self.seeds), "data": self.source.digest}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimisers, that of the autoencoder first."""
        return [one for one in (self._optimizer, self._score_optimizer) if one is not None]

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that further steps depend on, but for the optimisers' and generator's.

        They are those that steps move in place.
        """
        state = {"counter": self._counter, "totals": self._totals, "bad": self._bad}
        stacks = {"encoder": self.encoders, "decoder": self.decoders, "field": self.fields}
        for name, stack in stacks.items():
            if stack is not None:
                state |= {f"{name}/{key}": value for key, value in stack.parameters.items()}
        return state


def _adam(
    weights: list[Tensor], rate: float, betas: tuple[float, float], on_gpu: bool
) -> torch.optim.Optimizer:
    how: dict[str, Any] = {"fused": True, "capturable": True} if on_gpu else {"foreach": True}
    return torch.optim.Adam(weights, lr=rate, betas=betas, **how)


def _check_method(estimator: EntropyEstimator, settings: VAESettings) -> None:
    kind = ESTIMATORS[settings.method]
    if type(estimator) is not kind:
        raise InputError(
            f"expected the estimator of {settings.method}, a {kind.__name__}, got a"
            f" {type(estimator).__name__}; let make() return it, or change the method"
        )


def _autoencoder_diverged(name: str, step: int) -> NonFiniteLossError:
    return NonFiniteLossError(
        f"the autoencoder trained by {name} diverged at step {step}: its loss is not a finite"
        " number; lower the learning rate"
    )
