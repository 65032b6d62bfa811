"""`flowsim derive`: the flow of a task, from softmax cross-entropy to equations."""

from typing import TYPE_CHECKING, Annotated, Any

from flowsim._files import write_text
from flowsim.cli import _laws
from flowsim.cli._console import json_text, work, wrapped, write
from flowsim.cli._options import OUTPUT, OutputOptions, ParameterizationOption, TaskOptions, option
from flowsim.errors import InvalidInput, NoClosedForm

if TYPE_CHECKING:
    import sympy as sp

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
    """Derive the gradient-flow equations, the conserved quantities, the closed form and the growth laws.

    Example: flowsim derive --parameterization FAFO --query shared
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
        lines += ["closed form", *(f"  {equation_text(equation)}" for equation in solution(flow))]
        lines += [
            "",
            "growth laws, as t goes to infinity (early: before attention saturates; ln t must be large there)",
        ]
        named = _laws.growth_lines(flow)
        width = max(len(line.name) for line in named)
        lines += [f"  {line.name:{width}}  {equation_text(line.equation)}" for line in named]
        factors = any("Lambda" in equation_text(line.equation) for line in named)
        lines += [
            f"with{' (Lambda tends to theta)' if factors else ''}",
            *(f"  {equation_text(equation)}" for equation in _laws.definitions(flow)),
        ]
    return "\n".join(lines)


def solution(flow: "Flow") -> "tuple[sp.Eq, ...]":
    """The closed form without what the flow has said already: clocks, margin and score gap on them, orbit, time map."""
    from flowsim.theory.closed_form import ClosedForm

    closed = flow.closed_form
    if closed is None:
        raise AssertionError("only a flow with a closed form is asked for it")
    if isinstance(closed, ClosedForm):
        return (*closed.clocks, *closed.equations[-3:])
    return closed.equations[4:]


def flow_latex(task: "Task", flow: "Flow") -> str:
    """The same as LaTeX."""
    import sympy as sp

    from flowsim.theory.printing import latex_lines

    lines = [flow.latex(), "", "% conserved"]
    lines += [f"% {item.meaning}\n{sp.latex(item.expression)} = \\mathrm{{const}}" for item in conserved(task, flow)]
    missing = no_closed_form(task, flow)
    closed = flow.closed_form
    if closed is None or missing:
        return "\n".join([*lines, "", f"% {missing}"])
    lines += ["", "% clocks", latex_lines(closed.clocks), "", "% closed form", closed.latex(), "", "% growth laws"]
    lines += [f"% {line.name}\n{latex_lines([line.equation])}" for line in _laws.growth_lines(flow)]
    lines += ["% with", latex_lines(_laws.definitions(flow))]
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
        "clocks": None if closed is None else [equation_text(equation) for equation in closed.clocks],
        "closed_form": None if closed is None else [equation_text(equation) for equation in closed.equations],
        "growth_laws": None
        if closed is None
        else {
            "laws": [
                {
                    "observable": line.law.observable,
                    "law": line.law.name,
                    "regime": line.law.regime,
                    "leading": equation_text(line.equation),
                }
                for line in _laws.growth_lines(flow)
            ],
            "definitions": [equation_text(equation) for equation in _laws.definitions(flow)],
        },
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
