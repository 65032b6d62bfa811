"""Runs on whatever there is: all devices, or all cores of one CPU device, in parts that fit the memory."""

import concurrent.futures
import functools
import math
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.solve.lanes import compile_lanes, cores
from flowsim.symmetric import Layout
from flowsim.task import Task
from flowsim.training.step import Carry, Fixed, Lane, Program, chunk_go_on, chunk_start

GIB = 2**30
# Runs that a core takes side by side: few enough for its cache, enough to hide the overhead of a call.
CHUNK = 32

Device: TypeAlias = Any  # `jax.Device` is a variable to type checkers


class Machine:
    """Starts and advances the runs of one part.

    On one CPU device the runs are cut into chunks, at least one for each core, dispatched from threads; over several
    devices they are arrays, sharded. The arithmetic of a run does not depend on it.
    """

    def __init__(self, program: Program, fixed: Fixed, lanes: Lane, devices: Sequence[Device]):
        self._program, self._devices = program, tuple(devices)
        self._n = int(np.size(lanes.ratio))
        threads = cores() if len(devices) == 1 and self._devices[0].platform == "cpu" else 1
        per_chunk = -(-self._n // min(threads, self._n))
        if self._devices[0].platform == "cpu":
            per_chunk = min(per_chunk, CHUNK * len(devices))
        per_chunk = -(-per_chunk // len(devices)) * len(devices)
        self._chunks = -(-self._n // per_chunk)
        whole = per_chunk * self._chunks
        padded: list[Any] = [np.concatenate([a, np.repeat(a[-1:], whole - self._n)]) for a in map(np.asarray, lanes)]
        chunks: list[Any] = [Lane(*(a[i : i + per_chunk] for a in padded)) for i in range(0, whole, per_chunk)]
        self._per_chunk = per_chunk
        self._start, self._go_on = _compiled(self._devices)
        placed: Any = (fixed, chunks)
        self._spread = len(devices) > 1
        if self._spread:
            everywhere, spread = self._shardings()
            placed = jax.device_put(fixed, everywhere), jax.device_put(chunks, spread)
        elif self._devices[0] != jax.devices()[0]:
            placed = jax.device_put(placed, self._devices[0])
        self._fixed: Fixed = placed[0]
        self._lanes: list[Lane] = placed[1]

    def start(self) -> list[Carry]:
        """All runs at step 0, one carry for each chunk."""
        return self._each(lambda i: self._start(self._program, self._fixed, self._lanes[i]))

    def go_on(self, carries: list[Carry], gaps: np.ndarray) -> tuple[list[Carry], Any]:
        """Takes the steps of a stretch.

        Args:
            carries: where the chunks stand.
            gaps: steps to each point of the grid from the previous one.

        Returns:
            Where they stand then, and what was seen, as NumPy arrays with a leading axis over the runs.
        """
        done = self._each(
            lambda i: self._go_on(self._program, self._fixed, self._lanes[i], carries[i], jnp.asarray(gaps))
        )
        return [carry for carry, _ in done], self.gather([seen for _, seen in done])

    def gather(self, chunks: list[Any]) -> Any:
        """NumPy arrays of all chunks, one after the other, without the padding."""
        return jax.tree.map(lambda *parts: np.concatenate([np.asarray(p) for p in parts])[: self._n], *chunks)

    def scatter(self, leaves: Sequence[np.ndarray]) -> list[Carry]:
        """The carries whose gathered leaves are given."""
        shapes: Any = jax.eval_shape(self._shape_of_start, self._fixed, self._lanes[0])
        like = jax.tree.structure(shapes)
        whole = self._per_chunk * self._chunks
        full = [np.concatenate([leaf, np.repeat(leaf[-1:], whole - self._n, axis=0)]) for leaf in leaves]
        chunks = [[leaf[i : i + self._per_chunk] for leaf in full] for i in range(0, whole, self._per_chunk)]
        carries: Any = [jax.tree.unflatten(like, chunk) for chunk in chunks]
        return jax.device_put(carries, self._shardings()[1] if self._spread else self._devices[0])

    def shape_of_stretch(self, carry: Carry, gaps: np.ndarray) -> Any:
        """What `go_on` sees, for `jax.eval_shape`."""
        return chunk_go_on(self._program, self._fixed, self._lanes[0], carry, jnp.asarray(gaps))[1]

    def _shape_of_start(self, fixed: Fixed, lanes: Lane) -> Carry:
        return chunk_start(self._program, fixed, lanes)

    def _shardings(self) -> tuple[NamedSharding, NamedSharding]:
        mesh = _mesh(self._devices)
        return NamedSharding(mesh, P()), NamedSharding(mesh, P("lanes"))

    def _each(self, call: Callable[[int], Any]) -> list[Any]:
        if self._chunks == 1:
            return [jax.block_until_ready(call(0))]
        one_at_a_time = threading.Lock()

        def work(i: int) -> Any:
            with one_at_a_time:  # the first call compiles, the others find it done
                result = call(i)
            return jax.block_until_ready(result)  # in the thread: what one thread has queued runs one after another

        workers = 1 if self._spread else min(self._chunks, cores())  # sharded arrays keep all devices busy as it is
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            return list(pool.map(work, range(self._chunks)))


def memory(program: Program, fixed: Fixed, lanes: Lane, points: int) -> int:
    """Bytes that one run takes at a time, estimated: parameters and what a step makes of them, activations, records."""
    one = Lane(*(np.asarray(array)[:1] for array in lanes))
    carry: Any = _start.eval_shape(program, fixed, one)
    layout, examples = program.plan.layout, fixed.examples
    itemsize = examples.evaluation.weights.dtype.itemsize
    rows = max(examples.evaluation.weights.shape[1], program.source.batch or 0)
    own = 0 if program.source.batch is not None or examples.training is None else _bytes(examples.training, axis=1)
    width = layout.tokens + layout.outputs
    if program.source.form == "sequences":  # one vector for each position, with its derivative
        sampler = program.source.sampler
        positions = sampler.positions if sampler is not None else jax.tree.leaves(examples.training)[0].shape[2]
        width += positions * (layout.tokens if fixed.embedding is None else fixed.embedding.tokens.shape[1])
    activations = 6 * itemsize * rows * width
    record = 8 * (12 + 3 * len(program.plan.structure.roles))
    return 4 * _bytes(carry) + own + activations + points * record


def refuse_too_large(task: Task, devices: Sequence[Device]) -> None:
    """Refuses, before anything is allocated, a task of which not even one run fits the memory.

    Raises:
        InvalidInput: with the size and what to do.
    """
    layout, limit = Layout.of(task), memory_limit(devices)
    rows = len(task.compositions) * task.classes
    needed = 8 * (5 * layout.tokens * (layout.queries + layout.outputs) + 6 * rows * (layout.tokens + layout.outputs))
    if needed > limit:
        raise InvalidInput(
            f"classes={task.classes} makes {layout.tokens} tokens, and one run of training would take about "
            f"{needed / GIB:.3g} GiB of the {limit / GIB:.3g} that there are; use fewer classes or types, or "
            "flowsim.descend, which trains the symmetric blocks."
        )


def memory_limit(devices: Sequence[Device]) -> int:
    """Bytes that training may take: three quarters of the devices' memory, or of the machine's where they have none.

    CPU devices share the machine's memory, and some backends do not say how much of their own they have.
    """
    own = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    known = [limit for limit in own if limit is not None]
    if len(known) < len(own):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") * 3 // 4
    return sum(known) * 3 // 4


def _bytes(tree: Any, axis: int = 0) -> int:
    """Bytes of all arrays of a tree, or of one entry along the leading axis."""
    return sum(math.prod(leaf.shape[axis:]) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _mesh(devices: tuple[Device, ...]) -> Mesh:
    return Mesh(np.array(devices), ("lanes",))


_start = jax.jit(chunk_start, static_argnums=0)


@functools.cache
def _compiled(devices: tuple[Device, ...]) -> tuple[Callable[..., Carry], Callable[..., Any]]:
    """`chunk_start` and `chunk_go_on`, compiled for some devices; the program is static."""
    if len(devices) == 1:
        return _start, compile_lanes(chunk_go_on)
    mesh, own, all_ = _mesh(devices), P("lanes"), P()

    def start(program: Program, fixed: Fixed, lanes: Lane) -> Carry:
        local = functools.partial(chunk_start, program)
        return jax.shard_map(local, mesh=mesh, in_specs=(all_, own), out_specs=own, check_vma=False)(fixed, lanes)

    def go_on(program: Program, fixed: Fixed, lanes: Lane, carry: Carry, gaps: Any) -> Any:
        local = functools.partial(chunk_go_on, program)
        specs = (all_, own, own, all_)
        return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=own, check_vma=False)(
            fixed, lanes, carry, gaps
        )

    return jax.jit(start, static_argnums=0), jax.jit(go_on, static_argnums=0)
