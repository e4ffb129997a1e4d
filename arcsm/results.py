"""The format of `results/*.json`: what was measured, and all that is needed to measure it again.

A record holds an experiment's metrics together with its provenance: seeds, settings, command,
commit, hardware, library versions, wall time and date. A record that lacks any of these is refused
both when it is written and when it is read. No absolute path enters a record.
"""

import datetime
import importlib
import json
import math
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import torch

from arcsm.errors import InputError
from arcsm.files import parse_json, write_json

FORMAT = "arcsm-results"
VERSION = 1

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Metric:
    """One measured number.

    `n` is how many observations (runs, samples, repeats) the value summarises, `spread` their
    standard deviation, and `interval` a 95 % interval for the value. A dimensionless value has the
    unit "1". A value that could not be had is None, and `reason` then says why. `labels` tell
    apart metrics of one name. Scalars of numpy and torch become plain numbers.

    >>> metric = Metric("nll", np.float64(1.5), unit="nats", n=500, labels={"dataset": "moons"})
    >>> metric.value
    1.5
    """

    name: str
    value: float | None
    unit: str
    n: int
    spread: float | None = None
    interval: tuple[float, float] | None = None
    labels: Mapping[str, Any] = field(default_factory=dict)
    reason: str | None = None

    def __post_init__(self) -> None:
        for item in fields(self):
            object.__setattr__(self, item.name, _plain(getattr(self, item.name), item.name))
        _check_text(self.name, "name")
        _check_text(self.unit, "unit")
        _check_count(self.n, "n", least=0 if self.value is None else 1)
        if self.value is None:
            _check_text(self.reason, "reason (the value is None)")
        else:
            _check_number(self.value, "value")
            if self.reason is not None:
                raise _unexpected("no reason, since there is a value", self.reason, "reason")
        if self.spread is not None:
            _check_number(self.spread, "spread", least=0)
        if self.interval is not None:
            _check_interval(self.interval)
            object.__setattr__(self, "interval", tuple(self.interval))
        _check_labels(self.labels)


def write_result(
    path: str | os.PathLike[str],
    *,
    experiment: str,
    metrics: Iterable[Metric],
    seeds: Iterable[int],
    settings: Mapping[str, Any],
    seconds: float,
    command: str | None = None,
    commit: Mapping[str, Any] | None = None,
    hardware: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> dict[str, Any]:
    """Write a record to `path`, its provenance filled in, and return it.

    `seeds` is empty where nothing was random; `seconds` is the wall time of the whole experiment;
    `command` is by default the one this process was started with. A long run that may outlive a
    change of the checkout calls `current_commit()` at its start and passes it as `commit`. Where
    the work was done earlier, or elsewhere, `hardware`, `versions` and `date` are those of then.
    """
    record = {
        "format": FORMAT,
        "version": VERSION,
        "experiment": experiment,
        "metrics": [_metric_record(metric) for metric in metrics],
        "seeds": _plain(list(seeds), "seeds"),
        "settings": _plain(settings, "settings"),
        "command": current_command() if command is None else command,
        "commit": dict(current_commit() if commit is None else commit),
        "hardware": dict(current_hardware() if hardware is None else hardware),
        "versions": dict(current_versions() if versions is None else versions),
        "seconds": _plain(seconds, "seconds"),
        "date": current_date() if date is None else date,
    }
    validate_record(record)
    write_json(path, record)
    return record


def read_result(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the record at `path`; refuse, naming the file, whatever is not a complete record."""
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise InputError(
            f"expected a results file at {name!r}, got none; check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"expected JSON text in {name!r}, got other bytes; check that it is a results file"
        ) from error
    try:
        record = parse_json(text)
    except ValueError as error:
        raise InputError(
            f"expected JSON in {name!r}, got: {error}; write the file again with write_result"
        ) from error
    try:
        validate_record(record)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    assert isinstance(record, dict)
    return record


def validate_record(record: object) -> None:
    """Refuse `record` unless it is complete: every field, and nothing that is not a field."""
    if not isinstance(record, Mapping):
        raise InputError(
            f"expected a record with named fields, got {_shown(record)}; use write_result"
        )
    if record.get("format") != FORMAT:
        raise _unexpected(repr(FORMAT), record.get("format"), "format")
    if record.get("version") != VERSION or isinstance(record.get("version"), bool):
        raise InputError(
            f"expected version {VERSION} of the format, got {_shown(record.get('version'))};"
            " read the file with the release of arcsm that wrote it"
        )
    _check_fields(record, "record", {"format": _accept, "version": _accept, **_RECORD_FIELDS})


# Provenance


def current_commit(directory: str | os.PathLike[str] = _PACKAGE) -> dict[str, Any]:
    """Return the commit of the checkout the package runs from, and whether its tree was dirty.

    Changes under `results/` do not count: an experiment's own output would make the next one's
    tree dirty. Where there is no checkout the environment variable ARCSM_COMMIT names the commit;
    whether the tree was dirty is then unknown (None), unless the name ends in "-dirty".
    """
    # An installed package may lie inside the checkout of another project, which does not track it.
    if _git(directory, "ls-files", "--error-unmatch", "results.py") is not None:
        commit = _git(directory, "rev-parse", "HEAD")
        changes = _git(directory, "status", "--porcelain", "--", ":/", ":(top,exclude)results")
        if commit and changes is not None:
            return {"id": commit, "dirty": changes != ""}
    commit = os.environ.get("ARCSM_COMMIT", "").strip()
    if not commit:
        raise InputError(
            "expected to know the commit of the code, got neither a git checkout of arcsm nor the"
            " variable ARCSM_COMMIT; set ARCSM_COMMIT to the commit the code was taken from"
        )
    bare = commit.removesuffix("-dirty")
    return {"id": bare, "dirty": True if bare != commit else None}


def current_date() -> str:
    """Return the date and time in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def current_command() -> str:
    """Return the command this process was started with, without any path of this machine."""
    program, *arguments = sys.argv or [""]
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    if module is not None and program.endswith(".py"):  # python -m
        start = ["python", "-m", module.name.removesuffix(".__main__")]
    elif program.endswith(".py"):
        start = ["python", _without_machine_path(program)]
    elif program in ("", "-c"):
        start = ["python", *([program] if program else [])]
    else:  # an installed script
        start = [Path(program).name]
    return shlex.join([*start, *map(_without_machine_path, arguments)])


def current_hardware() -> dict[str, Any]:
    """Return the processor, the cores open to this process, the GPUs and the memory in GiB."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "cpu": _cpu_model(),
        "cores": _cores(),
        "gpu": ", ".join(gpus) or None,
        "memory_gib": _memory_gib(),
    }


def current_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that decide the numbers."""
    # Imported by name at the time of the call: as an import statement it would tie this module to
    # everything the package re-exports.
    arcsm = importlib.import_module("arcsm")
    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "arcsm": arcsm.__version__,
    }


def _git(directory: str | os.PathLike[str], *arguments: str) -> str | None:
    """Return what git prints, or None where it fails or is not there."""
    # Inside a git hook these would point git at the repository of the hook.
    pointers = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")
    environment = {name: value for name, value in os.environ.items() if name not in pointers}
    try:
        run = subprocess.run(
            ["git", "-C", os.fspath(directory), *arguments],
            capture_output=True,
            check=True,
            encoding="utf-8",
            errors="replace",
            env=environment,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return run.stdout.strip()


def _without_machine_path(argument: str) -> str:
    """Make an absolute path, alone or after `option=`, relative to the checkout or a bare name."""
    option, value = "", argument
    while not _is_absolute(value):
        name, equals, value = value.partition("=")
        if not equals:
            return argument
        option += name + equals
    path = Path(value)
    for root in (_PACKAGE.parent, Path.cwd()):
        if path.is_relative_to(root):
            return option + path.relative_to(root).as_posix()
    return option + path.name


def _is_absolute(text: str) -> bool:
    return PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, OSError, ValueError):  # not a POSIX system
        return None


# From Python to JSON


def _metric_record(metric: object) -> dict[str, Any]:
    if not isinstance(metric, Metric):
        raise InputError(f"expected metrics of type Metric, got {_shown(metric)}; use Metric(...)")
    return {**asdict(metric), "interval": None if metric.interval is None else [*metric.interval]}


def _plain(value: Any, where: str) -> Any:
    """Return `value` made of what JSON holds: None, bool, finite numbers, str, list and dict."""
    if isinstance(value, (np.generic, np.ndarray, torch.Tensor)):
        if math.prod(value.shape) != 1:
            raise InputError(
                f"expected a single number for {where}, got an array of shape {tuple(value.shape)};"
                " convert it with .tolist()"
            )
        value = value.item()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        _check_number(value, where)
        return value
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if isinstance(value, Mapping):
        for key in value:
            _check_text(key, f"a name in {where}")
        return {key: _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise _unexpected("a number, a text, a list or a dictionary", value, where)


# Checks; each takes a value and the name under which the message speaks of it

_Check = Callable[[Any, str], None]


def _unexpected(expected: str, value: object, where: str) -> InputError:
    return InputError(f"expected {expected} in {where}, got {_shown(value)}; correct {where}")


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _accept(value: object, where: str) -> None:
    """Nothing left to check."""


def _check_fields(value: object, where: str, checks: Mapping[str, _Check]) -> None:
    """Refuse a mapping with a field missing, a field too many, or a field that fails its check."""
    if not isinstance(value, Mapping):
        raise _unexpected(f"the fields {', '.join(checks)}", value, where)
    missing = [name for name in checks if name not in value]
    if missing:
        raise InputError(
            f"expected the fields {', '.join(checks)} in {where}, got no {', '.join(missing)};"
            " write the record again with write_result"
        )
    foreign = [str(name) for name in value if name not in checks]
    if foreign:
        raise InputError(
            f"expected only the fields {', '.join(checks)} in {where}, got also"
            f" {', '.join(foreign)}; put what the experiment adds into settings or labels"
        )
    for name, check in checks.items():
        check(value[name], name if where == "record" else f"{where}.{name}")


def _check_text(value: object, where: str) -> None:
    if not isinstance(value, str) or not value.strip():
        raise _unexpected("a text that is not empty", value, where)


def _check_number(value: object, where: str, least: float = -math.inf) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _unexpected("a finite number", value, where)
    if value < least:
        raise _unexpected(f"a number of at least {least}", value, where)


def _check_count(value: object, where: str, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _unexpected(f"a whole number of at least {least}", value, where)


def _check_interval(value: object) -> None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        raise _unexpected("a low and a high end", value, "interval")
    for end in value:
        _check_number(end, "interval")
    if value[0] > value[1]:
        raise _unexpected("the low end first", value, "interval")


def _check_labels(labels: object) -> None:
    if not isinstance(labels, Mapping):
        raise _unexpected("a dictionary", labels, "labels")
    for name, value in labels.items():
        if isinstance(value, (list, dict)):
            raise _unexpected("a single value", value, f"labels.{name}")
    _check_no_machine_path(labels, "labels")


def _check_metrics(value: object, where: str) -> None:
    if not isinstance(value, list) or not value:
        raise _unexpected("a list of at least one metric", value, where)
    names = {item.name: _accept for item in fields(Metric)}
    seen = set()
    for index, entry in enumerate(value):
        _check_fields(entry, f"{where}[{index}]", names)
        try:
            metric = Metric(**entry)
        except InputError as error:
            raise InputError(f"{where}[{index}]: {error}") from error
        identity = metric.name, json.dumps(metric.labels, sort_keys=True)
        if identity in seen:
            raise InputError(
                f"expected one metric for each name and labels, got {metric.name!r} with"
                f" {metric.labels} twice; tell them apart by labels"
            )
        seen.add(identity)


def _check_seeds(value: object, where: str) -> None:
    if not isinstance(value, list):
        raise _unexpected("a list of whole numbers", value, where)
    for seed in value:
        _check_count(seed, where, least=0)


def _check_settings(value: object, where: str) -> None:
    if not isinstance(value, Mapping):
        raise _unexpected("a dictionary", value, where)
    _plain(value, where)
    _check_no_machine_path(value, where)


def _check_command(value: object, where: str) -> None:
    _check_text(value, where)
    assert isinstance(value, str)
    try:
        arguments = shlex.split(value)
    except ValueError as error:
        raise _unexpected("a command that a shell can split", value, where) from error
    _check_no_machine_path(arguments, where)


def _check_no_machine_path(value: object, where: str) -> None:
    """Refuse absolute paths: they say nothing elsewhere, and they tell of the machine."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _check_no_machine_path(item, f"{where}.{name}")
    elif isinstance(value, list):
        for item in value:
            _check_no_machine_path(item, where)
    elif isinstance(value, str) and any(map(_is_absolute, value.split("="))):
        raise _unexpected("no absolute path", value, where)


def _check_dirty(value: object, where: str) -> None:
    if value is not None and not isinstance(value, bool):
        raise _unexpected("true, false, or null for unknown", value, where)


def _check_optional_text(value: object, where: str) -> None:
    if value is not None:
        _check_text(value, where)


def _check_seconds(value: object, where: str) -> None:
    _check_number(value, where, least=0)


def _check_memory(value: object, where: str) -> None:
    if value is not None:
        _check_number(value, where, least=0)


def _check_cores(value: object, where: str) -> None:
    _check_count(value, where, least=1)


def _check_date(value: object, where: str) -> None:
    try:
        date = datetime.datetime.fromisoformat(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise _unexpected("a date and time in ISO format", value, where) from error
    if date.utcoffset() != datetime.timedelta(0):
        raise _unexpected("a time in UTC, ending in +00:00", value, where)


def _check_commit(value: object, where: str) -> None:
    _check_fields(value, where, {"id": _check_text, "dirty": _check_dirty})


def _check_hardware(value: object, where: str) -> None:
    checks: dict[str, _Check] = {
        "cpu": _check_text,
        "cores": _check_cores,
        "gpu": _check_optional_text,
        "memory_gib": _check_memory,
    }
    _check_fields(value, where, checks)


def _check_versions(value: object, where: str) -> None:
    _check_fields(value, where, dict.fromkeys(("python", "torch", "numpy", "arcsm"), _check_text))


_RECORD_FIELDS: dict[str, _Check] = {
    "experiment": _check_text,
    "metrics": _check_metrics,
    "seeds": _check_seeds,
    "settings": _check_settings,
    "command": _check_command,
    "commit": _check_commit,
    "hardware": _check_hardware,
    "versions": _check_versions,
    "seconds": _check_seconds,
    "date": _check_date,
}
