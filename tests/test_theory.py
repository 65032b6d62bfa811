"""The symbolic engine against the paper's formulas, direct differentiation and high-precision arithmetic."""

# SymPy's annotations are wider than what it returns.
# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false

import dataclasses
import importlib.util
import itertools
import pathlib

import pytest
import sympy as sp

from flowsim.errors import InvalidInput
from flowsim.task import FixedContext, Structure, Task
from flowsim.theory import Mean, derive, observables, reduce
from flowsim.theory.loss import attended_slopes, attention_of, composition_loss
from flowsim.theory.symbols import CLASSES, ERROR, OTHER_OUTPUTS, RATIO

K, R, r = CLASSES, OTHER_OUTPUTS, RATIO

PLAIN = Structure(("distinct", "common"), "per-class", None, False)
RICH = Structure(("distinct", "null", "distinct", "common", "distinct"), "per-class", 4, True)
STRUCTURES = [
    PLAIN,
    Structure(("null", "distinct"), "shared", None, False),
    Structure(("distinct",), "per-class", None, False),
    Structure(("distinct", "distinct"), "per-class", None, True),
    Structure(("common", "distinct"), "per-class", None, True),
    Structure(("distinct", "common", "common", "common"), "shared", 3, False),
    RICH,
]


def vanishes(expression: sp.Expr) -> bool:
    """Whether an expression in exponentials of scores is identically zero, by exact rational arithmetic."""
    scores = {s: sp.log(sp.Dummy(positive=True)) for s in expression.free_symbols if s.name.startswith("u")}
    return sp.cancel(sp.together(expression.subs(scores))) == 0


@pytest.mark.parametrize("structure", STRUCTURES)
def test_softmax_derivative_does_not_cancel_and_is_right(structure):
    groups = reduce(structure).groups
    attention = attention_of(groups)
    values = {g.index: g.rest for g in groups if not g.is_null}
    attended = sp.Add(*(attention[g] * y for g, y in values.items()))
    slopes = attended_slopes(groups, values)
    for g in groups:
        if g.is_null:
            continue
        stable = sp.Integer(0)
        for h in groups:
            if h.index != g.index:
                pair, sign = ((g.index, h.index), 1) if g.index < h.index else ((h.index, g.index), -1)
                stable += sign * attention[g.index] * attention[h.index] * slopes[pair]
        assert vanishes(sp.diff(attended, g.score) - stable)
        assert len(groups) == 1 or not vanishes(sp.diff(attended, g.score) + stable)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_derivative_by_every_readout_is_that_of_the_loss(structure):
    """The named form of the derivative against SymPy's derivative of the loss written out in one expression."""
    flow = derive(structure)
    groups, loss = flow.reduction.groups, composition_loss(structure)
    leads = {
        output.lead: output.sign * sp.Add(*(loss.attention[g] * value for g, value in output.values.items()))
        for output in loss.outputs
    }
    whole = loss.loss.subs(leads)
    named = {g.attention: loss.attention[g.index] for g in groups}
    named |= {output.error: output.definition.subs(leads) for output in loss.outputs}
    fluxes = dict(flow.fluxes.values())
    point = {symbol: sp.Rational(i + 2, 7) for i, symbol in enumerate(sorted(whole.free_symbols, key=str))}
    for (kind, g), slope in flow.slopes.items():
        readout = {"score": groups[g].score, "margin": groups[g].margin, "rest": groups[g].rest}[kind]
        ours = slope.xreplace(fluxes).replace(Mean, lambda term: term).subs(named)
        difference = (sp.diff(whole, readout) - ours).subs(point)
        assert abs(sp.N(difference, 40, chop=True)) < sp.Float("1e-30")


def test_equations_of_the_plain_task_are_the_papers():
    flow = derive(PLAIN)
    theta, w = flow.coordinates.state
    alpha = flow.reduction.groups[0].attention
    m, n, big_c, big_d = sp.symbols("m n C D", positive=True)
    lines = {str(eq.args[0]): eq.args[1] for eq in flow.equations}
    assert list(lines) == ["alpha", "Delta", "q", "Derivative(theta, t)", "Derivative(w, t)"]
    delta = sp.Symbol("Delta", real=True)
    assert sp.simplify(lines["alpha"] - m * sp.exp(theta) / (m * sp.exp(theta) + n)) == 0
    assert lines["Delta"] == alpha * w
    assert sp.simplify(lines["q"] - (K - 1) / (sp.exp(delta) + K - 1)) == 0
    gap = r / K * (1 / big_c + 1 / big_d) * w * Mean(alpha * (1 - alpha) * ERROR)
    assert sp.expand(lines["Derivative(theta, t)"] - gap) == 0
    assert sp.expand(lines["Derivative(w, t)"] - Mean(alpha * ERROR) / (big_c * (K - 1))) == 0


@pytest.mark.parametrize(
    ("query", "background", "gain"),
    [
        ("per-class", "common", "1/C + 1/D"),
        ("per-class", "null", "1/C"),
        ("shared", "common", "1/C + K/D"),
        ("shared", "null", "1/C"),
    ],
)
@pytest.mark.parametrize("order", [0, 1])
def test_closed_form_constants_are_the_papers(query, background, gain, order):
    roles = ("distinct", background)[:: -1 if order else 1]
    closed = derive(Structure(roles, query, None, False)).closed_form
    assert closed is not None
    names = {"C": sp.Symbol("C", positive=True), "D": sp.Symbol("D", positive=True), "K": K}
    g = sp.sympify(gain, locals=names)
    assert sp.simplify(closed.gain - g) == 0
    assert sp.simplify(closed.rho - g * r * names["C"] * (K - 1) / K) == 0
    # the invariant along the flow: its derivative by time is zero
    drift = sp.diff(closed.invariant, closed.score_gap) * closed.score_gap_velocity
    drift += sp.diff(closed.invariant, closed.margin) * closed.margin_velocity
    assert sp.simplify(drift.subs(closed.attention, closed.odds / (1 + closed.odds))) == 0
    # the time map: its integrand is dt/dw
    integral = closed.time_map.rhs
    integrand = integral.as_independent(sp.Integral)[0] * integral.atoms(sp.Integral).pop().function
    q = (K - 1) / (sp.exp(closed.attention * closed.margin) + K - 1)
    assert sp.simplify(integrand * closed.margin_velocity.subs(ERROR, q) - 1) == 0
    # the orbit solved for the odds
    y = sp.Symbol("y", positive=True)
    orbit = closed.orbit.lhs.subs(y, closed.odds_of_margin) - closed.orbit.rhs
    numbers = {s: sp.Rational(i + 1, 3) for i, s in enumerate(sorted(orbit.free_symbols - {K}, key=str))} | {K: 4}
    assert abs(sp.N(orbit.subs(numbers), 30)) < sp.Float("1e-25")


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        (Structure(("distinct", "common"), "per-class", None, True), "other_outputs"),
        (Structure(("distinct", "common", "distinct"), "per-class", 2, False), "attend_query"),
        (Structure(("distinct", "distinct"), "per-class", None, False), "groups="),
        (Structure(("distinct", "common", "null"), "per-class", None, False), "groups="),
        (Structure(("distinct",), "shared", None, False), "groups="),
    ],
)
def test_no_closed_form_says_why(structure, reason):
    flow = derive(structure)
    assert flow.closed_form is None
    assert flow.closed_form_reason is not None
    assert reason in flow.closed_form_reason
    assert flow.closed_form_reason.endswith(".")


@pytest.mark.parametrize("structure", STRUCTURES)
def test_linear_invariants_are_constant_and_complete(structure):
    flow = derive(structure)
    linear = [c for c in flow.conserved if c.expression.free_symbols & flow.block_velocity.keys()]
    for invariant in linear:
        gradient = {b: sp.diff(invariant.expression, b) for b in flow.block_velocity}
        assert sp.simplify(sum(slope * flow.block_velocity[b] for b, slope in gradient.items())) == 0
    groups, state = flow.reduction.groups, flow.block_velocity
    independent = sp.Matrix([[sp.diff(c.expression, b) for b in state] for c in linear])
    assert independent.subs({s: i + 2 for i, s in enumerate(independent.free_symbols)}).rank() == len(linear)
    # by hand: one shift of the scores if nothing is null, other-class scores, one output sum for each token group
    scored = [g for g in groups if not g.is_null]
    shift = len(scored) == len(groups)
    unseen = sum(g.is_distinct for g in scored) if structure.query == "per-class" else 0
    assert len(linear) == shift + unseen + len(scored)
    assert len(flow.conserved) == len(linear) + (flow.closed_form is not None)


def test_invariants_hold_the_column_sums_and_the_weighted_scores():
    flow = derive(PLAIN)
    s, t, t_c, _, t1, t1_c = (block.symbol for block in flow.reduction.blocks)
    big_c, big_d = sp.symbols("C D", positive=True)
    span = sp.Matrix([[sp.diff(c.expression, b) for b in flow.block_velocity] for c in flow.conserved[:-1]])
    for conserved in (t1, t1_c, s - t, sp.sqrt(big_c) * ((K - 1) * s + t) + sp.sqrt(big_d * K) * t_c):
        row = sp.Matrix([[sp.diff(conserved, b) for b in flow.block_velocity]])
        numbers = {K: 5, big_c: 4, big_d: 9}
        assert span.col_join(row).subs(numbers).rank() == span.subs(numbers).rank()
    assert span.col_join(sp.Matrix([[1, 0, 0, 0, 0, 0]])).subs({K: 5, big_c: 4, big_d: 9}).rank() == span.rank() + 1


@pytest.mark.parametrize("structure", STRUCTURES)
def test_recovered_blocks_are_a_right_inverse_in_the_row_space(structure):
    flow = derive(structure)
    coordinates = flow.coordinates
    change = {symbol: sp.Symbol(f"d{symbol}", real=True) for symbol in coordinates.state}
    blocks = coordinates.recover(change)
    for symbol, readout in zip(coordinates.state, coordinates.in_blocks, strict=True):
        assert sp.simplify(readout.subs(blocks, simultaneous=True) - change[symbol]) == 0
    # what the flow conserves does not change: the recovered change is the flow's and not another one
    for invariant in flow.conserved:
        if invariant.expression.free_symbols & flow.block_velocity.keys():
            assert sp.simplify(invariant.expression.subs(blocks, simultaneous=True)) == 0


@pytest.mark.parametrize(("classes", "types"), [(2, 3), (3, 2)])
def test_entries_are_what_permutations_leave_alone(classes, types):
    """The block entries, written into a matrix, span exactly the matrices that commute with every permutation."""
    structure = Structure(("distinct", "common"), "per-class", None, False)
    reduction = reduce(structure)
    numbers = {K: classes, **{g.types: types for g in reduction.groups}}
    rows = [
        (g.index, k, i) for g in reduction.groups for k in range(classes if g.is_distinct else 1) for i in range(types)
    ]

    def score(row, query):
        return reduction.score(row[0], own_class=row[1] == query or not reduction.groups[row[0]].is_distinct)

    matrix = sp.Matrix([[score(row, query).subs(numbers) for query in range(classes)] for row in rows])
    for permutation in itertools.permutations(range(classes)):
        moved = [(g, permutation[k] if reduction.groups[g].is_distinct else 0, (i + 1) % types) for g, k, i in rows]
        swapped = matrix.extract([rows.index(row) for row in moved], list(permutation))
        assert sp.simplify(swapped - matrix) == sp.zeros(*matrix.shape)
    # the Frobenius norm is the block norm with each block counted as often as its representation has dimensions
    norm = sum(block.dimension.subs(numbers) * block.symbol**2 for block in reduction.qk.blocks)
    assert sp.simplify(sum(entry**2 for entry in matrix) - norm) == 0


def test_flow_is_cached_hashable_and_immutable(reference_task):
    flow = derive(reference_task)
    other_numbers = Task(classes=7, distinct=3, common=2, context=FixedContext(distinct=1, common=9))
    assert derive(other_numbers, "CACO") is flow
    assert derive(reference_task.structure) is flow
    assert {flow: 1}[derive(other_numbers)] == 1
    assert derive(RICH) != flow
    with pytest.raises(AttributeError):
        flow.structure = RICH  # type: ignore[misc]
    with pytest.raises(TypeError):
        flow.velocity[sp.Symbol("w")] = sp.Integer(0)  # type: ignore[index]


@pytest.mark.parametrize(
    ("task", "parameterization", "message"),
    [
        (PLAIN, "CAC0", "unknown"),
        ("a task", "CACO", "must be a flowsim.Task"),
        (Structure(("common", "null"), "shared", None, False), "CACO", "no distinct group"),
    ],
)
def test_bad_input(task, parameterization, message):
    with pytest.raises(InvalidInput, match=message):
        derive(task, parameterization)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_text_and_latex(structure):
    flow = derive(structure)
    text, latex = str(flow), flow.latex()
    assert text.startswith("CACO flow: ")
    assert len(text.splitlines()) == len(flow.equations) + 1
    assert "dw" in text
    assert "Derivative" not in text
    assert latex.startswith("\\begin{aligned}")
    assert latex.count("&=") == len(flow.equations)
    assert flow._repr_latex_().startswith("$\\displaystyle \\begin{aligned}")
    for name in ("E[", "Piecewise", "Derivative"):
        assert name not in latex
    assert all(str(c).count("= const") == 1 for c in flow.conserved)
    # closed: nothing on the right that is not defined above, a coordinate, or a parameter
    known = {str(s) for s in flow.coordinates.state} | {"K", "R", "r"}
    known |= {str(s) for g in flow.reduction.groups for s in (g.types, g.count)}
    for equation in flow.equations:
        left, right = equation.args
        assert {str(s) for s in right.free_symbols} <= known
        known.add(str(left))


def test_mean_is_not_pulled_apart():
    alpha = sp.Symbol("alpha", positive=True)
    assert Mean(2 * alpha) != 2 * Mean(alpha)
    assert sp.latex(Mean(alpha) ** 2) == r"\mathbb{E}\left[\alpha\right]^{2}"
    assert str(Mean(alpha)) == "E[alpha]"


def test_observables_are_in_the_coordinates():
    seen = observables(derive(RICH))
    names = derive(RICH).reduction.groups
    assert seen.margin == names[0].margin
    assert seen.score_gap == names[0].gap
    assert seen.attention == Mean(names[0].attention)
    assert seen.error == Mean(ERROR + sp.Symbol("q_R", positive=True))
    first_common = observables(derive(Structure(("distinct", "common", "null"), "shared", None, False)))
    assert len(first_common.score_gap.free_symbols) == 2  # measured against the common group, not the null reference


def derivation(name):
    path = pathlib.Path(__file__).parent.parent / "derivations" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reduction_document_fails_on_a_wrong_multiplicity(monkeypatch):
    module = derivation("01_symmetric_reduction")
    module.metric()
    right = reduce(module.VOCABULARY)
    blocks = tuple(b._replace(dimension=K) if b.irrep == "standard" else b for b in right.qk.blocks)
    wrong = dataclasses.replace(right, qk=dataclasses.replace(right.qk, blocks=blocks))
    monkeypatch.setattr(module, "reduce", lambda _: wrong)
    with pytest.raises(AssertionError):
        module.metric()


def test_the_flow_document_fails_on_a_wrong_sign_and_a_wrong_constant(monkeypatch):
    module = derivation("02_collapsed_flow")
    module.softmax_without_cancellation()
    module.orbit()
    right, eligible = module.attended_slopes, module.eligible
    monkeypatch.setattr(module, "attended_slopes", lambda *args: {p: -d for p, d in right(*args).items()})
    with pytest.raises(AssertionError):
        module.softmax_without_cancellation()

    def altered(query, background):
        closed = eligible(query, background)
        return dataclasses.replace(closed, rho=closed.rho * sp.Rational(105, 100))

    monkeypatch.setattr(module, "eligible", altered)
    with pytest.raises(AssertionError):
        module.orbit()
