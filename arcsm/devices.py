"""Where computations run."""

import torch

from arcsm.errors import InputError


def check_device(device: torch.device | str) -> None:
    """Refuse a device that torch does not know or cannot use."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InputError(
            f"expected a device that torch can use here, got {str(device)!r} ({reason}); use cpu"
        ) from error
