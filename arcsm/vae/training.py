"""Training of VAEs: several runs of one method side by side, each step one graph on a GPU.

A step draws images, latents from the encoder, lets the score estimator learn from the latents
(detached), and then moves encoder and decoder up the gradient of

    E[log p(x|z) + log p(z)] + entropy surrogate.

Decoder and score estimator have the latents in common and nothing else, so that they go side by
side, forward and backward: what one says of ∂/∂z is added to what the other says, and both go back
through the encoder together, while the estimator already learns.

The runs of a stack differ in their seeds alone. On a GPU some steps are captured once and replayed:
images, weights and the states of the optimisers stay where they are, and nothing is asked of the
host. Eigenvectors cannot be captured: they are found between two graphs, one for what of a step is
before them and one for what is after. The networks are so small that a step takes as long as it has
kernels one after another. So what some steps need of random numbers is drawn at once, compiled
steps have far fewer kernels, and the estimator may still be learning from one step while the
encoder is at the next.
"""

import copy
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from arcsm.autoregressive import seeded
from arcsm.devices import check_device, matmul_precision, on_device
from arcsm.errors import InputError
from arcsm.replay import Replayed, ReplayedAround, compiled
from arcsm.vae.data import ImageSource
from arcsm.vae.decoders import Decoder, log_prior
from arcsm.vae.descent import Descent
from arcsm.vae.encoders import Encoder, normal_entropy
from arcsm.vae.estimators import (
    SCORE_BETAS,
    EntropyEstimator,
    LearnedEntropy,
    centred,
    make_estimator,
)
from arcsm.vae.losses import Losses
from arcsm.vae.settings import Curve, VAESettings, check_arguments, check_parts, checked_seeds
from arcsm.vae.stack import ModuleStack, check_stacks
from arcsm.vae.state import Kept

# Methods whose scores the host has a hand in: they cannot be captured.
_BY_HOST = ("spectral",)
# Steps that are captured as one graph.
_AT_ONCE = 10
# What is compiled: the backward passes of the first three are compiled with them.
_COMPILED = (
    "_encode",
    "_log_joint",
    "_score_losses",
    "_scores",
    "_pull",
    "_note",
    "_note_score",
)


Parts = Callable[[], tuple[Encoder, Decoder, EntropyEstimator]]


class Drawn(NamedTuple):
    """Latents of a step, with what they come from, detached; all with a first axis of runs."""

    features: Tensor
    z: Tensor
    mean: Tensor
    log_scale: Tensor


class Begun(NamedTuple):
    """A step that lacks nothing but scores by kernels to move the encoder, and the decoder."""

    drawn: Drawn
    z: Tensor  # of which the encoder is to learn
    entropy: Tensor | None
    log_joint: Tensor
    downhill: Tensor
    of_decoder: list[Tensor]
    scores: Tensor | None  # those that were learned
    ready: "torch.cuda.Event | None"  # after which they are there


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
        check_arguments(make, source, settings)
        self.seeds = checked_seeds(seeds)
        self.settings, self.source = settings, source.to(device)
        self.device = torch.device(device)
        members = []
        for seed in self.seeds:
            with seeded(seed):
                members.append(make())
            check_parts(members[-1], settings)
        encoders, decoders, estimators = zip(*members, strict=True)
        self.encoders = ModuleStack(encoders, device, by_particle=True)
        self.decoders = ModuleStack(decoders, device, by_particle=True)
        self._estimator = estimators[0]
        self.fields = ModuleStack(estimators, device) if estimators[0].learns else None
        self._seed = hash(self.seeds) % 2**31
        self.generator = torch.Generator(self.device).manual_seed(self._seed)
        on_gpu = self.device.type == "cuda"
        # RMSProp, but that its first steps are no ten times as long as later ones: Adam without
        # momentum.
        self._descents = [
            Descent(
                stack,
                settings.learning_rate,
                (0.0, 0.99),
                average=settings.average,
                compile=settings.compile,
            )
            for stack in (self.encoders, self.decoders)
        ]
        self._score_descent: Descent | None = None
        if self.fields is not None:
            rate = settings.score_learning_rate
            self._score_descent = Descent(self.fields, rate, SCORE_BETAS, compile=settings.compile)
        needs = self._estimator.needs_autoregressive_noise
        # Conditional scores are in units of z_d given z_<d.
        self._latents_and_units = f"latents_and_{'conditional_' if needs else ''}units"
        runs = len(self.seeds)
        needed_by = self._estimator.name if needs else None
        self.source.check_networks(*self.run(0), needed_by, self._latents_and_units)
        # From a generator of its own: the run draws what it would have drawn.
        x = self.source.draw(runs, 2, torch.Generator(self.device).manual_seed(0))
        eps = torch.zeros(runs, 1, 2, self._estimator.dims, device=self.device)
        check_stacks(self.encoders, self.decoders, x, eps, self._latents_and_units)
        self.step, self.seconds, self.curve = 0, 0.0, Curve()
        # Whether this is the state after a step, and not amid one or its record.
        self.whole = True
        self._losses = Losses(runs, device)
        self._one, self._minus_one = (torch.full((runs,), v, device=device) for v in (1.0, -1.0))
        self._side = torch.cuda.Stream(device) if on_gpu else None
        # What is still being read beside, and after what all of a step is done there.
        self._held: Begun | None = None
        self._done: torch.cuda.Event | None = None
        if settings.compile:
            for name in _COMPILED:
                setattr(self, name, compiled(getattr(self, name)))
        by_host = settings.method in _BY_HOST
        self._at_once = 1
        if on_gpu and not by_host:
            self._at_once = math.gcd(_AT_ONCE, settings.steps, settings.evaluate_every)
        # Of the steps that are taken at once, where it changes.
        self._rates = torch.zeros(self._at_once, device=device) if settings.decay else None
        shape = (runs, settings.particles, settings.batch, self._estimator.dims)
        self._scores_by_host = torch.zeros(shape if by_host else 0, device=device)
        how: dict[str, Any] = {
            "wanted": settings.capture,
            "generators": [self.generator],
            "lost": self._recover,
        }
        self._replayed = (
            ReplayedAround(self._begin_one, self._find_scores, self._finish_one, self.device, **how)
            if by_host
            else Replayed(self.take_steps, self.device, **how)
        )

    @property
    def captured(self) -> bool:
        """Whether steps are replayed as graphs; known for certain after the first few."""
        return self._replayed.captures

    def train(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        save_seconds: float = 60.0,
        progress: Callable[["VAEStack"], None] | None = None,
    ) -> Curve:
        """Train to the last step; with a folder, from where a former run of it has stopped.

        The folder is given the state every `save_seconds`, at the end, and on Ctrl-C, which waits
        for the step under way. `progress` is told of each record; a run that goes on from one is
        told of it again, as that may be what was interrupted.
        """
        last, every = self.settings.steps, self.settings.evaluate_every
        with Kept(self, folder, save_seconds) as kept:
            if kept.resumed and progress is not None and self.step in self.curve.step:
                progress(self)
            if self.step == 0 and self.fields is not None:
                with on_device(self.device), self._precision():
                    for _ in range(self.settings.head_start):
                        self._learn_from_fresh_latents(self._draw(1)[0])
                self._losses.forget()
            while self.step < last:
                with kept.undivided():
                    self.advance()
                    due = self.step % every == 0 or self.step == last
                    if due:
                        self.whole = False
                        self._record(kept.seconds)
                        self.whole = True
                if due and progress is not None:
                    progress(self)
                kept.save_if_late()
        return self.curve

    def advance(self) -> None:
        """Take a step, or some on a GPU: as a graph, once that is captured."""
        self.whole = False
        if self._rates is not None:
            rates = [self.settings.rate_at(self.step + i) for i in range(self._at_once)]
            told = torch.tensor(rates)
            if self._rates.is_cuda:  # else the host would wait for the steps before
                told = told.pin_memory()
            self._rates.copy_(told, non_blocking=True)
        with self._precision():
            self._replayed()
        self.step += self._at_once
        self.whole = True

    def _precision(self) -> AbstractContextManager[Any]:
        return matmul_precision("high" if self.settings.tf32 else None)

    def _recover(self) -> None:
        """Leave nothing of a capture that failed."""
        self._held, self._done = None, None
        self.generator = torch.Generator(self.device).manual_seed(self._seed + self.step)

    def take_steps(self) -> None:
        """Do the work of some steps on the device; nothing here waits for it."""
        images, noise = self._draw(self._at_once), self._noise(self._at_once)
        for x, eps, rate in zip(images, noise, self._rates_of_steps(), strict=True):
            begun = self._begin(x, eps)
            scores = begun.scores
            if scores is None and begun.entropy is None:
                scores = self._estimator.scores(begun.drawn.z)
            self._finish(begun, scores, rate)
        self._join()

    def _rates_of_steps(self) -> Sequence[Tensor | None]:
        """Return the learning rate of each step, in tensors of its own, where it changes."""
        if self._rates is None:
            return [None] * self._at_once
        # Compiled code would copy one that begins amid others, in every step.
        return torch._foreach_mul(self._rates.unbind(), 1.0)

    def _begin_one(self) -> Begun:
        return self._begin(self._draw(1)[0], self._noise(1)[0])

    def _find_scores(self, begun: Begun) -> None:
        self._scores_by_host.copy_(self._estimator.scores(begun.drawn.z))

    def _finish_one(self, begun: Begun) -> None:
        self._finish(begun, self._scores_by_host, self._rates_of_steps()[0])
        self._join()

    def _join(self) -> None:
        """Wait for what goes on beside: a graph ends with all its work."""
        if self._side is not None:
            torch.cuda.current_stream().wait_stream(self._side)
        self._held, self._done = None, None

    def _begin(self, x: Tensor, eps: Tensor) -> Begun:
        """Draw latents; let the score estimators learn from them beside the decoder's passes."""
        drawn, entropy = self._encode(x, eps)
        z, drawn = drawn.z, drawn._replace(z=drawn.z.detach())
        scores, ready = None, None
        if self.fields is not None:
            with self._beside():
                scores, ready = self._teach(x, drawn)
        self._wait(self._done)
        at = z.detach().requires_grad_()
        log_joint = self._log_joint(x, at)
        downhill, *of_decoder = torch.autograd.grad(
            log_joint, [at, *self.decoders.parameters.values()], self._minus_one
        )
        return Begun(drawn, z, entropy, log_joint.detach(), downhill, of_decoder, scores, ready)

    def _finish(self, begun: Begun, scores: Tensor | None, rate: Tensor | None) -> None:
        """Move the encoder, and beside it the decoder.

        So are averages taken and losses noted, which nothing waits for before the next step.
        """
        # All that was done beside the step before is done by now; until this step's is, the memory
        # of what it reads must not be used for anything else.
        begun = self._held = begun._replace(scores=scores)
        of_encoders, of_decoders = self._descents
        if rate is not None:
            for descent in self._descents:
                descent.set_rate(rate)
        with self._beside():
            of_decoders.step(begun.of_decoder)
        self._wait(begun.ready)
        pull = self._pull(begun.downhill, scores)
        entropy = begun.entropy
        with self._beside():
            known = None if entropy is None else entropy.detach()
            self._note(begun.drawn.z, begun.log_joint, scores, known)
        outputs, pulls = [begun.z], [pull]
        if entropy is not None:
            outputs, pulls = [begun.z, entropy], [pull, self._minus_one]
        weights = list(self.encoders.parameters.values())
        of_encoders.step(torch.autograd.grad(outputs, weights, pulls))
        with self._beside():
            for descent in self._descents:
                descent.follow()
            self._done = self._mark()

    def _encode(self, x: Tensor, eps: Tensor) -> tuple["Drawn", Tensor | None]:
        """Return latents, and the entropy of each run where it is a closed form.

        What the backward pass does not begin from is detached already here: it would be given
        gradients of zeros.
        """
        features = self.encoders.call("features", x)
        z, mean, log_scale = self.encoders.call(self._latents_and_units, features, eps)
        entropy = normal_entropy(log_scale).mean(-1) if self.settings.method == "elbo" else None
        return Drawn(features.detach(), z, mean.detach(), log_scale.detach()), entropy

    def _log_joint(self, x: Tensor, z: Tensor) -> Tensor:
        """Return E log p(x, z) of each run."""
        shown = z[:, : self.settings.decoded]
        return (self.decoders.call("log_prob", x, shown) + log_prior(shown)).mean((-2, -1))

    def _pull(self, downhill: Tensor, scores: Tensor | None) -> Tensor:
        """Return the gradient in z of the loss, from that of −E log p(x, z)."""
        return downhill if scores is None else downhill + self._share(scores)

    def _share(self, scores: Tensor) -> Tensor:
        """Return what the scores of each latent add to the gradient of the loss in it."""
        if self._estimator.learns:
            scores = centred(scores)
        return scores / math.prod(scores.shape[-3:-1])

    def _note(
        self, z: Tensor, log_joint: Tensor, scores: Tensor | None, entropy: Tensor | None
    ) -> None:
        """Note −E log p(x, z) less the entropy, or its surrogate."""
        if entropy is None:
            assert scores is not None
            entropy = -(self._share(scores) * z).sum((-3, -2, -1))
        self._losses.note("autoencoder", -log_joint - entropy)

    def _teach(self, x: Tensor, drawn: "Drawn") -> tuple[Tensor, "torch.cuda.Event | None"]:
        """Let the score estimators learn from latents; return scores at them, and when they are."""
        losses, scores = self._score_losses(drawn, self._direction())
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
            drawn, _ = self._encode(x, self._noise(1)[0])
        self._learn(self._score_losses(drawn, self._direction())[0])

    def _learn(self, losses: Tensor) -> None:
        assert self._score_descent is not None
        weights = self._score_descent.weights
        self._score_descent.step(torch.autograd.grad(losses, weights, self._one))
        self._note_score(losses.detach())

    def _note_score(self, losses: Tensor) -> None:
        self._losses.note("estimator", losses)

    def _score_losses(self, drawn: "Drawn", direction: Tensor | None) -> tuple[Tensor, Tensor]:
        assert self.fields is not None
        features, z, *units = drawn
        losses, scores = self.fields.call("loss_and_scores", z, features, direction, *units)
        return losses, scores

    def _scores(self, drawn: "Drawn") -> Tensor:
        assert self.fields is not None
        features, z, *units = drawn
        return self.fields.call("scores_in", z, features, *units)

    def _beside(self) -> AbstractContextManager[Any]:
        """Return where what the encoder does not wait for is done: on another stream of a GPU."""
        if self._side is None:
            return nullcontext()
        self._side.wait_stream(torch.cuda.current_stream())
        return torch.cuda.stream(self._side)

    def _mark(self) -> "torch.cuda.Event | None":
        return None if self._side is None else self._side.record_event()

    def _wait(self, ready: "torch.cuda.Event | None") -> None:
        if ready is not None:
            torch.cuda.current_stream().wait_event(ready)

    def _draw(self, steps: int) -> tuple[Tensor, ...]:
        """Return images for each of some steps."""
        runs = len(self.seeds)
        images = self.source.draw(steps * runs, self.settings.batch, self.generator)
        return images.unflatten(0, (steps, runs)).unbind()

    def _noise(self, steps: int) -> tuple[Tensor, ...]:
        """Return normal numbers of the shape of latents for each of some steps."""
        settings = self.settings
        shape = (steps, len(self.seeds), settings.particles, settings.batch, self._estimator.dims)
        return torch.randn(shape, generator=self.generator, device=self.device).unbind()

    def _direction(self) -> Tensor | None:
        sliced = isinstance(self._estimator, LearnedEntropy) and self._estimator.sliced
        return self._noise(1)[0] if sliced else None

    def _record(self, seconds: float) -> None:
        """Look at what the steps since the last time have left; refuse to go on from NaN."""
        first = self.curve.step[-1] + 1 if self.curve.step else 1
        score, loss = self._losses.means(
            first,
            self.step,
            updates=self.settings.score_updates,
            dims=self._estimator.dims,
            estimator=self._estimator.name,
        )
        self._losses.forget()
        self.seconds = seconds
        self.curve.step.append(self.step)
        self.curve.seconds.append(seconds)
        self.curve.loss.append(list(loss))
        self.curve.score_loss.append(list(score))

    def run(self, index: int) -> tuple[Encoder, Decoder]:
        """Return encoder and decoder of one run, as modules of their own."""
        if not -len(self.seeds) <= index < len(self.seeds):
            raise InputError(
                f"expected the index of one of {len(self.seeds)} runs, from 0, got {index}"
            )
        of_encoders, of_decoders = self._descents
        encoder = self.encoders.member(index, of_encoders.averages)
        decoder = self.decoders.member(index, of_decoders.averages)
        assert isinstance(encoder, Encoder) and isinstance(decoder, Decoder)
        return encoder, decoder

    def estimator(self, index: int, encoder: Encoder | None = None) -> EntropyEstimator:
        """Return the estimator of one run as a module of its own, for the encoder of that run.

        This is the one that `run` has returned, or a further copy of it. What the estimator is
        asked of images x is `scores(z, encoder.features(x))`.
        """
        encoder = self.run(index)[0] if encoder is None else encoder
        if self.settings.method == "elbo":
            return make_estimator("elbo", encoder)
        if self.fields is None:  # by kernels, of the latents alone: it has settings, and no encoder
            return copy.deepcopy(self._estimator)
        found = self.fields.member(index)
        assert isinstance(found, LearnedEntropy)
        found.follow(encoder)
        found.set_learning_rate(self.settings.score_learning_rate)
        return found

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that further steps depend on, but for the generator's.

        They are those that steps move in place.
        """
        state = self._losses.state()
        stacks = {"encoder": self.encoders, "decoder": self.decoders, "field": self.fields}
        for name, stack in stacks.items():
            if stack is not None:
                state |= {f"{name}/{key}": value for key, value in stack.parameters.items()}
        descents = (*self._descents, self._score_descent)
        for name, descent in zip(stacks, descents, strict=True):
            if descent is not None:
                state |= {f"{name}-descent/{key}": v for key, v in descent.state().items()}
        return state
