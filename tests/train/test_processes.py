"""Several processes compute the same steps as one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_runs import (
    FINISHED,
    build,
    contents,
    finish,
    happened,
    same_bits,
    start,
    together,
    train_together,
)

from arcsm.train import History, load_model


def check_history(got: dict, alone: History) -> None:
    """Compare what a process recorded with the history of one that worked alone."""
    expected = happened(alone)
    for name in ("training", "validation"):
        torch.testing.assert_close(
            torch.tensor(got.pop(name)), torch.tensor(expected.pop(name)), rtol=1e-5, atol=1e-5
        )
    assert got == expected


@pytest.mark.parametrize(
    ("kind", "weighted"),
    [
        ("ARCSM", False),
        ("ARCSM", True),
        ("MixtureMADE", True),
        ("Ensemble", True),
        ("OrderAgnosticARCSM", True),
    ],
)
def test_two_processes_train_as_one(kind, weighted, tmp_path):
    processes = [
        start(train_together, rank, 2, tmp_path / "meeting", kind, weighted, tmp_path)
        for rank in (0, 1)
    ]
    assert [finish(process) for process in processes] == [0, 0]

    model = build(kind)
    alone = together(model, weighted, None)
    for rank in (0, 1):
        weights = load_file(tmp_path / f"{rank}.safetensors")
        torch.testing.assert_close(weights, dict(model.state_dict()), rtol=1e-5, atol=1e-5)
        outcome = json.loads((tmp_path / f"{rank}.json").read_text())
        assert "expected a batch size that 2 processes can share, got 15" in outcome["refused"]
        check_history(outcome["history"], alone)
    assert not (tmp_path / "refused").exists()
    # The first process alone writes.
    assert not (tmp_path / "run 1").exists()
    assert list(contents(tmp_path / "run 0")) == FINISHED
    written = load_model(tmp_path / "run 0")
    model.load_state_dict(load_file(tmp_path / "0.safetensors"))
    assert same_bits(written, model)


# What runs first at the end was registered last: the group must be gone when this looks.
SCRIPT = """
import atexit, json, os, sys
from pathlib import Path
import torch.distributed as dist
from training_runs import build, happened, together

out, rank = Path(sys.argv[1]), os.environ["RANK"]
atexit.register(lambda: (out / f"{rank}.left").write_text(str(not dist.is_initialized())))
model = build("ARCSM")
history = together(model, True, out / "run")
joined = dist.is_initialized() and dist.get_world_size() == 2
(out / f"{rank}.json").write_text(json.dumps([joined, happened(history)]))
"""


@pytest.mark.slow
def test_processes_of_torchrun_join_and_leave(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    result = subprocess.run(
        [*torchrun, "--nproc-per-node=2", str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    assert "destroy_process_group" not in result.stderr
    model = build("ARCSM")
    alone = together(model, True, None)
    for rank in (0, 1):
        joined, history = json.loads((tmp_path / f"{rank}.json").read_text())
        assert joined
        check_history(history, alone)
        assert (tmp_path / f"{rank}.left").read_text() == "True"
    torch.testing.assert_close(
        load_model(tmp_path / "run").state_dict(), model.state_dict(), rtol=1e-5, atol=1e-5
    )
