"""`arcsm app`: what it serves, and what it refuses."""

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import arcsm.app
from arcsm.app import server
from arcsm.images import ImageModel, ImageSettings
from arcsm.model import ARCSM

from .conftest import Run


class Fake:
    """A server that is closed by the first Ctrl-C."""

    url = "http://127.0.0.1:7777/"

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.closed = 0

    def start(self, digits: Any, **asked: Any) -> "Fake":
        self.asked = {"digits": digits, **asked}
        return self

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    fake = Fake()
    monkeypatch.setattr(server, "need_gradio", lambda: None)
    monkeypatch.setattr(arcsm.app, "start_server", fake.start)
    monkeypatch.setattr(threading.Event, "wait", interrupted)
    return fake


def test_it_serves_until_ctrl_c_and_that_is_no_error(run: Run, fake: Fake) -> None:
    result = run("app", "--no-browser")
    assert result.exit_code == 0 and result.stdout == ""
    assert result.stderr == "Serving http://127.0.0.1:7777/ until Ctrl-C.\nStopped.\n"
    assert fake.closed == 1
    assert fake.asked.pop("digits").name == "mnist"  # the model that comes with arcsm
    assert fake.asked == {"host": "127.0.0.1", "port": None, "browser": False}


def test_a_script_is_told_where(run: Run, fake: Fake, tmp_path: Path) -> None:
    density = ARCSM.made(784, hidden=(4,), seed=0)
    ImageModel(density, (28, 28, 1), ImageSettings(network="made")).save(tmp_path / "digits")
    result = run("app", "--json", "--host", "::1", "--port", 8080, "--model", tmp_path / "digits")
    assert json.loads(result.stdout) == {
        "command": "app",
        "url": fake.url,
        "model": str(tmp_path / "digits"),
    }
    assert result.stderr == "" and result.exit_code == 0
    assert fake.asked["digits"].shape == (28, 28, 1) and fake.asked["browser"] is True
    assert (fake.asked["host"], fake.asked["port"]) == ("::1", 8080)


def test_a_model_of_other_things_is_refused(
    fails: Run, fake: Fake, model: Path, tmp_path: Path
) -> None:
    assert "one of a table" in fails("app", "--model", model)
    assert "nothing there" in fails("app", "--model", tmp_path / "none")
    assert fake.asked == {}


def test_without_gradio_it_says_what_to_install(
    fails: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert "pip install 'arcsm[app]'" in fails("app")


def test_an_old_gradio_is_refused(fails: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        __version__ = "5.49.1"

    monkeypatch.setitem(sys.modules, "gradio", Old())
    assert "Gradio 6 or later, got 5.49.1" in fails("app")


def test_a_port_that_cannot_be_is_refused(fails: Run) -> None:
    assert "--port" in fails("app", "--port", 70000)
