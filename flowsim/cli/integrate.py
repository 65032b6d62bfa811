"""`flowsim integrate`: the flow over time, by diffrax or in closed form."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from flowsim.cli._console import work
from flowsim.cli._finish import finish
from flowsim.cli._options import MODEL, GridOptions, ModelOptions, OutputOptions, RatioOptions, TaskOptions, option
from flowsim.errors import InvalidInput, NoClosedForm

if TYPE_CHECKING:
    from flowsim.trajectory import Trajectory

METHODS = ("ode", "exact")


def method_option(default: str) -> Any:
    """The choice between the two solvers."""
    return option(MODEL, "--method", f"Diffrax (any task) or the closed form (default {default}).", "|".join(METHODS))


def command(
    *,
    task: TaskOptions,
    ratio: RatioOptions,
    model: ModelOptions,
    method: Annotated[str, method_option("ode")] = "ode",
    grid: GridOptions,
    output: OutputOptions,
) -> int:
    """Follow the gradient flow over time.

    Example: flowsim integrate --ratio 5 --time 1 --time 100 --time 1000
    """
    solve = solver_for(method)
    path = output.file((".nc",))
    arguments = {"ratio": ratio.ratios(1.0), **model.start(), **grid.build()}
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
            return flowsim.integrate(*arguments, **options)
        try:
            return flowsim.exact(*arguments, **options)
        except NoClosedForm as error:
            raise NoClosedForm(str(error).replace("use flowsim.integrate", "give --method ode")) from error

    return solve
