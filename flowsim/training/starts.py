"""Where training starts: symmetric (the theory's), random, or given arrays."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from flowsim import _jax, _validate  # noqa: F401  float64 first
from flowsim.circuits import Factorized
from flowsim.errors import InvalidInput
from flowsim.models import AbstractCircuit, Circuits, CollapsedCircuit, FactorizedCircuit
from flowsim.solve.initial import begin
from flowsim.solve.line_start import line_start
from flowsim.start import Start
from flowsim.symmetric import Layout, averages_of_blocks, symmetric_matrices
from flowsim.task import Task
from flowsim.training import symmetric_factors as factors

KINDS = ("gaussian", "uniform")


@dataclasses.dataclass(frozen=True)
class RandomStart:
    """Independent random entries, different for each seed.

    Attributes:
        scale: standard deviation of a Gaussian, largest absolute value of a uniform distribution; of each entry of
            each trained matrix (of each factor, for a factorized circuit).
        kind: `"gaussian"` or `"uniform"`.
    """

    scale: float
    kind: str = "gaussian"

    def __post_init__(self):
        object.__setattr__(self, "scale", _validate.real("RandomStart scale", self.scale, above=0.0))
        _validate.one_of("RandomStart kind", self.kind, KINDS)


class Shapes(NamedTuple):
    """Sizes of what is trained.

    Attributes:
        qk: rows and columns of the query-key matrix.
        ov: rows and columns of the output-value matrix.
        hidden_qk: hidden units of the query-key factors; None for a collapsed circuit.
        hidden_ov: the same of the output-value factors.
    """

    qk: tuple[int, int]
    ov: tuple[int, int]
    hidden_qk: int | None
    hidden_ov: int | None

    @staticmethod
    def of(layout: Layout, parameterization: str, d: int | None, hidden_qk: Any, hidden_ov: Any) -> "Shapes":
        """The sizes.

        Args:
            layout: the layout of the task.
            parameterization: four letters.
            d: dimension of the embedding; None for orthonormal ones.
            hidden_qk: hidden units $d_k$; None for the smaller side of the matrix.
            hidden_ov: hidden units $d_v$, likewise.

        Raises:
            InvalidInput: if a hidden width is given for a collapsed circuit or is no whole number above 0.
        """
        qk = (layout.tokens, layout.queries) if d is None else (d, d)
        ov = (layout.outputs, layout.tokens if d is None else d)
        widths = []
        for name, letter, sides, given in (
            ("hidden_qk", parameterization[0], qk, hidden_qk),
            ("hidden_ov", parameterization[2], ov, hidden_ov),
        ):
            if letter == "F":
                widths.append(min(sides) if given is None else _validate.whole(name, given, minimum=1))
            elif given is None:
                widths.append(None)
            else:
                raise InvalidInput(f"{name}={given} was given, but that circuit of {parameterization} is collapsed.")
        return Shapes(qk, ov, *widths)


def circuits_at_start(
    task: Task,
    parameterization: str,
    shapes: Shapes,
    seeds: np.ndarray,
    *,
    start: Any,
    line: Mapping[str, Any],
    embedded: bool,
    score_scale: float,
    dtype: np.dtype,
) -> tuple[Circuits, dict[str, Any]]:
    """The parameters at step 0.

    Args:
        task: the task.
        parameterization: four letters.
        shapes: sizes of the parameters.
        seeds: the seeds, for random starts.
        start: None, a `Start`, a `RandomStart`, or a mapping with arrays for `"qk"` and `"ov"`.
        line: `margin0`, `score_gap0`, `imbalance_ov`, `imbalance_qk` as given; None where not.
        embedded: whether the matrices act on embeddings that are not orthonormal.
        score_scale: factor of the scores.
        dtype: of the parameters.

    Returns:
        The circuits, every array with a leading axis over the seeds (of length 1 if nothing is random), and the
        settings as plain values.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    given = [name for name, value in line.items() if value is not None]
    if isinstance(start, RandomStart):
        if given:
            raise InvalidInput(
                f"start={start!r} was given together with {given[0]}={line[given[0]]}; give one of them."
            )
        circuits = _random(start.kind, shapes, dtype, jnp.asarray(start.scale, dtype), jnp.asarray(seeds))
        return circuits, {**dict.fromkeys(line), "start": dataclasses.asdict(start)}
    if isinstance(start, Mapping):
        if given:
            raise InvalidInput(f"start= was given together with {given[0]}={line[given[0]]}; give one of them.")
        plain = {**dict.fromkeys(line), "start": "arrays"}
        if for_each_seed(start):
            circuits = _arrays(start, shapes, (seeds.size,))
            return jax.tree.map(lambda array: jnp.asarray(array, dtype), circuits), plain
        circuits = _arrays(start, shapes, ())
    else:
        circuits, plain = _symmetric(task, parameterization, shapes, start, line, embedded, score_scale)
    return jax.tree.map(lambda array: jnp.asarray(array, dtype)[None], circuits), plain


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _random(kind: str, shapes: Shapes, dtype: np.dtype, scale: Array, seeds: Array) -> Circuits:
    def entries(key: Array, shape: tuple[int, int]) -> Array:
        if kind == "gaussian":
            return scale * jax.random.normal(key, shape, dtype)
        return jax.random.uniform(key, shape, dtype, -scale, scale)

    def circuit(key: Array, sides: tuple[int, int], hidden: int | None) -> AbstractCircuit:
        if hidden is None:
            return CollapsedCircuit(entries(key, sides))
        left, right = jax.random.split(key)
        return FactorizedCircuit(entries(left, (sides[0], hidden)), entries(right, (hidden, sides[1])))

    def one(seed: Array) -> Circuits:
        qk, ov = jax.random.split(stream(seed, "start"))
        return Circuits(circuit(qk, shapes.qk, shapes.hidden_qk), circuit(ov, shapes.ov, shapes.hidden_ov))

    return jax.vmap(one)(seeds)


_STREAMS = ("start", "examples", "test", "steps", "embedding")


def stream(seed: Array, purpose: str) -> Array:
    """The random key of one seed for one purpose."""
    return jax.random.fold_in(jax.random.key(seed), _STREAMS.index(purpose))


def for_each_seed(start: Any) -> bool:
    """Whether a start gives arrays with a leading axis over the seeds."""
    if not isinstance(start, Mapping):
        return False
    arrays = [array for given in start.values() for array in (given if isinstance(given, tuple | list) else [given])]
    return any(getattr(array, "ndim", 0) == 3 for array in arrays)


def _arrays(start: Mapping, shapes: Shapes, seeds: tuple[int, ...]) -> Circuits:
    if set(start) != {"qk", "ov"}:
        raise InvalidInput(f"start= names {', '.join(map(str, start)) or 'nothing'}; give arrays for 'qk' and 'ov'.")
    circuits = []
    for name, sides, hidden, turned in (
        ("qk", shapes.qk, shapes.hidden_qk, True),
        ("ov", shapes.ov, shapes.hidden_ov, False),
    ):
        if hidden is None:
            circuits.append(CollapsedCircuit(_array(f"start[{name!r}]", start[name], (*seeds, *sides))))
            continue
        pair = start[name]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            names = "(W_K, W_Q)" if turned else "(W_O, W_V)"
            raise InvalidInput(f"start[{name!r}] must be a pair {names} of matrices, as the circuit is factorized.")
        left = _array(f"start[{name!r}][0]", pair[0], (*seeds, sides[0], hidden))
        other = (sides[1], hidden) if turned else (hidden, sides[1])
        right = _array(f"start[{name!r}][1]", pair[1], (*seeds, *other))
        circuits.append(FactorizedCircuit(left, jnp.swapaxes(right, -1, -2) if turned else right))
    return Circuits(*circuits)


def _array(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = _validate.numeric_array(name, value)
    if array.shape != shape:
        raise InvalidInput(f"{name} has shape {array.shape}; the model needs {shape}.")
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name} holds a value that is not finite; replace it.")
    return jnp.asarray(array)


def _symmetric(
    task: Task,
    parameterization: str,
    shapes: Shapes,
    start: Start | None,
    line: Mapping[str, Any],
    embedded: bool,
    score_scale: float,
) -> tuple[Circuits, dict[str, Any]]:
    """The theory's start: on the line of the collapsed flow, or from blocks or their factors."""
    layout = Layout.of(task)
    if start is None:
        numbers = line_start(parameterization, **line)
        zero = "F" not in parameterization and not _validate.is_traced(*numbers) and not any(numbers)
        if zero:  # also for embeddings that have no other symmetric start
            at_zero = Circuits(CollapsedCircuit(jnp.zeros(shapes.qk)), CollapsedCircuit(jnp.zeros(shapes.ov)))
            return at_zero, {**numbers.plain, "start": None}
        # the matrix of a circuit whose scores are scaled
        begun = begin(task, parameterization, **numbers._replace(score_gap0=numbers.score_gap0 / score_scale)._asdict())
        plain = {**numbers.plain, "start": None}
    else:
        begun = begin(task, parameterization, **line, start=start)
        plain = begun.settings
    if embedded:
        raise InvalidInput(
            "start= must be a flowsim.RandomStart or arrays here, since embeddings that are not orthonormal have no "
            "symmetric start but zero matrices."
        )
    pair = begun.field.circuits
    blocks = pair.blocks(begun.state)
    matrices = symmetric_matrices(layout, averages_of_blocks(layout, blocks))
    circuits: list[AbstractCircuit] = []
    for i, (name, hidden, circuit) in enumerate((("qk", shapes.hidden_qk, pair.qk), ("ov", shapes.hidden_ov, pair.ov))):
        if hidden is None:
            circuits.append(CollapsedCircuit(matrices[i]))
            continue
        assert isinstance(circuit, Factorized)
        state = begun.state[: pair.qk.size] if name == "qk" else begun.state[pair.qk.size :]
        parts = factors.Parts.of(circuit.shapes, circuit.factors(state))
        needed = factors.hidden_needed(layout, parts)
        if hidden < needed:
            raise InvalidInput(
                f"hidden_{name}={hidden} cannot hold the symmetric start, which takes {needed} hidden units; give "
                "more, or another start=."
            )
        circuits.append(FactorizedCircuit(*factors.full_factors(layout, name, parts, hidden)))
    return Circuits(*circuits), plain
