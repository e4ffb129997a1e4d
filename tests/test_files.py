import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from arcsm import files
from arcsm.errors import InputError
from arcsm.files import (
    atomic_directory,
    atomic_path,
    discard_directory,
    remove_stale_temporaries,
    scratch_directory,
    write_atomic,
    write_bytes,
    write_json,
    write_text,
)


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def test_writes_replace_the_content_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old, and longer than the new\r\n")
    assert path.read_bytes() == b"old, and longer than the new\r\n"
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    write_json(path, {"α": [1, 0.5, None]})
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert json.loads(path.read_text(encoding="utf-8")) == {"α": [1, 0.5, None]}
    assert names(tmp_path) == ["a.txt"]


def test_missing_parents_are_created(tmp_path: Path) -> None:
    write_text(tmp_path / "a" / "b" / "c.txt", "text")
    assert (tmp_path / "a" / "b" / "c.txt").read_text() == "text"


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected the path of a file, got the directory"):
        write_text(tmp_path, "text")
    assert names(tmp_path) == []


def test_a_file_among_the_parents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "a.txt", tmp_path / "file" / "b" / "a.txt"):
        with pytest.raises(InputError, match="expected directories above"):
            write_text(path, "text")


def test_a_symbolic_link_is_followed(tmp_path: Path) -> None:
    real, link = tmp_path / "real" / "a.txt", tmp_path / "a.txt"
    write_text(real, "old")
    link.symlink_to(real)
    write_text(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_a_writer_that_raises_leaves_the_old_file_alone(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def write(file):
        file.write(b"half of the n")
        file.flush()
        raise error

    with pytest.raises(error):
        write_atomic(path, write)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_a_failed_rename_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_the_content_is_on_the_disk_before_the_rename(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append("replace"), replace(a, b))[1])
    write_bytes(tmp_path / "a.bin", b"new")
    assert calls == ["fsync", "replace", "fsync"]  # the file, the rename, the directory


@pytest.mark.parametrize("content", [float("nan"), [float("inf")], object(), {1j: 0}])
def test_json_refuses_what_it_cannot_hold(tmp_path: Path, content: object) -> None:
    with pytest.raises(InputError, match="JSON"):
        write_json(tmp_path / "a.json", content)
    assert names(tmp_path) == []


KILLED_WRITER = """
import sys, time
from arcsm.files import atomic_path
with atomic_path(sys.argv[1]) as temporary, temporary.open("wb") as file:
    file.write(b"half of the n")
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def kill_a_writer(path: Path) -> None:
    command = [sys.executable, "-c", KILLED_WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        # The temporary of a living process stays.
        assert remove_stale_temporaries(path.parent) == []
        process.send_signal(signal.SIGKILL)


def test_a_killed_writer_leaves_the_old_file_and_the_next_write_cleans_up(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    kill_a_writer(path)
    assert path.read_bytes() == b"old"
    assert len(names(tmp_path)) == 2

    write_bytes(tmp_path / "other.bin", b"")  # another file's temporaries are not its business
    assert len(names(tmp_path)) == 3
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert names(tmp_path) == ["a.bin", "other.bin"]


def test_stale_temporaries_are_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = files._host(), "00000000"
    alive, dead = os.getpid(), 2**22 + 1  # above the largest process id Linux gives out
    kept = [
        "a.bin",
        ".hidden",
        "a.bin.partial",
        f".a.bin.{dead}.partial",
        f".a.bin.{alive}-{here}-00000000.partial",
        f".a.bin.{dead}-{elsewhere}-00000000.partial",
    ]
    stale = [f".a.bin.{dead}-{here}-00000000.partial", f".b.{dead}-{here}-00000001.partial"]
    for name in kept + stale:
        (tmp_path / name).write_text("")
    assert sorted(path.name for path in remove_stale_temporaries(tmp_path)) == sorted(stale)
    assert names(tmp_path) == sorted(kept)

    old = time.time() - files._ABANDONED_AFTER_SECONDS - 60
    for name in kept:
        os.utime(tmp_path / name, (old, old))
    assert sorted(path.name for path in remove_stale_temporaries(tmp_path)) == sorted(kept[-2:])
    assert names(tmp_path) == sorted(kept[:-2])


def test_concurrent_writers_never_produce_a_mix(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    contents = {bytes([letter]) * (100_000 + letter) for letter in b"abcd"}
    write_bytes(path, b"a" * (100_000 + ord("a")))
    failures: list[BaseException] = []

    def rewrite(content: bytes) -> None:
        try:
            for _ in range(20):
                write_bytes(path, content)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=rewrite, args=(content,)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    for writer in writers:
        writer.join()
    assert not failures
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["a.bin"]


def test_nested_writes_of_one_file_end_with_the_outer(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with atomic_path(path) as temporary:
        write_text(path, "inner")
        assert path.read_text() == "inner"
        temporary.write_text("outer")
    assert path.read_text() == "outer"
    assert names(tmp_path) == ["a.txt"]


def replaced(path: Path, text: str) -> None:
    with atomic_directory(path) as directory:
        (directory / "a").write_text(text)


def test_a_directory_that_cannot_be_replaced_is_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(tmp_path / "d", "old")
    rename = os.rename

    def fail_for_the_new(source: object, target: object) -> None:
        if str(source).endswith(".partial"):
            raise OSError("no space left")
        rename(source, target)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", fail_for_the_new)
    with pytest.raises(OSError, match="no space left"):
        replaced(tmp_path / "d", "new")
    assert (tmp_path / "d" / "a").read_text() == "old" and names(tmp_path) == ["d"]


@pytest.mark.parametrize("renames", [1, 2, 3])
def test_a_process_killed_while_it_replaces_a_directory(tmp_path: Path, renames: int) -> None:
    """After the old one was moved, after the new one came, and before the old one has gone."""
    replaced(tmp_path / "d", "old")
    code = (
        "import os, sys\n"
        "from arcsm.files import atomic_directory\n"
        "rename, left = os.rename, [int(sys.argv[2])]\n"
        "def count(*paths):\n"
        "    rename(*paths)\n"
        "    left[0] -= 1\n"
        "    left[0] or os._exit(9)\n"
        "os.rename = count\n"
        "with atomic_directory(sys.argv[1]) as directory:\n"
        "    (directory / 'a').write_text('new')\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "d"), str(renames)]
    assert subprocess.run(command, timeout=60).returncode == 9
    replaced(tmp_path / "other", "x")  # other places are not touched
    expected = "old" if renames == 1 else "new"
    with pytest.raises(KeyError), atomic_directory(tmp_path / "d") as directory:
        assert (tmp_path / "d" / "a").read_text() == expected and directory.is_dir()
        raise KeyError
    assert names(tmp_path) == ["d", "other"] and (tmp_path / "d" / "a").read_text() == expected


def test_a_directory_that_is_discarded_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(tmp_path / "d", "old")

    def killed(path: Path) -> None:
        assert names(tmp_path) == [path.name] and path.name.endswith(".partial")
        raise KeyboardInterrupt

    monkeypatch.setattr("arcsm.files.shutil.rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        discard_directory(tmp_path / "d")


def test_a_directory_that_others_have_discarded_is_no_trouble(tmp_path: Path) -> None:
    discard_directory(tmp_path / "d")
    assert names(tmp_path) == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_scratch_directory_goes_in_any_case(tmp_path: Path, fails: bool) -> None:
    with contextlib.suppress(KeyError), scratch_directory(tmp_path / "new" / "x.csv") as folder:
        (folder / "part").write_text("some")
        assert folder.parent == tmp_path / "new" and folder.name.startswith(".x.csv.")
        if fails:
            raise KeyError
    assert names(tmp_path / "new") == []


def test_a_scratch_directory_of_a_process_that_was_killed_goes_later(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from arcsm.files import scratch_directory\n"
        "with scratch_directory(sys.argv[1]) as folder:\n"
        "    (folder / 'part').write_text('some')\n"
        "    os._exit(9)\n"
    )
    target = tmp_path / "x.csv"
    assert subprocess.run([sys.executable, "-c", code, str(target)], timeout=60).returncode == 9
    assert len(names(tmp_path)) == 1
    with scratch_directory(target) as folder:
        assert names(tmp_path) == [folder.name]
