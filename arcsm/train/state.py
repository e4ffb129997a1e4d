"""The state of a training run, and how it is written and read."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from arcsm.autoregressive import TrainableModel
from arcsm.errors import ArcsmError, CheckpointError, InputError
from arcsm.files import parse_json, write_json
from arcsm.train.checkpoint import describe, load_weights, read_tensors, write_tensors

STATE_FILE = "training.safetensors"
# The time spent has a file of its own: all others end with the same bits however long it took.
SPENT_FILE = "spent.json"


@dataclass
class TrainState:
    """Everything besides weights and optimiser that the next step depends on."""

    ema: dict[str, Tensor]
    total: Tensor  # of the training losses since the last evaluation
    bad_step: Tensor  # the first step whose loss or gradient was not finite, else −1
    best: dict[str, Tensor] = field(default_factory=dict)
    best_loss: float = float("inf")
    best_step: int = 0
    step: int = 0
    counted: int = 0  # the losses in `total`
    stale: int = 0  # evaluations since the best one
    stopped: bool = False
    seconds: float = 0.0
    training: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)

    @classmethod
    def start(cls, model: TrainableModel) -> "TrainState":
        """Return the state before the first step."""
        ema = {name: value.detach().clone() for name, value in model.named_parameters()}
        first = next(iter(ema.values()))
        return cls(ema, first.new_zeros(()), first.new_full((), -1, dtype=torch.long))

    def average(self, model: TrainableModel, decay: float) -> None:
        """Move the averaged weights towards the present ones; quicker in the first steps."""
        decay = min(decay, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            torch._foreach_lerp_(
                list(self.ema.values()), [p.detach() for p in model.parameters()], 1 - decay
            )

    def watch(self, loss: Tensor, norm: Tensor) -> None:
        """Count the loss; note one that is not finite, or its gradient, without waiting for it."""
        self.total, self.counted = self.total + loss, self.counted + 1
        bad = ~(loss.isfinite() & norm.isfinite()) & (self.bad_step < 0)
        self.bad_step = torch.where(bad, self.step - 1, self.bad_step)

    def record(self, validation: float | None, patience: int | None) -> None:
        """Enter an evaluation: keep the averaged weights if they are the best so far."""
        self.training.append((self.step, (self.total / self.counted).item()))
        self.total, self.counted = torch.zeros_like(self.total), 0
        if validation is None:
            return
        self.validation.append((self.step, validation))
        if validation < self.best_loss:
            self.best = {name: value.clone() for name, value in self.ema.items()}
            self.best_loss, self.best_step, self.stale = validation, self.step, 0
        else:
            self.stale += 1
            self.stopped = patience is not None and self.stale >= patience

    @contextmanager
    def averaged(self, model: TrainableModel) -> Iterator[None]:
        """Put the averaged weights into the model for the time of the block."""
        own = {name: value.detach().clone() for name, value in model.named_parameters()}
        _copy_into(model, self.ema)
        try:
            yield
        finally:
            _copy_into(model, own)

    def finish(self, model: TrainableModel) -> None:
        """Leave the model with the best averaged weights, or the last where none were held out."""
        if not self.best:
            self.best_step = self.step
        _copy_into(model, self.best or self.ema)


def refuse_existing(directory: str | os.PathLike[str]) -> None:
    """Refuse to start anew where the state of another run lies."""
    if (Path(directory) / STATE_FILE).exists():
        raise InputError(
            f"expected a directory without a training run, got one in {os.fspath(directory)!r};"
            " resume it (resume=True), or choose another directory"
        )


def save_state(
    directory: str | os.PathLike[str],
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    config: Mapping[str, Any],
    fingerprint: str,
) -> None:
    """Replace the training state in `directory`, one file, as a whole."""
    tensors = {f"model/{name}": value for name, value in model.state_dict().items()}
    tensors |= {f"ema/{name}": value for name, value in state.ema.items()}
    tensors |= {f"best/{name}": value for name, value in state.best.items()}
    for index, entry in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value for name, value in entry.items()}
    training = {
        "config": config,
        "data": fingerprint,
        "step": state.step,
        "total": state.total.item(),
        "counted": state.counted,
        # JSON has no infinity; the best loss is only known once there is a best.
        "best_loss": state.best_loss if state.best else None,
        "best_step": state.best_step,
        "stale": state.stale,
        "stopped": state.stopped,
        "training": state.training,
        "validation": state.validation,
    }
    header = {**describe(model), "training": training}
    contiguous = {name: value.detach().contiguous() for name, value in tensors.items()}
    write_tensors(Path(directory) / STATE_FILE, contiguous, header)
    write_json(Path(directory) / SPENT_FILE, {"seconds": state.seconds})


def load_state(
    directory: str | os.PathLike[str],
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    config: Mapping[str, Any],
    fingerprint: str,
) -> None:
    """Restore a run from `directory`, if any; refuse one of another model, data or settings."""
    path = Path(directory) / STATE_FILE
    if not path.exists():
        return
    tensors, header = read_tensors(path, device=state.bad_step.device)
    name, training = os.fspath(path), header.get("training")
    if training is None or {k: v for k, v in header.items() if k != "training"} != describe(model):
        raise CheckpointError(
            f"expected a training run of this model in {name!r}, got one of another model;"
            " build the model with the same arguments, or choose another directory"
        )
    try:
        _restore(model, optimizer, state, tensors, training, config, fingerprint, name)
        spent = Path(directory) / SPENT_FILE
        if spent.exists():
            state.seconds = float(parse_json(spent.read_text())["seconds"])
    except ArcsmError:
        raise
    # A state that someone has changed fails anywhere, in torch for instance.
    except Exception as error:
        raise CheckpointError(
            f"expected the whole state of a training run in {name!r}, got one that does not fit"
            f" ({type(error).__name__}: {error}); remove its directory to start anew"
        ) from error


def _restore(
    model: TrainableModel,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    tensors: Mapping[str, Tensor],
    training: Mapping[str, Any],
    config: Mapping[str, Any],
    fingerprint: str,
    name: str,
) -> None:
    """Put what was read into the model, the optimiser and the state."""
    differing = sorted(k for k in config if training["config"].get(k, ...) != config[k])
    if differing:
        raise CheckpointError(
            f"expected a run with the same settings in {name!r}, got other values of"
            f" {', '.join(differing)}; resume with the settings it was started with"
        )
    if training["data"] != fingerprint:
        raise CheckpointError(
            f"expected a run on the same data in {name!r}, got one on other data;"
            " resume with the rows, weights and conditions it was started with"
        )
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "ema": {}, "best": {}, "optimizer": {}}
    for key, value in tensors.items():
        group, _, rest = key.partition("/")
        groups[group][rest] = value
    load_weights(model, groups["model"], name)
    entries: dict[int, dict[str, Tensor]] = {}
    for key, value in groups["optimizer"].items():
        index, _, entry = key.partition("/")
        entries.setdefault(int(index), {})[entry] = value
    _check_entries(entries, model, name)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": entries})
    for averages in filter(None, (groups["ema"], groups["best"])):
        _check_shapes(averages, model, name)
    state.ema, state.best = groups["ema"], groups["best"]
    # The averages are walked along with the parameters, in the same order.
    state.ema = {key: state.ema[key] for key, _ in model.named_parameters()}
    state.step, state.stale = training["step"], training["stale"]
    state.total, state.counted = state.total.new_tensor(training["total"]), training["counted"]
    state.best_step, state.stopped = training["best_step"], training["stopped"]
    if training["best_loss"] is not None:
        state.best_loss = training["best_loss"]
    state.training = [(step, loss) for step, loss in training["training"]]
    state.validation = [(step, loss) for step, loss in training["validation"]]


def _check_shapes(weights: Mapping[str, Tensor], model: TrainableModel, name: str) -> None:
    """Refuse averages of other parameters than those of the model."""
    expected = {key: tuple(value.shape) for key, value in model.named_parameters()}
    got = {key: tuple(value.shape) for key, value in weights.items()}
    if expected != got:
        wrong = sorted(k for k in expected.keys() | got.keys() if expected.get(k) != got.get(k))
        raise CheckpointError(
            f"expected averages of this model's weights in {name!r}, got others: {wrong[0]} has"
            f" shape {got.get(wrong[0])} where {expected.get(wrong[0])} belongs"
        )


def _check_entries(
    entries: Mapping[int, Mapping[str, Tensor]], model: TrainableModel, name: str
) -> None:
    """Refuse what the optimiser would find missing or misshapen at its next step only."""
    parameters = list(model.parameters())
    for index, entry in entries.items():
        moments = [value for value in entry.values() if value.ndim]
        complete = {"step", "exp_avg", "exp_avg_sq"} <= entry.keys()
        if not complete or any(value.shape != parameters[index].shape for value in moments):
            raise CheckpointError(
                f"expected the state of the optimiser for weight {index} in {name!r}, got one that"
                " does not fit; remove its directory to start anew"
            )


def _copy_into(model: TrainableModel, weights: Mapping[str, Tensor]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
