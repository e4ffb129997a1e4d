"""Many small systems of equations at once by a Triton kernel; imported where there is a GPU."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]
from jaxtyping import Float
from torch import Tensor


def solve_definite(
    matrix: Float[Tensor, "*batch rows rows"], right: Float[Tensor, "*batch rows columns"]
) -> Float[Tensor, "*batch rows columns"]:
    """Return matrix⁻¹ right for positive definite matrices of at most 128 rows, in float32.

    By elimination without pivots, which such matrices do not need. A program has its matrix in
    registers; with more rows there is no room for it.
    """
    size, columns = right.shape[-2:]
    matrix, right = matrix.contiguous(), right.contiguous()
    found = torch.empty_like(right)
    many = right.numel() // max(1, size * columns)
    if many:
        width = triton.next_power_of_2(size)
        with torch.cuda.device_of(right):
            _eliminate[(many,)](
                found, matrix, right, size, columns,
                SIZE=width, COLUMNS=triton.next_power_of_2(columns), num_warps=max(4, width // 8),
            )  # fmt: skip
    return found


@triton.jit
def _eliminate(  # type: ignore[no-untyped-def]
    found_ptr, matrix_ptr, right_ptr, size, columns, SIZE: tl.constexpr, COLUMNS: tl.constexpr
):
    which = tl.program_id(0).to(tl.int64)
    row, column = tl.arange(0, SIZE), tl.arange(0, COLUMNS)
    there = row < size
    inside = there[:, None] & there[None, :]
    filled = there[:, None] & (column < columns)[None, :]
    places = which * size * columns + row[:, None] * columns + column[None, :]
    a = tl.load(
        matrix_ptr + which * size * size + row[:, None] * size + row[None, :],
        mask=inside, other=0.0,
    )  # fmt: skip
    b = tl.load(right_ptr + places, mask=filled, other=0.0)
    for k in range(size):
        # Row and column k, each as a sum with nothing but zeros beside it.
        across = tl.sum(tl.where(row[:, None] == k, a, 0.0), axis=0)
        down = tl.sum(tl.where(row[None, :] == k, a, 0.0), axis=1)
        pivot = tl.sum(tl.where(row == k, down, 0.0), axis=0)
        right = tl.sum(tl.where(row[:, None] == k, b, 0.0), axis=0)
        # Row k is divided by the pivot, and taken from all others so often that these have 0 there.
        share = tl.where(row == k, pivot - 1, down) / pivot
        a -= share[:, None] * across[None, :]
        b -= share[:, None] * right[None, :]
    tl.store(found_ptr + places, b, mask=filled)
