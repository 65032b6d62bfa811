"""The loop around the compiled stretches: parts that fit the memory, checkpoints, progress, Ctrl-C."""

import contextlib
import functools
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.models import Circuits
from flowsim.solve.finite import Record
from flowsim.solve.stepping import Judge, Run, Seen, conclude
from flowsim.status import Status
from flowsim.training import checkpoint
from flowsim.training import machine as machines
from flowsim.training.machine import Device, Machine
from flowsim.training.step import Carry, Fixed, Lane, Program

# Points of the grid in one stretch; one compiled function for all runs, whatever their grid.
GRID = 16
# A stretch lasts about so long, so that Ctrl-C and the progress bar are answered; the first takes few steps.
_SECONDS = 0.3
_FIRST_STEPS = 64
_LINE_SECONDS = 10.0


class Finished(NamedTuple):
    """What the loop leaves behind, each array with a leading axis over the runs.

    Attributes:
        records: NaN where a run diverged or was interrupted before.
        status: of each run.
        n_steps: steps that each run took, or the steps before the one that diverged.
        points: number of points of the grid that the run that got farthest has.
        circuits: the parameters after the last step, NaN where a run diverged or never began; None if nobody asked.
    """

    records: Record
    status: np.ndarray
    n_steps: np.ndarray
    points: int
    circuits: Circuits | None


class Journal(NamedTuple):
    """Where and when checkpoints are written.

    Attributes:
        path: the file.
        every: number of steps between two of them.
        settings: what a training must share to go on from them.
        resume: whether to go on from the file.
    """

    path: pathlib.Path
    every: int
    settings: Mapping[str, Any]
    resume: bool


@functools.partial(jax.jit, static_argnums=0)
def _conclude(judge: Judge, progress: Any, seen: Seen[Record]) -> Run[Any, Record]:
    return jax.vmap(lambda progress, seen: conclude(progress, seen, judge))(progress, seen)


class _Results:
    """Records of all runs, filled as they come."""

    def __init__(self, n: int, grid: np.ndarray, circuits: Circuits | None):
        self.grid = grid
        # of a run, as shapes; then the parameters of all
        shapes, self._circuits = jax.tree.flatten(circuits)
        self.parameters = [np.full((n, *leaf.shape[1:]), np.nan, leaf.dtype) for leaf in shapes]
        self.points = np.zeros(n, dtype=int)
        self.status = np.full(n, -1)
        self.n_steps = np.zeros(n, dtype=int)
        self.leaves: list[np.ndarray] = []
        self.structure: Any = None

    def add(self, part: slice, records: Record, at: int, kept: int) -> None:
        """Stores the first `kept` points of what was seen of some runs."""
        leaves, self.structure = jax.tree.flatten(records)
        if not self.leaves:
            shape = (self.points.size, self.grid.size)
            self.leaves = [np.full((*shape, *leaf.shape[2:]), np.nan, leaf.dtype) for leaf in leaves]
        for own, leaf in zip(self.leaves, leaves, strict=True):
            own[part, at : at + kept] = leaf[:, :kept]
        self.points[part] = at + kept

    def conclude(self, part: slice, carries: Carry, losses: np.ndarray, judge: Any) -> None:
        """Judges runs that go no further."""
        points = int(self.points[part][0])
        records = jax.tree.unflatten(self.structure, [leaf[part, :points] for leaf in self.leaves])
        steps = np.broadcast_to(self.grid[:points], (losses.size, points))
        ended = _conclude(judge, carries.progress, Seen(records, jnp.asarray(steps), jnp.asarray(losses[:, None])))
        interrupted = points < self.grid.size
        good = int(Status.INTERRUPTED if interrupted else Status.OK)
        self.status[part] = np.where(np.asarray(ended.status) == Status.OK, good, np.asarray(ended.status))
        self.n_steps[part] = np.asarray(ended.n_steps)
        for own, leaf in zip(self.leaves, jax.tree.leaves(ended.records), strict=True):
            own[part, :points] = leaf
        if self.parameters:
            after = carries.progress.state.circuits
            lost = np.asarray(ended.status) == Status.DIVERGED
            for own, leaf in zip(self.parameters, jax.tree.leaves(lost_to_nan(after, lost)), strict=True):
                own[part] = leaf

    @property
    def circuits(self) -> Circuits | None:
        """The parameters of all runs, if they are kept."""
        return jax.tree.unflatten(self._circuits, self.parameters) if self.parameters else None


def lost_to_nan(circuits: Circuits, lost: Any) -> Circuits:
    """The parameters of many runs, NaN for those that are lost."""
    return jax.tree.map(
        lambda leaf: jnp.where(jnp.reshape(lost, (-1, *[1] * (leaf.ndim - 1))), jnp.nan, leaf), circuits
    )


def run_lanes(
    program: Program,
    fixed: Fixed,
    lanes: Lane,
    grid: np.ndarray,
    *,
    devices: Sequence[Device],
    journal: Journal | None,
    progress: bool | None,
    keep_circuits: bool = False,
) -> Finished:
    """Trains all runs.

    Args:
        program: what is compiled.
        fixed: what all runs share.
        lanes: what tells the runs apart, NumPy arrays of shape `(runs,)`.
        grid: step numbers of the records.
        devices: to run on.
        journal: where checkpoints go; None for none.
        progress: whether to show progress on standard error; None: if it is a terminal.
        keep_circuits: whether to give back the parameters after the last step.

    Returns:
        Records and status of all runs.

    Raises:
        InvalidInput: if one run does not fit the memory, or the checkpoint belongs to another training.
    """
    n = np.size(lanes.ratio)
    results = _Results(n, grid, fixed.starts if keep_circuits else None)
    parts = parts_that_fit(program, fixed, lanes, grid.size, devices)
    snapshot = checkpoint.read(journal.path, journal.settings) if journal is not None and journal.resume else None
    with interruptible() as stop, _bar(progress, int(grid[-1]) * n, len(parts)) as show:
        for part in parts:
            here = part.stop - part.start
            if snapshot is not None and part.start < snapshot.first:
                show(int(grid[-1]) * here)
                continue
            machine = Machine(program, fixed, Lane(*(np.asarray(array)[part] for array in lanes)), devices)
            if snapshot is not None:
                carries, step = machine.scatter(snapshot.carry), snapshot.step
                _restore(results, snapshot, machine, carries)
                snapshot = None
                show(step * here)
            else:
                carries, step = machine.start(), 0
            _run_part(program, machine, carries, step, part, results, journal, stop, show)
            if stop.is_set():
                break
    return _finished(results)


def _run_part(
    program: Program,
    machine: Machine,
    carries: list[Carry],
    step: int,
    part: slice,
    results: _Results,
    journal: Journal | None,
    stop: threading.Event,
    show: Callable[[int], None],
) -> None:
    """Takes the runs of one part to the end of the grid, or to where they are stopped."""
    grid = results.grid
    at = int(results.points[part][0])
    budget, last = _FIRST_STEPS, np.zeros(0)
    due = None if journal is None else (step // journal.every + 1) * journal.every
    compiled = False
    while at < grid.size:
        limit = step + budget if due is None else min(step + budget, due)
        stops = grid[at : at + GRID]
        stops = stops[stops <= limit]
        kept = stops.size
        if not kept:
            stops = np.array([limit])
        gaps = np.zeros(GRID, dtype=int)
        gaps[: stops.size] = np.diff(stops, prepend=step)
        begin = time.perf_counter()
        carries, seen = machine.go_on(carries, gaps)
        seconds = time.perf_counter() - begin
        taken = int(stops[-1]) - step
        step, last = int(stops[-1]), seen.losses[:, stops.size - 1]
        results.add(part, seen.records, at, kept)
        at += kept
        show(taken * (part.stop - part.start))
        if compiled:  # the first stretch is mostly compilation
            budget = int(min(4 * budget, max(1, taken * _SECONDS / seconds) if taken else budget))
        compiled = True
        if at == grid.size or (stop.is_set() and results.points.any()):
            break
        if journal is not None and due is not None and step >= due:
            _save(journal, step, part, results, machine, carries)
            due += journal.every
    if journal is not None:  # also at the end and when interrupted, so that nothing is lost
        _save(journal, step, part, results, machine, carries)
    if last.size == 0:  # resumed at its end
        last = np.exp(results.leaves[list(Record._fields).index("log_loss")][part, -1])
    results.conclude(part, machine.gather(carries), last, program.judge)


def _save(journal: Journal, step: int, part: slice, results: _Results, machine: Machine, carries: list[Carry]) -> None:
    snapshot = checkpoint.Snapshot(
        step,
        part.start,
        results.points,
        results.status,
        results.n_steps,
        results.leaves,
        jax.tree.leaves(machine.gather(carries)),
        results.parameters,
    )
    checkpoint.write(journal.path, snapshot, journal.settings)


def _restore(results: _Results, snapshot: checkpoint.Snapshot, machine: Machine, carries: list[Carry]) -> None:
    results.points, results.status, results.n_steps = snapshot.points, snapshot.status, snapshot.n_steps
    results.leaves, results.parameters = snapshot.records, snapshot.circuits
    seen = jax.eval_shape(machine.shape_of_stretch, carries[0], jnp.zeros(GRID, dtype=int))
    results.structure = jax.tree.structure(seen.records)


def _finished(results: _Results) -> Finished:
    points = int(results.points.max())
    waiting = results.status < 0  # runs of parts that an interruption left out
    results.status[waiting] = int(Status.INTERRUPTED)
    records = jax.tree.unflatten(results.structure, [leaf[:, :points] for leaf in results.leaves])
    return Finished(records, results.status, results.n_steps, points, results.circuits)


def parts_that_fit(program: Program, fixed: Fixed, lanes: Lane, points: int, devices: Sequence[Device]) -> list[slice]:
    """Cuts the runs into parts that fit the memory side by side.

    Raises:
        InvalidInput: if not even one does.
    """
    n = np.size(lanes.ratio)
    each, limit = machines.memory(program, fixed, lanes, points), machines.memory_limit(devices)
    if each > limit:
        raise InvalidInput(
            f"one run would take about {each / machines.GIB:.3g} GiB of the {limit / machines.GIB:.3g} that there are "
            f"({program.plan.layout.tokens} tokens); use fewer classes, types or sequences, or flowsim.descend, which "
            "trains the symmetric blocks."
        )
    size = min(n, int(limit // each))
    if size < n:
        print(
            f"flowsim: {n} runs would take about {n * each / machines.GIB:.3g} GiB of the "
            f"{limit / machines.GIB:.3g} that there are; training them in {-(-n // size)} parts.",
            file=sys.stderr,
        )
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]


@contextlib.contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turns the first Ctrl-C into an event that the loop looks at between stretches; the second ends the program.

    Only in the main thread, and only where nobody else listens to the signal.
    """
    asked = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield asked
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            signal.default_int_handler(number, frame)
        asked.set()

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def _bar(progress: bool | None, total: int, parts: int) -> Iterator[Callable[[int], None]]:
    """Progress in run-steps on standard error: a bar on a terminal, now and then a line elsewhere."""
    terminal = sys.stderr.isatty()
    if not (terminal if progress is None else progress):
        yield lambda _: None
        return
    if not terminal:
        yield _lines(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("training" if parts == 1 else f"training in {parts} parts"),
        BarColumn(),
        TextColumn("{task.percentage:.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    begin, done = time.monotonic(), 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("training", total=total, rate="")

        def show(steps: int) -> None:
            nonlocal done
            done += steps
            rate = done / (time.monotonic() - begin)
            bar.update(task, completed=done, rate=f"{rate:,.0f} run-steps/s")

        yield show


def _lines(total: int) -> Callable[[int], None]:
    """Writes a line at the end, and before it every ten seconds."""
    begin = time.monotonic()
    done, next_line = 0, begin + _LINE_SECONDS

    def show(steps: int) -> None:
        nonlocal done, next_line
        done += steps
        now = time.monotonic()
        if now < next_line and done < total:
            return
        next_line = now + _LINE_SECONDS
        rate = done / (now - begin)
        left = (total - done) / rate
        print(
            f"training: {done / total:.0%} of {total} run-steps, {rate:,.0f} run-steps/s, {left:.0f} s left",
            file=sys.stderr,
            flush=True,
        )

    return show
