"""Where a trajectory starts: blocks of the symmetric matrices, or their factors."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from flowsim import _validate
from flowsim.errors import InvalidInput

Rows = tuple[tuple[float, ...], ...]

PARTS = ("qk_standard", "qk_trivial", "ov_standard", "ov_trivial")


@dataclasses.dataclass(frozen=True, init=False)
class Start:
    """Blocks of the symmetric start; blocks that are not named are 0.

    `margin0=` and `score_gap0=` of the solvers are the short form for tasks with one distinct and one background group.

    Args:
        qk_standard: the block $s$, one number for each distinct group (per-class query only).
        qk_trivial: the block $t$, one number for each group that is not null.
        ov_standard: the block $S$, one number for each distinct group.
        ov_trivial: the first row of $T$, one number for each group that is not null.
        ov_trivial_rest: the second row of $T$ (vocabulary head only).
        factors: for factorized circuits the factors themselves: name of a part (`"qk_standard"`, `"qk_trivial"`,
            `"ov_standard"`, `"ov_trivial"`) -> matrices $P$ (rows x hidden) and $Q$ (hidden x columns) of any hidden
            size. Rows are the groups (query-key) or the rows above (output-value), columns the query or the groups.
            Parts that are not named are split from their blocks.

    Raises:
        InvalidInput: if a value is not finite, factors do not fit each other, or a part is given twice.
    """

    blocks: tuple[tuple[str, tuple[float, ...]], ...]
    factors: tuple[tuple[str, tuple[Rows, Rows]], ...]

    def __init__(
        self,
        *,
        qk_standard: Sequence[float] = (),
        qk_trivial: Sequence[float] = (),
        ov_standard: Sequence[float] = (),
        ov_trivial: Sequence[float] = (),
        ov_trivial_rest: Sequence[float] = (),
        factors: Mapping[str, tuple[Any, Any]] = MappingProxyType({}),
    ):
        given: Mapping[str, Sequence[float]] = {
            "qk_standard": qk_standard,
            "qk_trivial": qk_trivial,
            "ov_standard": ov_standard,
            "ov_trivial": ov_trivial,
            "ov_trivial_rest": ov_trivial_rest,
        }
        listed = []
        for name, values in given.items():
            array = _validate.numeric_array(f"Start {name}", values)
            if array.ndim > 1:
                raise InvalidInput(f"Start {name} has shape {array.shape}; give a one-dimensional list.")
            numbers = tuple(float(value) for value in array.reshape(-1))
            if not all(math.isfinite(number) for number in numbers):
                raise InvalidInput(f"Start {name}={_validate.show(values)} must hold finite numbers.")
            listed.append((name, numbers))
        object.__setattr__(self, "blocks", tuple(listed))
        object.__setattr__(self, "factors", tuple(sorted(_factors(factors).items())))
        for name, _ in self.factors:
            twice = [block for block, values in listed if values and block.removesuffix("_rest") == name]
            if twice:
                raise InvalidInput(f"Start gives {twice[0]} and factors of {name!r}; give one of them only.")

    def __getitem__(self, name: str) -> tuple[float, ...]:
        return dict(self.blocks)[name]

    @property
    def plain(self) -> dict[str, Any]:
        """The arguments as plain data."""
        blocks: dict[str, Any] = dict(self.blocks)
        return {**blocks, "factors": dict(self.factors)} if self.factors else blocks

    def vector(self, sizes: Mapping[str, int]) -> list[float]:
        """The block vector in the order of `sizes`.

        Args:
            sizes: number of entries of each block of the task's structure, in order.

        Raises:
            InvalidInput: if a given block has another number of entries, or the structure has no such block.
        """
        vector = []
        for name, values in self.blocks:
            size = sizes.get(name, 0)
            if values and len(values) != size:
                expected = f"{size} entries" if size else "no such block"
                raise InvalidInput(f"Start {name}={values} has {len(values)} entries, the task has {expected}.")
        for name, size in sizes.items():
            values = self[name]
            vector += list(values) if values else [0.0] * size
        return vector


def _factors(given: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Rows, Rows]]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"Start factors={_validate.show(given)} must map names of parts to pairs (P, Q).")
    factors = {}
    for name, pair in given.items():
        _validate.one_of("Start factors", name, PARTS)
        if not isinstance(pair, Sequence | tuple) or len(pair) != 2:
            raise InvalidInput(f"Start factors[{name!r}]={_validate.show(pair)} must be a pair (P, Q).")
        p, q = (_validate.numeric_array(f"Start factors[{name!r}]", matrix) for matrix in pair)
        if p.ndim != 2 or q.ndim != 2 or p.shape[1] != q.shape[0] or 0 in (*p.shape, *q.shape):
            raise InvalidInput(
                f"Start factors[{name!r}] have shapes {p.shape} and {q.shape}; give P (rows x hidden) and Q (hidden x "
                "columns)."
            )
        if not (np.isfinite(p).all() and np.isfinite(q).all()):
            raise InvalidInput(f"Start factors[{name!r}] must hold finite numbers.")
        factors[name] = tuple(tuple(tuple(float(x) for x in row) for row in matrix) for matrix in (p, q))
    return factors
