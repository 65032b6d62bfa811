"""`flowsim integrate`: the flow over time, by diffrax or in closed form."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from flowsim.cli import _parse
from flowsim.cli._console import work
from flowsim.cli._finish import finish
from flowsim.cli._options import (
    MODEL,
    GridOptions,
    ModelOptions,
    OutputOptions,
    RatioOptions,
    TaskOptions,
    given_options,
    option,
)
from flowsim.errors import InvalidInput, NoClosedForm

if TYPE_CHECKING:
    from flowsim.trajectory import Trajectory

METHODS = ("ode", "exact")
NORMALIZED = ("qk", "ov", "both")
_INTERVENTIONS = "Interventions"


@dataclasses.dataclass(frozen=True)
class InterventionOptions:
    """What is changed about the plain flow."""

    weight_decay_qk: Annotated[
        str | None,
        option(_INTERVENTIONS, "--weight-decay-qk", "Decay rate of the QK circuit, in units of its rate.", "MU"),
    ] = None
    weight_decay_ov: Annotated[
        str | None, option(_INTERVENTIONS, "--weight-decay-ov", "Decay rate of the OV circuit.", "MU")
    ] = None
    normalize: Annotated[
        str | None,
        option(_INTERVENTIONS, "--normalize", "Divide these gradients by their norm.", "|".join(NORMALIZED)),
    ] = None
    growing_until: Annotated[
        str | None,
        option(
            _INTERVENTIONS, "--growing-until", "Let the ratio grow from 0 at time 0, linearly, to its full value.", "T"
        ),
    ] = None

    def build(self) -> dict[str, Any]:
        """The keyword arguments of `integrate`, those that were given; the schedule as the time where it ends.

        Raises:
            InvalidInput: naming option, value and fix.
        """
        given: dict[str, Any] = {}
        for name in ("weight_decay_qk", "weight_decay_ov"):
            if (text := getattr(self, name)) is not None:
                given[name] = _parse.number(f"--{name.replace('_', '-')}", text, minimum=0)
        if self.normalize is not None:
            if self.normalize not in NORMALIZED:
                raise InvalidInput(f"--normalize {self.normalize} is unknown; give one of {', '.join(NORMALIZED)}.")
            given["normalize"] = self.normalize
        if self.growing_until is not None:
            given["growing_until"] = _parse.number("--growing-until", self.growing_until, above=0)
        return given


def method_option(default: str) -> Any:
    """The choice between the two solvers."""
    return option(MODEL, "--method", f"Diffrax (any task) or the closed form (default {default}).", "|".join(METHODS))


def command(
    *,
    task: TaskOptions,
    ratio: RatioOptions,
    model: ModelOptions,
    method: Annotated[str, method_option("ode")] = "ode",
    interventions: InterventionOptions,
    grid: GridOptions,
    output: OutputOptions,
) -> int:
    """Follow the gradient flow over time.

    Example: flowsim integrate --ratio 5 --time 1 --time 100 --time 1000
    """
    solve = solver_for(method)
    changes = interventions.build()
    if changes and method == "exact":
        raise InvalidInput(f"{given_options(interventions)[0]} has no closed form; give --method ode.")
    path = output.file((".nc",))
    arguments = {"ratio": ratio.ratios(1.0), **model.start(), **grid.build(), **changes}
    bound = task.build()
    trajectory = work("solving", lambda: solve(bound, model.parameterization, **arguments))
    return finish(trajectory, path, as_json=output.json)


def solver_for(method: str) -> Callable[..., "Trajectory"]:
    """The solver, which is imported when it is called.

    Raises:
        InvalidInput: if the method is unknown.
    """
    if method not in METHODS:
        raise InvalidInput(f"--method {method} is unknown; give one of {', '.join(METHODS)}.")

    def solve(*arguments: Any, **options: Any) -> "Trajectory":
        import flowsim

        if method == "ode":
            if "growing_until" in options:
                options["schedule"] = flowsim.schedules.Growing(options.pop("growing_until"))
            return flowsim.integrate(*arguments, **options)
        try:
            return flowsim.exact(*arguments, **options)
        except NoClosedForm as error:
            raise NoClosedForm(str(error).replace("use flowsim.integrate", "give --method ode")) from error

    return solve
