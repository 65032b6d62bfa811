"""From a symbolic flow to one JAX vector field.

`compile` prints a flow as source (kept in `CompiledField.source`), executes it once and wraps it. Everything about a
task that is not structure (classes, types, counts, probabilities, ratio) is a traced argument, so a new value never
recompiles.
"""

import builtins
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from flowsim import _emit, _jax, _logdomain, _observe, circuits
from flowsim._checks import show
from flowsim._observe import Observables
from flowsim.errors import InvalidInput
from flowsim.task import Task
from flowsim.theory.flow import Flow


class Parameters(NamedTuple):
    r"""The numbers of a task, all traced.

    Attributes:
        classes: $K$.
        types: token types of each group (1 for null groups and the query).
        counts: positions of each group in each composition.
        probabilities: of the compositions; they sum to 1.
        other_outputs: $R$.
        ratio: $r = \eta_{QK}/\eta_{OV}$.
    """

    classes: Float[Array, ""]
    types: Float[Array, " n_groups"]
    counts: Float[Array, "n_compositions n_groups"]
    probabilities: Float[Array, " n_compositions"]
    other_outputs: Float[Array, ""]
    ratio: Float[Array, "..."]


class CompiledField(eqx.Module):
    r"""The vector field of a flow, in JAX.

    It holds no arrays: it is hashable, equal to every other field compiled from the same flow, and passes through
    transformations as a static value. The methods work under `jit`, `vmap` and `grad`.

    The *state* (`n_state` numbers in the order of `state_names`) is what is trained: the *blocks* $B$ of collapsed
    circuits (`n_blocks` in all, in the order of `block_names`), the factors of factorized ones. The *reduced* state $x$
    (`n_reduced` numbers: score gaps to the reference group with the first distinct group's first, margins, never-label
    logits) is what the loss sees; it closes on itself if both circuits are collapsed. The *motion* $y$ (`n_motion`
    numbers) is the smallest state that closes: reduced coordinates of collapsed circuits, factors that the loss drives.

    Attributes:
        flow: the symbolic flow.
    """

    flow: Flow = eqx.field(static=True)

    def __call__(self, time: Any, state: Float[Array, " n_state"], parameters: Parameters) -> Float[Array, " n_state"]:
        """The time derivative of the state.

        Args:
            time: ignored; the flow is autonomous.
            state: blocks of collapsed circuits, factors of factorized ones.
            parameters: the task's numbers.

        Returns:
            Their derivative by time.
        """
        del time
        pair = self.circuits
        return pair.velocity(state, self.gradient(pair.blocks(state), 0.0, parameters), parameters.ratio)

    def motion(self, log_rate: Float[ArrayLike, ""], y: tuple[Array, ...], parameters: Parameters) -> tuple[Array, ...]:
        r"""The velocity of the motion times a rate, $e^{\text{log rate}}\, dy/dt$, as a tuple of scalars.

        Args:
            log_rate: logarithm of the rate; 0 for the derivative by time.
            y: the motion.
            parameters: the task's numbers.

        Returns:
            The velocity, as accurate as `reduced`.
        """
        return _function(self.flow, "reduced" if self.flow.closes else "motion")(log_rate, y, parameters)

    def displacement(
        self, y: tuple[Array, ...], change: tuple[Array, ...], parameters: Parameters
    ) -> tuple[Array, ...]:
        """The change of the reduced state that a change of the motion makes, without cancellation.

        Args:
            y: the motion before the change; zeros give the reduced state of `change` itself.
            change: the change.
            parameters: the task's numbers.

        Returns:
            The change of the reduced state, as a tuple of scalars.
        """
        return change if self.flow.closes else _function(self.flow, "displacement")(y, change, parameters)

    def motion_of(self, state: Float[Array, " n_state"], parameters: Parameters) -> tuple[Array, ...]:
        """The motion of a state, as a tuple of scalars.

        Args:
            state: blocks and factors.
            parameters: the task's numbers.

        Returns:
            Reduced coordinates of the collapsed circuits and factors of the factorized ones.
        """
        x = dict(zip(self.reduced_names, self.to_reduced(self.circuits.blocks(state), parameters), strict=True))
        return tuple(x[name] if name in x else state[self.state_names.index(name)] for name in self.motion_names)

    def reduced(
        self, log_rate: Float[ArrayLike, ""], x: Float[Array, " n_reduced"], parameters: Parameters
    ) -> Float[Array, " n_reduced"]:
        r"""The reduced velocity times a rate, $e^{\text{log rate}}\, dx/dt$.

        With `log_rate` = $\ln t$ it is the derivative by $\ln t$; it stays finite and accurate where $t$ overflows and
        the error underflows, and where attention saturates.

        Args:
            log_rate: logarithm of the rate; 0 for the derivative by time.
            x: the reduced state.
            parameters: the task's numbers.

        Returns:
            The velocity.
        """
        return jnp.stack(self.reduced_components(log_rate, tuple(x), parameters))

    def reduced_components(
        self, log_rate: Float[ArrayLike, ""], x: tuple[Array, ...], parameters: Parameters
    ) -> tuple[Array, ...]:
        """`reduced` with the state as a tuple of scalars, which saves stacking in inner loops."""
        return _function(self.flow, "reduced")(log_rate, x, parameters)

    def gradient(
        self, blocks: Float[Array, " n_blocks"], log_rate: Float[ArrayLike, ""], parameters: Parameters
    ) -> Float[Array, " n_blocks"]:
        r"""The gradient on the blocks times a rate, $e^{\text{log rate}} (1/d_\rho)\, \partial L/\partial B$.

        It is the block form of the gradient of the full matrices; a step of gradient descent on them changes the
        blocks by minus the learning rate times it.

        Args:
            blocks: the blocks.
            log_rate: logarithm of the rate; 0 for the gradient itself.
            parameters: the task's numbers (the ratio is not used).

        Returns:
            The gradient.
        """
        return jnp.stack(_function(self.flow, "gradient")(tuple(blocks), log_rate, parameters))

    def to_reduced(self, blocks: Float[Array, " n_blocks"], parameters: Parameters) -> Float[Array, " n_reduced"]:
        """The reduced state of the blocks.

        Args:
            blocks: the blocks.
            parameters: the task's numbers.

        Returns:
            Score gaps, margins, never-label logits.
        """
        return jnp.stack(_function(self.flow, "to_reduced")(tuple(blocks), parameters))

    def from_reduced(
        self,
        x: Float[Array, " n_reduced"],
        x0: Float[Array, " n_reduced"],
        blocks0: Float[Array, " n_blocks"],
        parameters: Parameters,
    ) -> Float[Array, " n_blocks"]:
        r"""The blocks along a collapsed flow, $B_0 + M^{-1} J^\top (J M^{-1} J^\top)^{-1} (x - x_0)$.

        Args:
            x: the reduced state.
            x0: the reduced state at the start, `to_reduced(blocks0, parameters)`.
            blocks0: the blocks at the start.
            parameters: the task's numbers.

        Returns:
            The blocks that the collapsed flow reaches together with `x`.
        """
        return jnp.stack(_function(self.flow, "from_reduced")(tuple(x - x0), tuple(blocks0), parameters))

    def observables(self, x: Float[Array, " n_reduced"], parameters: Parameters) -> Observables:
        """What is reported of a state, in the log domain.

        Args:
            x: the reduced state.
            parameters: the task's numbers.

        Returns:
            The observables; unused ones cost nothing under `jit`.
        """
        return _observe.observe(_layout(self.flow), x, parameters)

    def parameters(self, task: Task, ratio: Float[ArrayLike, "..."]) -> Parameters:
        """The numbers of a task as traced arrays.

        Args:
            task: a task of the flow's structure.
            ratio: the learning-rate ratio; may be traced. An array must be mapped over (`vmap`) before use.

        Returns:
            The parameters.

        Raises:
            InvalidInput: if the task has another structure.
        """
        if task.structure != self.flow.structure:
            raise InvalidInput(
                f"task={task} has another structure than the compiled flow; compile fs.derive(task) for this task."
            )
        compositions = task.compositions
        return Parameters(
            classes=jnp.asarray(task.classes, jnp.float64),
            types=jnp.asarray([group.types for group in task.all_groups], jnp.float64),
            counts=jnp.asarray([composition.counts for composition in compositions], jnp.float64),
            probabilities=jnp.asarray([composition.probability for composition in compositions], jnp.float64),
            other_outputs=jnp.asarray(task.other_outputs, jnp.float64),
            ratio=jnp.asarray(ratio, jnp.float64),
        )

    @property
    def circuits(self) -> circuits.Pair:
        """The circuits in numbers."""
        return _circuits(self.flow)

    @property
    def source(self) -> str:
        """The generated source, for inspection."""
        return "\n\n".join(_source(self.flow, name) for name in _emit.functions(self.flow))

    @property
    def n_state(self) -> int:
        """Length of the state."""
        return len(self.state_names)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the state's entries, in order."""
        return tuple(map(str, self.flow.block_velocity))

    @property
    def n_motion(self) -> int:
        """Length of the motion."""
        return len(self.motion_names)

    @property
    def motion_names(self) -> tuple[str, ...]:
        """Names of the motion's entries, in order."""
        return tuple(map(str, self.flow.velocity))

    @property
    def n_blocks(self) -> int:
        """Length of the block vector."""
        return len(self.flow.reduction.blocks)

    @property
    def n_reduced(self) -> int:
        """Length of the reduced state."""
        return len(self.flow.coordinates.state)

    @property
    def block_names(self) -> tuple[str, ...]:
        """Names of the blocks, in order."""
        return tuple(str(block.symbol) for block in self.flow.reduction.blocks)

    @property
    def reduced_names(self) -> tuple[str, ...]:
        """Names of the reduced coordinates, in order."""
        return tuple(str(symbol) for symbol in self.flow.coordinates.state)

    @property
    def block_sizes(self) -> dict[str, int]:
        """Number of blocks of each family (`qk_standard`, `qk_trivial`, `ov_standard`, ...), in order."""
        return self.flow.reduction.block_sizes

    @property
    def is_qk(self) -> tuple[bool, ...]:
        """For each block, whether it belongs to the query-key circuit."""
        return tuple(block.circuit == "qk" for block in self.flow.reduction.blocks)


def compile(flow: Flow) -> CompiledField:
    """Compiles a symbolic flow to a JAX vector field.

    Args:
        flow: what `derive` returned.

    Returns:
        The field, cached: the same flow gives the same object.

    Raises:
        InvalidInput: if `flow` is not a flow, or JAX's float64 is off.
    """
    _jax.require_x64()
    if not isinstance(flow, Flow):
        raise InvalidInput(f"flow={show(flow)} must be a flow; pass what flowsim.derive returned.")
    return _field(flow)


@functools.cache
def _field(flow: Flow) -> CompiledField:
    return CompiledField(flow)


@functools.cache
def _source(flow: Flow, name: str) -> str:
    return _emit.emit(flow, name)


@functools.cache
def _function(flow: Flow, name: str) -> Callable[..., tuple[Array, ...]]:
    namespace: dict[str, Any] = dict(_NAMESPACE)
    title = f"<flowsim {flow.parameterization} {name} of {', '.join(flow.structure.roles)}>"
    exec(builtins.compile(_source(flow, name), title, "exec"), namespace)
    return namespace[name]


@functools.cache
def _circuits(flow: Flow) -> circuits.Pair:
    return circuits.circuits_of(flow)


@functools.cache
def _layout(flow: Flow) -> _observe.Layout:
    return _observe.layout(flow)


_NAMESPACE = {
    "softmax": _logdomain.softmax,
    "attend": _logdomain.attend,
    "errors": _logdomain.errors,
    "joint": _logdomain.joint,
    "columns": _logdomain.columns,
    "averaging": _logdomain.averaging,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "zeros_like": jnp.zeros_like,
}
