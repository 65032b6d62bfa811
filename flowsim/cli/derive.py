"""`flowsim derive`: the flow of a task, from softmax cross-entropy to equations."""

from typing import TYPE_CHECKING, Annotated, Any

from flowsim._files import write_text
from flowsim.cli._console import json_text, work, wrapped, write
from flowsim.cli._options import OUTPUT, OutputOptions, ParameterizationOption, TaskOptions, option
from flowsim.errors import InvalidInput, NoClosedForm

if TYPE_CHECKING:
    from flowsim.task import Task
    from flowsim.theory.flow import Flow
    from flowsim.theory.invariants import Invariant


def command(
    *,
    task: TaskOptions,
    parameterization: ParameterizationOption = "CACO",
    output: OutputOptions,
    latex: Annotated[bool, option(OUTPUT, "--latex", "LaTeX instead of text.")] = False,
) -> int:
    """Derive the gradient-flow equations, the conserved quantities and the closed form.

    Example: flowsim derive --query shared --other-outputs 50
    """
    path = output.file((".txt", ".tex", ".json"))
    if latex and output.json:
        raise InvalidInput("--latex was given together with --json; give one of them (the JSON holds the LaTeX too).")
    bound = task.build()
    make = _as_json if output.json else flow_latex if latex else flow_text
    text = work("deriving", lambda: make(bound, _derive(bound, parameterization)))
    if path is not None:
        write_text(path, text + "\n")
    write(text if path is None or output.json else f"wrote {path}")
    return 0


def _derive(task: "Task", parameterization: str) -> "Flow":
    import flowsim

    return flowsim.derive(task, parameterization)


def flow_text(task: "Task", flow: "Flow") -> str:
    """The derivation's results as plain text."""
    import sympy as sp

    from flowsim.theory.printing import equation_text

    closed = flow.closed_form
    missing = no_closed_form(task, flow)
    lines = [wrapped(f"task: {task}"), "", str(flow), "", "conserved"]
    for item in conserved(task, flow):
        lines += [f"  {sp.sstr(item.expression)}", f"      {item.meaning}"]
    lines.append("")
    if closed is None or missing:
        lines.append(wrapped(str(missing)))
    else:
        lines += ["closed form", *(f"  {equation_text(equation)}" for equation in closed.equations[-3:])]
    return "\n".join(lines)


def flow_latex(task: "Task", flow: "Flow") -> str:
    """The same as LaTeX."""
    import sympy as sp

    lines = [flow.latex(), "", "% conserved"]
    lines += [f"% {item.meaning}\n{sp.latex(item.expression)} = \\mathrm{{const}}" for item in conserved(task, flow)]
    missing = no_closed_form(task, flow)
    closed = flow.closed_form
    lines += ["", f"% {missing}" if closed is None or missing else f"% closed form\n{closed.latex()}"]
    return "\n".join(lines)


def _as_json(task: "Task", flow: "Flow") -> str:
    return json_text({"task": task.to_dict(), "parameterization": flow.parameterization, **flow_data(task, flow)})


def flow_data(task: "Task", flow: "Flow") -> dict[str, Any]:
    """Equations, conserved quantities and closed form as plain data."""
    import sympy as sp

    from flowsim.theory.printing import equation_text

    missing = no_closed_form(task, flow)
    closed = flow.closed_form if missing is None else None
    return {
        "equations": [equation_text(equation) for equation in flow.equations],
        "conserved": [
            {"expression": sp.sstr(item.expression), "meaning": item.meaning} for item in conserved(task, flow)
        ],
        "closed_form": None if closed is None else [equation_text(equation) for equation in closed.equations],
        "no_closed_form_because": missing,
        "latex": flow.latex(),
    }


def conserved(task: "Task", flow: "Flow") -> "list[Invariant]":
    """What the task conserves: the flow's invariants, without the orbit's where a mixture breaks it."""
    kept = list(flow.conserved)
    if flow.closed_form is not None and no_closed_form(task, flow):
        kept = [item for item in kept if item.expression != flow.closed_form.invariant]
    return kept


def no_closed_form(task: "Task", flow: "Flow") -> str | None:
    """The sentence that says why the task has no closed form, or None when it has one.

    The flow knows the structure only; that a mixture of compositions has no closed form either shows here.
    """
    from flowsim.solve.closed_form import closed_form_parameters

    try:
        closed_form_parameters(task, flow.parameterization)
    except NoClosedForm as error:
        return str(error)
    return None
