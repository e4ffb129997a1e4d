"""What a step of training computes, moves and keeps, and how fast the machine does either."""

import math
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Passes over each parameter that Adam makes: reads of p, g, m and v, writes of p, m and v.
ADAM_PASSES = 7

_MATRIX_PRODUCTS = {
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.baddbmm.default,
}

Step = Callable[[], None]


class LiveTensors(TorchDispatchMode):
    """The bytes of tensors that came to life while it is on, and that live at the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note the storages of what an operation returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                if storage not in self._known:
                    size = storage.nbytes()
                    self._known[storage] = size
                    self.now += size
                    self.peak = max(self.peak, self.now)
                    weakref.finalize(storage, self._free, size)
        return result

    def _free(self, size: int) -> None:
        self.now -= size


class MatrixTraffic(TorchDispatchMode):
    """The bytes that matrix products read and write: what fusing the rest cannot save."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add up operands and results."""
        result = func(*args, **(kwargs or {}))
        if func in _MATRIX_PRODUCTS:
            tensors = [part for part in tree_leaves((args, result)) if torch.is_tensor(part)]
            self.bytes += sum(part.numel() * part.element_size() for part in tensors)
        return result


def on_gpu(device: str) -> bool:
    """Return whether the device is a GPU of CUDA."""
    return torch.device(device).type == "cuda"


def synchronise(device: str) -> None:
    """Wait until the device has done what it was given."""
    if on_gpu(device):
        torch.cuda.synchronize()


def measure_machine(device: str, *, size: int, copy_mib: int) -> dict[str, float]:
    """Return FLOPs a second of a product of size², and bytes a second of a copy."""
    matrix = torch.randn(size, size, device=device)
    source = torch.empty(copy_mib * 2**18, device=device).fill_(1.0)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)

    def product() -> None:
        torch.mm(matrix, matrix)

    best = dict.fromkeys((product, copy), math.inf)
    for _ in range(5):
        for step in best:
            best[step] = min(best[step], seconds(step, device))
    moved = 2 * source.numel() * source.element_size()
    return {"flops_per_s": 2 * size**3 / best[product], "bytes_per_s": moved / best[copy]}


def seconds(step: Step, device: str, inner: int = 1) -> float:
    """Return the time of a step, the mean of `inner` in a row."""
    synchronise(device)
    start = time.perf_counter()
    for _ in range(inner):
        step()
    synchronise(device)
    return (time.perf_counter() - start) / inner


def roofline_seconds(work: Mapping[str, float], machine: Mapping[str, float]) -> float:
    """Return the least time: computing and moving at once, each at the speed that was measured."""
    return max(work["flops"] / machine["flops_per_s"], work["bytes"] / machine["bytes_per_s"])
