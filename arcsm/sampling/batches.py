"""From a number of rows to batches of them: checks, noise, and memory that stays bounded."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from arcsm.conditional.flow import flow_levels
from arcsm.conditional.fused import check_fusable
from arcsm.data.arrays import as_rows
from arcsm.errors import ArcsmError, InputError
from arcsm.sampling.captured import can_capture, captured_walk
from arcsm.sampling.chain import Chain, Draw, Request, TensorSnap, walk
from arcsm.sampling.fixed_point import solve_fixed_point

METHODS = ("auto", "flow", "quadrature", "langevin")
SOLVERS = ("sequential", "jacobi", "gauss-seidel")

# Numbers that a walk may keep for its batch: some 256 MB.
_NUMBERS = 2**26


def draw_batches(
    model: Chain,
    rows: int,
    how: Draw,
    *,
    uniform: Float[Tensor, "rows dims"] | None = None,
    given: Float[Tensor, "#rows known"] | None = None,
    condition: Float[Tensor, "rows condition_dims"] | None = None,
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Float[Tensor, "batch dims"]]:
    """Draw `rows` rows in batches, each when it is asked for. What is wrong is said at once."""
    check_draw(model, how)
    _check_generator(model, generator)
    if condition is not None:
        condition = as_rows(condition, name="condition", dtype=model.shift.dtype)
        condition = condition.to(model.shift.device)
    model.context.check_condition(condition, rows)
    whole = Request(
        rows, _checked_uniform(model, uniform, rows, how), _given(model, given, rows), condition
    )
    if batch_size is None:
        batch_size = max(1, _NUMBERS // _numbers_per_row(model, how))
    elif not _positive_whole(batch_size):
        raise InputError(f"expected a positive whole batch_size, got {batch_size!r}; or None")
    return _drawn(model, whole.split(batch_size), how, generator)


def check_draw(model: Chain, how: Draw) -> None:
    """Refuse a way to draw that the model does not have."""
    if how.solver not in SOLVERS:
        raise InputError(f"expected a solver among {SOLVERS}, got {how.solver!r}; choose one")
    if how.method == "flow":
        if model.noise.has_one_level:
            raise InputError(
                "expected more than one noise level for the flow, got one; use the method"
                ' "quadrature", or noise from a larger sigma_max to sigma_min'
            )
        flow_levels(model.noise, model.flow_steps)
    if how.method == "langevin":
        steps, size = how.langevin_steps, how.langevin_step_size
        if not _positive_whole(steps) or not (size is None or 0 < size < math.inf):
            raise InputError(
                "expected at least one Langevin step and a positive step size, got"
                f" steps={steps!r}, step_size={size!r}; correct langevin_steps, langevin_step_size"
            )
    if how.solver != "sequential":
        if how.method == "langevin":
            raise InputError(
                f"expected the sequential solver for Langevin dynamics, got {how.solver!r}: random"
                ' steps have no fixed point; use the method "flow" or "quadrature"'
            )
        if how.snap is not None or how.compile:
            raise InputError(
                "expected neither snap nor compile with the solver"
                f" {how.solver!r}, got one; use the sequential solver"
            )
    if how.block is not None:
        if how.solver != "gauss-seidel":
            raise InputError(
                f"expected a block with the solver gauss-seidel alone, got {how.block!r} with"
                f" {how.solver!r}; leave it out, or choose that solver"
            )
        if not _positive_whole(how.block):
            raise InputError(f"expected a positive whole block, got {how.block!r}; or None")
    if how.compile:
        if how.method != "flow":
            raise InputError(
                f"expected the method flow with compile, got {how.method!r}; sample without compile"
            )
        check_fusable(model.head, model.noise)


@torch.no_grad()
def _drawn(
    model: Chain, requests: Iterator[Request], how: Draw, generator: torch.Generator | None
) -> Iterator[Float[Tensor, "batch dims"]]:
    for request in requests:
        if request.uniform is None and how.method != "langevin":
            noise = torch.rand(
                request.rows,
                model.dims,
                generator=generator,
                dtype=model.shift.dtype,
                device=model.shift.device,
            )
            request = Request(request.rows, noise, request.given, request.condition)
        yield _within_memory(model, request, how, generator)


def _within_memory(
    model: Chain, request: Request, how: Draw, generator: torch.Generator | None
) -> Float[Tensor, "batch dims"]:
    """Draw a batch, in halves if the memory does not suffice for the whole."""
    x = None
    try:
        x = _draw(model, request, how, generator)
    except (MemoryError, RuntimeError) as error:
        if not is_of_memory(error):
            raise
        if request.rows == 1:
            raise ArcsmError(
                "expected memory for one row at least, got none; free some, or use a smaller model"
            ) from error
    if x is None:  # outside of the handler, which keeps what was allocated alive
        halves = request.split(-(-request.rows // 2))
        return torch.cat([_within_memory(model, half, how, generator) for half in halves])
    if not bool(x.isfinite().all()):
        column = int((~x.isfinite()).any(0).nonzero()[0])
        raise ArcsmError(
            f"expected finite samples, got others in column {column}: the {how.method} left its"
            " range; train the model on standardised data, or look at it with check()"
        )
    return x


def _draw(
    model: Chain, request: Request, how: Draw, generator: torch.Generator | None
) -> Float[Tensor, "batch dims"]:
    if how.solver != "sequential":
        return solve_fixed_point(model, request, how).x
    if how.compile is not False and can_capture(model, how):
        snap = how.snap if isinstance(how.snap, TensorSnap) else None
        return captured_walk(model, request, snap)
    return walk(model, request, how, generator)


def is_of_memory(error: Exception) -> bool:
    """Say whether an error is one of memory that did not suffice."""
    # On a CPU torch has no class of its own for it.
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or "can't allocate memory" in str(error)


def _numbers_per_row(model: Chain, how: Draw) -> int:
    """Return about how many numbers a batch keeps for each row."""
    numbers = model.context.numbers_per_row
    if how.compile or (how.compile is None and can_capture(model, how)):
        # What is compiled has no chunks: coefficients of all steps of the flow at once, and the
        # gates made of them.
        levels = len(flow_levels(model.noise, model.flow_steps))
        numbers += levels * (7 * model.head.steps + model.context.width)
    return numbers


def _positive_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _check_generator(model: Chain, generator: torch.Generator | None) -> None:
    device = model.shift.device.type
    if generator is not None and generator.device.type != device:
        raise InputError(
            f"expected a generator on the device of the model, {device}, got one on"
            f" {generator.device.type}; make it with torch.Generator({device!r})"
        )


def _checked_uniform(model: Chain, uniform: Tensor | None, rows: int, how: Draw) -> Tensor | None:
    if uniform is None:
        return None
    if how.method == "langevin":
        raise InputError(
            "expected a generator for Langevin dynamics, got uniform numbers: it is no function of"
            ' them; use the method "flow" or "quadrature"'
        )
    numbers = as_rows(uniform, dims=model.dims, name="uniform", dtype=model.shift.dtype)
    if len(numbers) != rows:
        raise InputError(
            f"expected uniform numbers for {rows} rows, got {len(numbers)} rows; pass one row of"
            " them for each row of samples"
        )
    if bool(((numbers < 0) | (numbers > 1)).any()):
        raise InputError("expected uniform numbers from 0 to 1, got others; pass probabilities")
    return numbers.to(model.shift.device)


def _given(model: Chain, given: Tensor | None, rows: int) -> Tensor | None:
    """Return the given values for each row, checked."""
    if given is None:
        return None
    values = as_rows(given, name="given", dtype=model.shift.dtype)
    if values.shape[1] > model.dims:
        raise InputError(
            f"expected at most {model.dims} given values for each row, got {values.shape[1]};"
            " pass values of the first scalars of the order"
        )
    if len(values) not in (1, rows):
        raise InputError(
            f"expected given values for one row or for {rows}, got {len(values)} rows; pass one"
            " row for all, or one for each"
        )
    return values.to(model.shift.device).expand(rows, -1)
