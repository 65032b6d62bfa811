"""The start on the symmetric line that the collapsed flow takes: margin, score gap, and how each is split into factors.

Collapsed circuits start at 0 unless told otherwise. A factorized circuit that is balanced at exactly 0 never moves, so
factorized ones start at `FACTORIZED` and a start at 0 asks for an imbalance.
"""

from typing import Any, NamedTuple

from flowsim import _validate
from flowsim.errors import InvalidInput

FACTORIZED = 0.01
"""Margin and score gap at which a factorized circuit starts by default."""


class LineStart(NamedTuple):
    r"""A start that few numbers determine, for tasks with one distinct and one background group and the label head.

    Attributes:
        margin0: margin $w_0$.
        score_gap0: score gap $\theta_0$.
        imbalance_ov: $\lambda = P^\top P - Q Q^\top$ of every output-value block; 0 for a collapsed circuit.
        imbalance_qk: the same of every query-key block.
    """

    margin0: Any
    score_gap0: Any
    imbalance_ov: Any
    imbalance_qk: Any

    @property
    def plain(self) -> dict[str, float | None]:
        """The numbers as plain values, for settings; None for what was traced and has none."""
        return {name: None if _validate.is_traced(value) else float(value) for name, value in self._asdict().items()}


def line_start(
    parameterization: str,
    *,
    margin0: Any = None,
    score_gap0: Any = None,
    imbalance_ov: Any = None,
    imbalance_qk: Any = None,
) -> LineStart:
    """Fills in the defaults of the circuits and refuses starts that cannot be.

    Args:
        parameterization: four letters.
        margin0: margin; None for the circuit's default.
        score_gap0: score gap; None for the circuit's default.
        imbalance_ov: imbalance of the output-value circuit, of either sign; None for 0.
        imbalance_qk: imbalance of the query-key circuit, of either sign; None for 0.

    Returns:
        The four numbers; traced ones as they are.

    Raises:
        InvalidInput: if a number is not finite, a collapsed circuit is given an imbalance, or a factorized circuit
            would never move.
    """
    name = _validate.parameterization(parameterization)
    margin0, imbalance_ov = _circuit(
        name[2] == "F", name, "output-value", "margin0", margin0, "imbalance_ov", imbalance_ov
    )
    score_gap0, imbalance_qk = _circuit(
        name[0] == "F", name, "query-key", "score_gap0", score_gap0, "imbalance_qk", imbalance_qk
    )
    return LineStart(margin0, score_gap0, imbalance_ov, imbalance_qk)


def imbalances(parameterization: str, imbalance_ov: Any = None, imbalance_qk: Any = None) -> tuple[Any, Any]:
    """The imbalances alone, for starts that are given in another way; arguments and refusals as in `line_start`.

    Args:
        parameterization: four letters.
        imbalance_ov: imbalance of the output-value circuit; None for 0.
        imbalance_qk: imbalance of the query-key circuit; None for 0.

    Returns:
        Both imbalances, output-value first.
    """
    line = line_start(
        parameterization, margin0=1.0, score_gap0=1.0, imbalance_ov=imbalance_ov, imbalance_qk=imbalance_qk
    )
    return line.imbalance_ov, line.imbalance_qk


def _circuit(
    factorized: bool, name: str, circuit: str, at: str, value, imbalance_name: str, imbalance
) -> tuple[Any, Any]:
    value = (FACTORIZED if factorized else 0.0) if value is None else value
    imbalance = 0.0 if imbalance is None else imbalance
    checked = [
        given if _validate.is_traced(given) else _validate.real(argument, given)
        for argument, given in ((at, value), (imbalance_name, imbalance))
    ]
    if not factorized:
        if _validate.is_traced(checked[1]) or checked[1] != 0:
            raise InvalidInput(
                f"{imbalance_name}={imbalance} was given, but the {circuit} circuit of {name} is collapsed and has no "
                "factors; leave it out."
            )
    elif not _validate.is_traced(*checked) and checked == [0.0, 0.0]:
        raise InvalidInput(
            f"{at}=0 with {imbalance_name}=0 would never move: the {circuit} circuit of {name} is factorized and its "
            f"factors are both zero; give {at} or {imbalance_name} another value."
        )
    return checked[0], checked[1]
