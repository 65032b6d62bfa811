"""Where a trajectory starts: blocks of the symmetric matrices."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

from flowsim import _validate
from flowsim.errors import InvalidInput


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

    Raises:
        InvalidInput: if a value is not finite.
    """

    blocks: tuple[tuple[str, tuple[float, ...]], ...]

    def __init__(
        self,
        *,
        qk_standard: Sequence[float] = (),
        qk_trivial: Sequence[float] = (),
        ov_standard: Sequence[float] = (),
        ov_trivial: Sequence[float] = (),
        ov_trivial_rest: Sequence[float] = (),
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

    def __getitem__(self, name: str) -> tuple[float, ...]:
        return dict(self.blocks)[name]

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
