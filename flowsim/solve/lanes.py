"""Many lanes on whatever there is: on a CPU chunks that fit the caches, one thread for each core.

XLA runs a loop on one core. Lanes are independent, so they are cut into chunks of one size, which are dispatched
from a thread pool: as fast as one host device for each core, without asking the user to configure JAX beforehand.
An accelerator runs all lanes of a call at once, so there they go in chunks as large as can be, one after the other.
"""

import concurrent.futures
import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from flowsim import _jax  # noqa: F401  float64 first

# Lanes of one call. A chunk's state fits the second-level cache, and a call is long enough to hide its overhead.
CHUNK = 1024
# The same where one call runs all its lanes side by side; what bounds it is memory.
WIDE_CHUNK = 1 << 15
# Fewer lanes or times than this are solved as this many, repeating the last: in lockstep they cost next to nothing,
# while another shape takes seconds to compile.
FEWEST = 4


# XLA uses half of the vector width of the processors that have 512 bits, which costs a tenth of the speed here.
_WIDE = {"xla_cpu_prefer_vector_width": 512}


def compile_lanes(function: Callable[..., Any]) -> Callable[..., Any]:
    """`jax.jit` for functions that `map_lanes` calls: the first argument is static, vectors are as wide as they can be.

    Only for calls with concrete arguments, since JAX takes such options for whole programs only.

    Args:
        function: takes a hashable first argument, then arrays.

    Returns:
        The function, compiled at its first call; its attribute `compiled` gives what `jax.jit` returned.
    """

    @functools.cache
    def compiled() -> Any:
        return jax.jit(function, static_argnums=0, compiler_options=_options())

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        return compiled()(*args)

    call.__dict__["compiled"] = compiled
    return call


@functools.cache
def _options() -> dict[str, int] | None:
    """The compiler options of this backend and this version of XLA; options may go, results do not depend on them."""
    if not on_cores():
        return None
    try:
        jax.jit(lambda x: x + 1, compiler_options=_WIDE)(0.0)
    except jax.errors.JaxRuntimeError:
        return None
    return _WIDE


def on_cores() -> bool:
    """Whether solvers run on a CPU, whose cores are to be filled by threads."""
    return jax.default_backend() == "cpu"


def padded(n: int) -> int:
    """Lanes of the compiled function that solves `n` lanes: a power of two up to a chunk, so that few sizes compile."""
    return min(max(1 << (n - 1).bit_length(), FEWEST), CHUNK if on_cores() else WIDE_CHUNK)


def at_least_a_few(times: np.ndarray) -> np.ndarray:
    """The times of the compiled function that solves up to `FEWEST` times: the last of them repeated."""
    return np.concatenate([times, np.repeat(times[-1:], max(FEWEST - len(times), 0))])


def asked_for(solution: Any, n: int) -> Any:
    """Drops repeated times, which stand after the first `n`, from arrays of shape `(lanes, time, ...)`."""
    return jax.tree.map(lambda array: array[:, :n] if array.ndim > 1 and array.shape[1] > n else array, solution)


def map_lanes(solve: Callable[..., Any], lanes: Sequence[np.ndarray], size: int | None = None) -> Any:
    """Applies a function of lane arrays to any number of lanes.

    Args:
        solve: takes arrays of shape `(chunk,)` and returns a pytree of arrays whose leading axis is `chunk`; compiled
            once for each chunk size.
        lanes: concrete arrays of shape `(n,)`.
        size: lanes of a chunk on a CPU; by default `padded(n)`. Elsewhere a chunk is no smaller than that.

    Returns:
        What `solve` returns, with leading axis `n`.
    """
    n = len(lanes[0])
    size = (size or padded(n)) if on_cores() else max(size or 1, padded(n))
    whole = -(-n // size) * size
    # padding repeats the last lane, which costs no more steps than its original
    full = [np.concatenate([lane, np.repeat(lane[-1:], whole - n)]) for lane in lanes]
    if whole == size:
        only = solve(*full)
        return only if n == size else jax.tree.map(lambda array: array[:n], only)
    if not on_cores():
        chunks = [solve(*(lane[begin : begin + size] for lane in full)) for begin in range(0, whole, size)]
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[:n], *chunks)

    one_at_a_time = threading.Lock()
    results: list[np.ndarray] = []

    def work(begin: int) -> Any:
        with one_at_a_time:  # the first call compiles, the others find it done; what is locked is only the dispatch
            chunk = solve(*(lane[begin : begin + size] for lane in full))
        # waiting inside the thread: calls that one thread has queued run one after another
        leaves, structure = jax.tree.flatten(jax.block_until_ready(chunk))
        with one_at_a_time:
            if not results:
                results.extend(_aligned((whole, *leaf.shape[1:]), leaf.dtype) for leaf in leaves)
        for result, leaf in zip(results, leaves, strict=True):
            result[begin : begin + size] = np.asarray(leaf)
        return structure

    with concurrent.futures.ThreadPoolExecutor(cores()) as pool:
        structures = list(pool.map(work, range(0, whole, size)))
    return jax.tree.unflatten(structures[0], [jax.device_put(result[:n], may_alias=True) for result in results])


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that starts on a cache line, which JAX can adopt without copying it."""
    size = int(np.prod(shape)) * dtype.itemsize
    buffer = np.empty(size + 64, np.uint8)
    begin = -buffer.ctypes.data % 64
    return buffer[begin : begin + size].view(dtype).reshape(shape)
