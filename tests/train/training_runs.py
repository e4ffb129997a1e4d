"""Data, models and processes that the tests of training share.

Processes are forked from a server that has torch imported, but has never computed anything: they
start in milliseconds, and share nothing with each other.
"""

import itertools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from arcsm.agnostic import OrderAgnosticARCSM
from arcsm.autoregressive import TrainableModel
from arcsm.baselines import MixtureMADE
from arcsm.ensemble import Ensemble
from arcsm.errors import InputError
from arcsm.model import ARCSM
from arcsm.train import History, TrainConfig, checkpoint, fit
from arcsm.train.checkpoint import read_tensors

KINDS = ("ARCSM", "MixtureMADE")
FINISHED = ["config.json", "model.safetensors", "training.safetensors"]


def draw(n: int, seed: int = 0) -> np.ndarray:
    """Rows that are neither independent nor normal, in units that are not the standard ones."""
    x = np.random.default_rng(seed).normal(size=(n, 2))
    x[:, 1] = 0.3 * x[:, 1] + x[:, 0] ** 2
    return (3 + 2 * x).astype(np.float32)


def build(kind: str, seed: int = 0, dims: int = 2, **options: Any) -> TrainableModel:
    scores = {"ARCSM": ARCSM, "Ensemble": Ensemble, "OrderAgnosticARCSM": OrderAgnosticARCSM}
    if kind in scores:
        return scores[kind].made(dims, hidden=(16, 16), width=8, steps=6, seed=seed, **options)
    return MixtureMADE(dims, components=3, hidden=(16, 16), seed=seed, **options)


def quick(**options: Any) -> TrainConfig:
    """Return a short training; `options` change it."""
    usual = TrainConfig(
        steps=20, batch_size=16, learning_rate=1e-2, warmup=4, evaluate_every=5, checkpoint_every=4
    )
    return replace(usual, **options)


def weights_of(model: TrainableModel) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def same_bits(one: TrainableModel, other: TrainableModel) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def happened(history: History) -> dict[str, Any]:
    """Return all of a history but the clock."""
    return {name: value for name, value in asdict(history).items() if name != "seconds"}


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files of a run but for that of the time it took."""
    return {
        entry.name: entry.read_bytes()
        for entry in sorted(directory.iterdir())
        if entry.name != "spent.json"
    }


def step_on_disk(directory: Path) -> int:
    path = directory / "training.safetensors"
    return int(read_tensors(path)[1]["training"]["step"]) if path.exists() else 0


# Runs in processes of their own.


def start(target: Callable[..., None], *arguments: Any) -> BaseProcess:
    context = multiprocessing.get_context("forkserver")
    # torch._dynamo is what the first optimiser would import.
    context.set_forkserver_preload(["arcsm.train", "torch._dynamo"])
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    return process


def finish(process: BaseProcess, seconds: float = 60) -> int | None:
    """Wait for a process and return its exit code; one that hangs is killed."""
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"expected the process to end within {seconds} s, got none")
    return process.exitcode


# What is killed. Checkpoints fall between evaluations; on few rows the model soon overfits.
_STOPPING = quick(
    steps=300, learning_rate=5e-2, ema=0.5, validation=0.3, evaluate_every=3, patience=8
)
RUNS: dict[str, tuple[str, TrainConfig]] = {
    "ARCSM": ("ARCSM", quick(steps=50, evaluate_every=7)),
    "MixtureMADE": ("MixtureMADE", quick(steps=50, evaluate_every=7)),
    "ARCSM, stopping early": ("ARCSM", _STOPPING),
    "MixtureMADE, stopping early": ("MixtureMADE", _STOPPING),
}


def run(name: str, directory: Path, death: tuple[Any, ...] | None = None) -> None:
    """Train, or go on training, in `directory`; `death` says when this process kills itself.

    ("step", n) is after the n-th step of this process, ("write", n, share) in its n-th write of
    tensors, when that share of the bytes is there; at the latest it is between the two files of
    the finished model. ("slow",) makes writes slow, for others to kill it.
    """
    torch.set_num_threads(1)
    if death is not None:
        _await_death(*death)
    kind, config = RUNS[name]
    weight = np.random.default_rng(1).uniform(0.5, 2, size=60)
    history = fit(build(kind), draw(60), config, weight=weight, directory=directory, resume=True)
    (directory.parent / f"{directory.name}.json").write_text(json.dumps(happened(history)))


def _await_death(kind: str, count: int = 0, share: float = 0) -> None:
    steps, writes = itertools.count(1), itertools.count(1)

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def after_step(*_: Any) -> None:
        if next(steps) == count:
            die()

    def write_in_pieces(tensors: Any, path: str, metadata: Any) -> None:
        save_file(tensors, path, metadata)
        whole = Path(path).read_bytes()
        if kind == "write" and next(writes) == count:
            Path(path).write_bytes(whole[: round(share * len(whole))])
            die()
        if kind == "slow":
            piece = 1 + len(whole) // 20
            with Path(path).open("wb", buffering=0) as file:
                for place in range(0, len(whole), piece):
                    file.write(whole[place : place + piece])
                    time.sleep(0.001)

    save_file = checkpoint.save_file
    checkpoint.save_file = write_in_pieces
    if kind != "slow":
        checkpoint.write_json = lambda *_: die()
    if kind == "step":
        register_optimizer_step_post_hook(after_step)


# Several processes that train one model.


def train_together(
    rank: int, world: int, meeting: Path, kind: str, weighted: bool, directory: Path
) -> None:
    """Be one of `world` processes; write what it ended with to `directory`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    outcome: dict[str, Any] = {}
    try:
        fit(build(kind), draw(60), quick(batch_size=15), directory=directory / "refused")
    except InputError as error:
        outcome["refused"] = str(error)
    # Only the weights of the first process count.
    model = build(kind, seed=rank)
    history = together(model, weighted, directory / f"run {rank}")
    outcome["history"] = happened(history)
    save_file(weights_of(model), directory / f"{rank}.safetensors")
    (directory / f"{rank}.json").write_text(json.dumps(outcome))
    dist.destroy_process_group()


def together(model: TrainableModel, weighted: bool, directory: Path | None) -> History:
    """Train as each of the processes does; alone, this is what they are compared with."""
    weight = np.random.default_rng(2).uniform(0.1, 5, size=60) if weighted else None
    return fit(model, draw(60), quick(batch_size=18, steps=12), weight=weight, directory=directory)
