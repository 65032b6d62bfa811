r"""What is computed on both devices, and how far apart the two results may be.

The stored results lie beside this file; `flowsim device-check --write-reference FILE` makes them.

*Solvers.* `exact` promises an error of $10^{-11}$, relative for the change of the score gap, relative or absolute
(whichever is larger) for margin and log odds; `integrate` the same with `tol`. Each device is within the promise, so
two are at most twice the promise apart. The log loss falls with $\Delta = \alpha w$ at a slope of at most 1, and
$|d\Delta| \le |dw| + w\, |d\theta|/4$.

*Finite steps.* A step rounds an entry $W$ by at most $u |W|$, and its change $\eta G$ by the roundings of the sums that
a gradient passes through; $u$ is $2^{-53}$ or $2^{-24}$. Errors of $k$ independent roundings add up to no more than
$\lambda \sqrt k\, u$, except with a probability of $2 e^{-\lambda^2/2}$ (Higham and Mary 2019); $\lambda = 6$ here.
The entries of $n$ steps are rounded independently, which makes $\lambda \sqrt n\, u |W|$. Gradients of steps that
follow each other are nearly equal and so are their errors, which therefore add up like the gradients themselves, to
$\lambda \sqrt m\, u |W|$ with $m$ roundings in one; except that the gradient by a score is a difference,
$a_l (g_l - \sum_j a_j g_j)$, of which attention $\alpha$ leaves the share $1 - \alpha$. How much the later steps make
of an error, and how much of the way is gone at which $\alpha$, are sums over the run that a test takes by
differentiating the steps: relative to the larger of margin and score gap, `ENTRIES` for the first part (1 would be a
sum without growth or decay) and `WAY` for the second. Two devices differ by twice that.
"""

import dataclasses
import importlib.resources
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowsim import _jax  # noqa: F401  float64 first
from flowsim._files import read_arrays
from flowsim.errors import FileProblem
from flowsim.solve.descent import descend
from flowsim.solve.exact import exact
from flowsim.solve.ode import integrate
from flowsim.task import FixedContext, Task
from flowsim.training import train
from flowsim.trajectory import Trajectory

TASK = Task(classes=4, distinct=10, common=10, context=FixedContext(distinct=32, common=31))
OBSERVABLES = ("margin", "score_gap_change", "log_odds", "log_loss")
RATIOS = (0.5, 5.0)
ENTRIES, WAY = 1.5, {"CACO": 6.0, "FAFO": 15.0}
"""What the later steps of the finite-step cases make of the roundings of entries, and of those of gradients."""
_LAMBDA = 6.0
_LOG_TIMES = (0.0, 3.0, 7.0, 14.0)
_EXACT, _TOL = 1e-11, 1e-10
STEPS, LR, POINTS = 1000, 0.2, 8
# Terms of the sums that a gradient passes through, one after the other: tokens in the logits and in the mean over
# attention, outputs in the softmax, sequences in the sum over the batch, hidden units in two products; and ten
# operations beside them.
_CHAIN = 2 * 50 + 4 + 32 + 2 * 4 + 10

Arrays = dict[str, np.ndarray]


class Case(NamedTuple):
    """One computation.

    Attributes:
        solve: gives a trajectory.
        bound: from the stored arrays, how far each observable may be off.
    """

    solve: Callable[[], Trajectory]
    bound: Callable[[Mapping[str, np.ndarray]], Arrays]


@dataclasses.dataclass(frozen=True)
class Deviation:
    """How far one observable of one case is from the stored one.

    Attributes:
        case: name of the case.
        observable: name of the observable; `"status"` if the runs ended differently, `"shape"` if the stored ones are
            others.
        difference: the distance, at the place where it comes closest to its bound or exceeds it most.
        bound: the bound there.
    """

    case: str
    observable: str
    difference: float
    bound: float

    @property
    def ok(self) -> bool:
        """Whether the distance is within the bound; what is not finite is not."""
        return bool(self.difference <= self.bound)


def _promised(error: float) -> Callable[[Mapping[str, np.ndarray]], Arrays]:
    """The bound of a solver with an error that it promises."""

    def bound(stored: Mapping[str, np.ndarray]) -> Arrays:
        margin, gap, odds = (np.abs(stored[name]) for name in OBSERVABLES[:3])
        own = {
            "margin": 2 * error * np.maximum(1, margin),
            "score_gap_change": 2 * error * gap,
            "log_odds": 2 * error * np.maximum(1, odds),
        }
        return {**own, "log_loss": _of_loss(margin, own["margin"], own["score_gap_change"])}

    return bound


def _stepped(name: str, dtype: str) -> Callable[[Mapping[str, np.ndarray]], Arrays]:
    """The bound of finite steps of one parameterization in one precision."""
    unit = float(np.finfo(dtype).eps) / 2

    def bound(stored: Mapping[str, np.ndarray]) -> Arrays:
        margin, gap = np.abs(stored["margin"]), np.abs(stored["score_gap_change"])
        size = np.maximum(np.maximum(margin, gap), 0.01)
        off = 2 * unit * _LAMBDA * (ENTRIES * np.sqrt(STEPS) + WAY[name] * np.sqrt(_CHAIN)) * size
        seen = unit * _LAMBDA * np.sqrt(_CHAIN)  # of one look, where attention and loss pass through sums themselves
        return {
            "margin": off,
            "score_gap_change": off,
            "log_odds": off + 2 * seen,
            "log_loss": _of_loss(margin, off, off) + 2 * seen * (1 + margin),
        }

    return bound


def _of_loss(margin: np.ndarray, by_margin: np.ndarray, by_gap: np.ndarray) -> np.ndarray:
    return by_margin + margin * by_gap / 4


def _finite(solver: Callable[..., Trajectory], name: str, **options: Any) -> Callable[[], Trajectory]:
    run = {"ratio": list(RATIOS), "lr": LR, "steps": STEPS, "points": POINTS}
    return lambda: solver(TASK, name, **run, **options)


def _cases() -> dict[str, Case]:
    times: dict[str, Any] = {"ratio": list(RATIOS), "log_times": list(_LOG_TIMES)}
    found = {}
    for name in ("CACO", "FACO", "CAFO", "FAFO"):
        found[f"exact {name}"] = Case(lambda name=name: exact(TASK, name, **times), _promised(_EXACT))
    for name in ("CACO", "FAFO"):
        found[f"integrate {name}"] = Case(lambda name=name: integrate(TASK, name, **times, tol=_TOL), _promised(_TOL))
        found[f"descend {name}"] = Case(_finite(descend, name), _stepped(name, "float64"))
        for dtype in ("float64", "float32"):
            options = {"dtype": dtype, "progress": False}
            found[f"train {name} {dtype}"] = Case(_finite(train, name, **options), _stepped(name, dtype))
    drawn = {"population": "sampled-identities", "batch": 32, "test": 64, "seeds": 2, "progress": False}
    found["train CACO float64, drawn sequences"] = Case(_finite(train, "CACO", **drawn), _stepped("CACO", "float64"))
    return found


CASES = _cases()


def compute() -> dict[str, Arrays]:
    """All cases on the device that JAX finds: case -> observable -> array, and the status of the runs."""
    found = {}
    for name, case in CASES.items():
        run = case.solve()
        found[name] = {observable: np.asarray(getattr(run, observable)) for observable in OBSERVABLES}
        found[name]["status"] = np.asarray(run.status)
    return found


def compare(found: Mapping[str, Arrays], stored: Mapping[str, Arrays]) -> list[Deviation]:
    """How far results are from stored ones, one entry for each case and observable.

    Args:
        found: from `compute`.
        stored: from `read_reference`.
    """
    rows = []
    for name, case in CASES.items():
        if found[name][OBSERVABLES[0]].shape != stored[name][OBSERVABLES[0]].shape:  # of other lanes or times
            rows.append(Deviation(name, "shape", 1.0, 0.0))
            continue
        bounds = case.bound(stored[name])
        if (found[name]["status"] != stored[name]["status"]).any():
            rows.append(Deviation(name, "status", 1.0, 0.0))
        for observable in OBSERVABLES:
            off = np.abs(found[name][observable] - stored[name][observable])
            bound = np.broadcast_to(bounds[observable], off.shape)
            # a NaN is the worst of all; 0 against 0 is none
            share = np.where(off == 0, 0.0, np.where(np.isfinite(off), off, np.inf) / bound)
            i = np.unravel_index(np.argmax(share), share.shape)
            rows.append(Deviation(name, observable, float(off[i]), float(bound[i])))
    return rows


def write_reference(path: str | os.PathLike, found: Mapping[str, Arrays]) -> None:
    """Stores results, as plain arrays named `case/observable`.

    Args:
        path: the `.npz` file.
        found: from `compute`.

    Raises:
        FileProblem: if it cannot be written.
    """
    flat: dict[str, Any] = {f"{case}/{name}": array for case, own in found.items() for name, array in own.items()}
    try:
        with open(path, "wb") as file:
            np.savez(file, **flat)
    except OSError as error:
        raise FileProblem(f"{path} cannot be written ({error.strerror}); choose another place.") from error


def read_reference(path: str | os.PathLike | None = None) -> dict[str, Arrays]:
    """Stored results.

    Args:
        path: the file; None for the one that comes with flowsim.

    Returns:
        case -> observable -> array.

    Raises:
        FileProblem: if there is none, or it belongs to other cases.
    """
    where = importlib.resources.files("flowsim.device_check") / "reference.npz" if path is None else path
    flat = read_arrays(os.fspath(where), f"{where} cannot be read as stored results; write it again.")  # pyright: ignore
    stored: dict[str, Arrays] = {}
    for name, array in flat.items():
        case, _, observable = name.rpartition("/")
        stored.setdefault(case, {})[observable] = array
    if not all(_fits(stored.get(name, {})) for name in CASES):
        raise FileProblem(f"{where} lacks a case of this version; write it again with --write-reference.")
    return stored


def _fits(arrays: Arrays) -> bool:
    """Whether stored arrays can be those of a case: all there, numbers, of one shape."""
    if not set(arrays) >= {*OBSERVABLES, "status"}:
        return False
    shapes = {arrays[name].shape for name in OBSERVABLES}
    numbers = all(array.dtype.kind in "iuf" for array in arrays.values())
    return numbers and len(shapes) == 1 and arrays["status"].shape == min(shapes)[:-1]
