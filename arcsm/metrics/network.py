"""The network of the Fréchet inception distance: the InceptionV3 graph published in December 2015.

It is not the InceptionV3 of torchvision, whose features give other distances. It differs in its
weights and in its pools: the average pools do not count the padding, and the pool of the last block
takes the maximum. Batch normalisation is folded into the convolutions when weights are loaded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

SIDE = 299  # height and width of the images that the network takes
TAPS = (64, 192, 768, 2048)  # numbers of features, from the first layer that gives some to the last

# A convolution: the channels it makes, height and width of its kernel, and its stride.
_Shape = tuple[int, int, int, int]
# Steps one after another; the last step may be several convolutions side by side.
_Branch = Sequence[Sequence[_Shape]]
_Pool = Callable[[Tensor], Tensor]

_shrink: _Pool = partial(F.max_pool2d, kernel_size=3, stride=2)
_maximum: _Pool = partial(F.max_pool2d, kernel_size=3, stride=1, padding=1)
_average: _Pool = partial(F.avg_pool2d, kernel_size=3, stride=1, padding=1, count_include_pad=False)


class Convolution(nn.Conv2d):
    """A convolution with its normalisation folded in, and a rectifier."""

    bias: Tensor

    def __init__(self, channels: int, shape: _Shape, *, padded: bool = True):
        made, height, width, stride = shape
        # Where the image is halved it is not padded, whatever the kernel.
        padding = (height // 2, width // 2) if padded and stride == 1 else 0
        super().__init__(channels, made, (height, width), stride=stride, padding=padding)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k i j"]:
        """Return the convolution of x, and zero where it is negative."""
        return F.relu_(super().forward(x))


class _Shrink(nn.Module):
    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n c i j"]:
        return _shrink(x)


class _Block(nn.ModuleDict):
    """Branches side by side; what they make is stacked along the channels.

    Convolutions have the names of the usual state dictionaries: that of the branch, the number of
    the step where there are several, and a letter where a step has several side by side.
    """

    def __init__(self, channels: int, pool: _Pool, branches: Mapping[str, _Branch]):
        super().__init__()
        self._pool = pool
        self._branches: list[tuple[bool, list[list[str]]]] = []
        for branch, steps in branches.items():
            before, names = channels, []
            for number, shapes in enumerate(steps, start=1):
                name = f"{branch}_{number}" if len(steps) > 1 else branch
                letters = "ab" if len(shapes) > 1 else [""]
                names.append([name + letter for letter in letters])
                for full, shape in zip(names[-1], shapes, strict=True):
                    self[full] = Convolution(before, shape)
                before = shapes[0][0]
            self._branches.append((branch == "branch_pool", names))

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n k i j"]:
        """Return what all branches make of x."""
        made = []
        for pooled, steps in self._branches:
            parts = [self._pool(x) if pooled else x]
            for names in steps:
                parts = [self[name](parts[0]) for name in names]
            made += parts
        return torch.cat(made, 1)


class InceptionNetwork(nn.ModuleDict):
    """The network up to the layer whose averages over the image are `dims` features, one of `TAPS`.

    They are taken after the first pool (64) and the second (192), before the classifier beside the
    trunk (768), and at the end (2048); layers beyond are not made.
    """

    def __init__(self, dims: int = 2048):
        super().__init__(dict(_layers(dims)))

    def forward(self, x: Float[Tensor, "n 3 299 299"]) -> Float[Tensor, "n dims"]:
        """Return the features of images with values in [-1, 1)."""
        for layer in self.values():
            x = layer(x)
        return x.mean((2, 3))

    def convolutions(self) -> dict[str, Convolution]:
        """Return all convolutions by name, in the order of the published graph."""
        return {
            name: module for name, module in self.named_modules() if isinstance(module, Convolution)
        }


def _layers(dims: int) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and the layers up to the tap with `dims` features."""
    yield "Conv2d_1a_3x3", Convolution(3, (32, 3, 3, 2))
    yield "Conv2d_2a_3x3", Convolution(32, (32, 3, 3, 1), padded=False)
    yield "Conv2d_2b_3x3", Convolution(32, (64, 3, 3, 1))
    yield "MaxPool_1", _Shrink()
    if dims == TAPS[0]:
        return
    yield "Conv2d_3b_1x1", Convolution(64, (80, 1, 1, 1))
    yield "Conv2d_4a_3x3", Convolution(80, (192, 3, 3, 1), padded=False)
    yield "MaxPool_2", _Shrink()
    if dims == TAPS[1]:
        return
    yield "Mixed_5b", _block_of_35(192, pooled=32)
    yield "Mixed_5c", _block_of_35(256, pooled=64)
    yield "Mixed_5d", _block_of_35(288, pooled=64)
    yield "Mixed_6a", _block_to_17(288)
    yield "Mixed_6b", _block_of_17(128)
    yield "Mixed_6c", _block_of_17(160)
    yield "Mixed_6d", _block_of_17(160)
    yield "Mixed_6e", _block_of_17(192)
    if dims == TAPS[2]:
        return
    yield "Mixed_7a", _block_to_8(768)
    yield "Mixed_7b", _block_of_8(1280, _average)
    yield "Mixed_7c", _block_of_8(2048, _maximum)


def _block_of_35(channels: int, *, pooled: int) -> _Block:
    """A block on maps of 35 × 35."""
    return _Block(
        channels,
        _average,
        {
            "branch1x1": [[(64, 1, 1, 1)]],
            "branch5x5": [[(48, 1, 1, 1)], [(64, 5, 5, 1)]],
            "branch3x3dbl": [[(64, 1, 1, 1)], [(96, 3, 3, 1)], [(96, 3, 3, 1)]],
            "branch_pool": [[(pooled, 1, 1, 1)]],
        },
    )


def _block_to_17(channels: int) -> _Block:
    """The block from maps of 35 × 35 to 17 × 17."""
    return _Block(
        channels,
        _shrink,
        {
            "branch3x3": [[(384, 3, 3, 2)]],
            "branch3x3dbl": [[(64, 1, 1, 1)], [(96, 3, 3, 1)], [(96, 3, 3, 2)]],
            "branch_pool": [],
        },
    )


def _block_of_17(inner: int) -> _Block:
    """A block on maps of 17 × 17, with kernels of 7 × 7 taken apart into rows and columns."""
    first, row, column = (inner, 1, 1, 1), (inner, 1, 7, 1), (inner, 7, 1, 1)
    return _Block(
        768,
        _average,
        {
            "branch1x1": [[(192, 1, 1, 1)]],
            "branch7x7": [[first], [row], [(192, 7, 1, 1)]],
            "branch7x7dbl": [[first], [column], [row], [column], [(192, 1, 7, 1)]],
            "branch_pool": [[(192, 1, 1, 1)]],
        },
    )


def _block_to_8(channels: int) -> _Block:
    """The block from maps of 17 × 17 to 8 × 8."""
    first = (192, 1, 1, 1)
    return _Block(
        channels,
        _shrink,
        {
            "branch3x3": [[first], [(320, 3, 3, 2)]],
            "branch7x7x3": [[first], [(192, 1, 7, 1)], [(192, 7, 1, 1)], [(192, 3, 3, 2)]],
            "branch_pool": [],
        },
    )


def _block_of_8(channels: int, pool: _Pool) -> _Block:
    """A block on maps of 8 × 8, whose branches end in a row and a column side by side."""
    ends = [(384, 1, 3, 1), (384, 3, 1, 1)]
    return _Block(
        channels,
        pool,
        {
            "branch1x1": [[(320, 1, 1, 1)]],
            "branch3x3": [[(384, 1, 1, 1)], ends],
            "branch3x3dbl": [[(448, 1, 1, 1)], [(384, 3, 3, 1)], ends],
            "branch_pool": [[(192, 1, 1, 1)]],
        },
    )
