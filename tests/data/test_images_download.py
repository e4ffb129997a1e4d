"""Downloads, from a server of the test's own: a whole file comes in, others leave no trace."""

import gzip
import hashlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from arcsm.data import load_images
from arcsm.data.images import download, places
from arcsm.data.images.download import Remote, fetch
from arcsm.data.images.published import PUBLISHED
from arcsm.errors import InputError

CONTENT = np.random.default_rng(0).bytes(700_000)  # three chunks


class Server(ThreadingHTTPServer):
    """Serves `files` under /whole/, and spoils them in a way of its own under other paths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"file.bin": CONTENT}
        self.asked: list[tuple[str, str | None]] = []
        self.released = threading.Event()

    def url(self, way: str, file: str = "file.bin") -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{way}/{file}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["User-Agent"]))
        _, way, file = self.path.split("/")
        content = self.server.files[file]
        if way == "missing":
            self.send_error(404, "Not Found")
            return
        if way in ("redirect", "elsewhere", "circle"):
            self.send_response(302)
            to = {
                "redirect": f"/whole/{file}",
                "circle": self.path,
                "elsewhere": "file:///etc/hosts",
            }
            self.send_header("Location", to[way])
            self.end_headers()
            return
        length: int | None = len(content)
        if way == "short":
            content = content[: len(content) // 2]
            length = len(content)
        elif way in ("cut", "silent"):
            content = content[: len(content) // 2]
        elif way == "cut-unannounced":
            content, length = content[:-1], None
        elif way == "long":
            content, length = content * 3, None
        elif way == "wrong":
            content = bytes(reversed(content))
        elif way == "page":
            content = b"<html>please log in</html>"
            length = len(content)
        self.send_response(200)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()
        try:
            self.wfile.write(content)
            if way == "silent":
                self.wfile.flush()
                self.server.released.wait(10)
        except ConnectionError:  # a client that has seen enough
            pass

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    served = Server()
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.released.set()
    served.shutdown()
    thread.join()
    served.server_close()


def remote(*urls: str, content: bytes = CONTENT, file: str = "file.bin") -> Remote:
    return Remote(file, len(content), hashlib.sha256(content).hexdigest(), urls)


@pytest.mark.parametrize("way", ["whole", "redirect"])
def test_a_whole_file(way: str, server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    directory = tmp_path / "new" / "folder"
    paths = fetch([remote(server.url(way))], directory, progress=lambda *done: seen.append(done))
    assert paths == [directory / "file.bin"]
    assert paths[0].read_bytes() == CONTENT
    assert [path.name for path in directory.iterdir()] == ["file.bin"]
    assert seen[0] == (0, len(CONTENT)) and seen[-1] == (len(CONTENT), len(CONTENT))
    assert len(seen) >= 4 and seen == sorted(seen)
    assert {agent for _, agent in server.asked} == {"arcsm"}


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("missing", "the answer 404 Not Found"),
        ("cut", "350000 of 700000 bytes|after 350000 bytes|IncompleteRead"),
        ("cut-unannounced", "699999 of 700000 bytes"),
        ("short", "350000 of 700000 bytes"),
        ("long", "more than the 700000 bytes"),
        ("wrong", "another file of the same length"),
        ("page", "26 of 700000 bytes"),
        ("elsewhere", "302|not allowed"),
        ("circle", "infinite loop"),
    ],
)
def test_anything_else_leaves_no_trace(
    way: str, message: str, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as raised:
        fetch([remote(server.url(way))], tmp_path)
    assert list(tmp_path.iterdir()) == []
    raised.match(message)
    raised.match("expected to download file.bin, got from http://127.0.0.1")
    raised.match(f"by hand as '{tmp_path}/file.bin'")


def test_a_server_that_falls_silent(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT_SECONDS", 0.1)
    started = time.monotonic()
    with pytest.raises(InputError, match="timed out"):
        fetch([remote(server.url("silent"))], tmp_path)
    assert time.monotonic() - started < 4
    assert list(tmp_path.iterdir()) == []


def test_addresses_that_nobody_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(InputError, match=r"[Rr]efused"):
        fetch([remote(f"http://127.0.0.1:{port}/file.bin")], tmp_path)
    with pytest.raises(InputError, match="expected to download"):
        fetch([remote("gopher://nowhere/file.bin")], tmp_path)


def test_the_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    urls = [server.url(way) for way in ("missing", "wrong", "whole", "long")]
    fetch([remote(*urls)], tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == [
        "/missing/file.bin",
        "/wrong/file.bin",
        "/whole/file.bin",
    ]
    with pytest.raises(InputError, match=r"404 Not Found; from http:.*another file"):
        fetch([remote(*urls[:2], file="other.bin")], tmp_path)


def test_a_file_that_is_there_stays_if_the_new_one_is_wrong(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(b"old")
    with pytest.raises(InputError):
        fetch([remote(server.url("wrong"))], tmp_path)
    assert (tmp_path / "file.bin").read_bytes() == b"old"


def test_an_interrupt_leaves_no_trace(server: Server, tmp_path: Path) -> None:
    def interrupt(done: int, _: int) -> None:
        if done > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch([remote(server.url("whole"))], tmp_path, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(InputError, match=r"to write .*file.bin.*No space left.*folder="):
        fetch([remote(server.url("whole"))], tmp_path)


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">I{array.ndim}I", 0x0800 + array.ndim, *array.shape)
    return gzip.compress(header + array.tobytes())


def test_a_set_that_is_not_there_is_fetched_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = np.random.default_rng(1).integers(0, 256, (3, 28, 28), dtype=np.uint8)
    names = ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
    contents = (idx(images), idx(np.array([1, 2, 3], dtype=np.uint8)))
    server.files.update(zip(names, contents, strict=True))
    remotes = tuple(
        remote(server.url("whole", name), content=content, file=name)
        for name, content in zip(names, contents, strict=True)
    )
    monkeypatch.setitem(PUBLISHED, ("fashion-mnist", "test"), remotes)
    monkeypatch.setattr(places, "DEBIAN_FASHION_MNIST", tmp_path / "debian")
    with pytest.raises(
        InputError, match=r"pass download=True, or get http://127.*ubyte.gz and http"
    ):
        load_images("fashion-mnist", "test", folder=tmp_path, download=False)
    assert server.asked == [] and list(tmp_path.iterdir()) == []

    seen: list[tuple[int, int]] = []
    fetched = load_images(
        "fashion-mnist", "test", folder=tmp_path, progress=lambda *done: seen.append(done)
    )
    np.testing.assert_array_equal(fetched.pixels[..., 0], images)
    total = sum(map(len, contents))  # of both files
    assert seen == sorted(seen) and seen[-1] == (total, total)
    folder = tmp_path / "fashion-mnist"
    assert sorted(path.name for path in folder.iterdir()) == list(names)
    assert len(server.asked) == 2
    load_images("fashion-mnist", "test", folder=tmp_path)
    assert len(server.asked) == 2
    (folder / names[1]).unlink()
    load_images("fashion-mnist", "test", folder=tmp_path)
    assert [path for path, _ in server.asked[2:]] == [f"/whole/{names[1]}"]
