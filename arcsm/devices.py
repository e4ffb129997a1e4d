"""Where computations run, and how exactly."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch

from arcsm.errors import InputError


def check_device(device: torch.device | str) -> None:
    """Refuse a device that torch does not know or cannot use."""
    try:
        torch.zeros(1, device=device).item()  # of the device meta nothing can be read
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason, others = "", ", or cuda where there is a GPU"
        if str(device).partition(":")[0] == "cuda":
            # What torch says of other devices is about its own insides, and long.
            reason, others = f" ({_first_sentence(error)})", ""
        raise InputError(
            f"expected a device that torch can use here, got {str(device)!r}{reason};"
            f" use cpu{others}"
        ) from error


def _first_sentence(error: Exception) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line.split(". ")[0].rstrip(".")


def has_bfloat16(device: torch.device | str) -> bool:
    """Say whether a device computes in bfloat16: GPUs do, and CPUs that have instructions for it.

    Others emulate it, and are slower for it.
    """
    if torch.device(device).type != "cpu":
        return True
    # Older releases of torch do not tell.
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16"))


def on_device(device: torch.device | str) -> AbstractContextManager[Any]:
    """Make a GPU the current one: "the current stream", and graphs, are those of the current GPU.

    >>> with on_device("cpu"):  # of which there is one
    ...     pass
    """
    kind = torch.device(device)
    return torch.cuda.device(kind) if kind.type == "cuda" else nullcontext()


@cache
def has_triton() -> bool:
    """Say whether kernels for GPUs can be compiled; on some systems torch has no Triton."""
    return find_spec("triton") is not None


@contextmanager
def matmul_precision(precision: str | None) -> Iterator[None]:
    """Multiply matrices of float32 with such a precision, as torch names it; None changes nothing.

    With "highest" convolutions on a GPU keep all digits, too.

    >>> with matmul_precision("high"):
    ...     torch.get_float32_matmul_precision()
    'high'
    """
    former = torch.get_float32_matmul_precision()
    convolutions = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(former if precision is None else precision)
    if precision == "highest":
        torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(former)
        torch.backends.cudnn.allow_tf32 = convolutions
