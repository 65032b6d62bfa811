"""The factorized flow against the autodiff gradient of the four full factor matrices, over random tasks and widths."""

import dataclasses
import importlib.util
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sympy as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flowsim as fs
from flowsim import circuits, codegen
from flowsim.errors import InvalidInput
from flowsim.task import Structure
from flowsim.theory import ClosedForm, TwoClocks, derive
from flowsim.theory import circuits as symbolic
from flowsim.theory.symbols import CLASSES as K
from tests import full_matrix as full
from tests.test_full_matrix import ROUNDING, tasks

FAST = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PLAIN = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
RICH = fs.Task(
    classes=3,
    groups=[
        fs.Group("a", "distinct", 2),
        fs.Group("b", "distinct", 3),
        fs.Group("c", "common", 4),
        fs.Group("n", "null"),
    ],
    context=fs.MixtureContext([(0.3, (3.0, 0.0, 2.0, 1.0)), (0.7, (1.0, 2.5, 4.0, 2.0))]),
    attend_query=True,
    other_outputs=3,
)


@st.composite
def problems(draw):
    """A task, the field of a parameterization with random hidden sizes, a symmetric state, a ratio."""
    task = draw(tasks())
    name = draw(st.sampled_from(["FACO", "CAFO", "FAFO"]))
    parts = [part.name for side in derive(task, name).sides if not side.circuit.closes for part in side.matrix.parts]
    hidden = {part: draw(st.integers(1, 3)) for part in parts}
    field = fs.compile(derive(task, name, hidden=hidden))
    scale = draw(st.sampled_from([0.1, 1.0, 2.0]))
    state = scale * np.random.default_rng(draw(st.integers(0, 2**31))).normal(size=field.n_state)
    return task, field, state, draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]))


def factors_of(field, state) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Block factors of all parts, read off the state by the names of its entries alone.

    A collapsed part is its own first factor, times the identity.
    """
    values = dict(zip(field.state_names, np.asarray(state), strict=True))
    parts = {}
    for side in field.flow.sides:
        for part in side.matrix.parts:
            rows, columns = part.shape
            here = np.array([values[str(symbol)] for symbol in side.circuit.state(part)])
            if side.circuit.closes:
                parts[part.name] = (here.reshape(rows, columns), None)
                continue
            width = side.circuit.width(part)
            split = rows * width
            parts[part.name] = (here[:split].reshape(rows, width), here[split:].reshape(width, columns))
    return parts


def collapsed_as_factors(parts):
    """For collapsed parts one factor is the matrix and the other the identity."""
    return {name: (p, np.eye(p.shape[1]) if q is None else q) for name, (p, q) in parts.items()}


def gradient_of_state(task, field, state) -> tuple[np.ndarray, float]:
    """The projection of the full autodiff gradient on the state, and the size of what it leaves outside.

    Circuits that are collapsed are differentiated by their matrix, factorized ones by their factors.
    """
    parts = factors_of(field, state)
    everything = full.symmetric_factors(task, collapsed_as_factors(parts))
    sequences = full.mean_counts(task)
    by_factors = full.factor_gradient(everything, sequences)
    by_matrix = full.full_gradient(everything.key @ everything.query.T, everything.output @ everything.value, sequences)
    blocks = dict(zip(field.block_names, full.project(task, *by_matrix), strict=True))

    projected, outside = [], 0.0
    for side, names in zip(field.flow.sides, (("key", "query"), ("output", "value")), strict=True):
        mine = [part.name for part in side.matrix.parts]
        if side.circuit.closes:
            projected += [blocks[str(symbol)] for part in side.matrix.parts for symbol in side.circuit.state(part)]
            continue
        whole = np.concatenate([getattr(by_factors, name).ravel() for name in names])
        left = whole.copy()
        for part in mine:
            for which in (0, 1):
                for entry in np.ndindex(parts[part][which].shape):
                    unit = {
                        name: tuple(np.zeros_like(m) for m in pair)
                        for name, pair in collapsed_as_factors(parts).items()
                    }
                    unit[part][which][entry] = 1.0
                    embedded = full.symmetric_factors(task, unit)
                    direction = np.concatenate([getattr(embedded, name).ravel() for name in names])
                    coefficient = whole @ direction / (direction @ direction)
                    projected.append(coefficient)
                    left -= coefficient * direction
        outside = max(outside, np.abs(left).max() / max(np.abs(whole).max(), 1e-3))
    return np.array(projected), outside


def velocity_mismatch(task, field, state, ratio) -> tuple[float, float]:
    """Largest relative difference of the compiled velocity from that of the full factors, and what lies outside."""
    gradient, outside = gradient_of_state(task, field, state)
    n = field.circuits.qk.size
    reference = -np.where(np.arange(field.n_state) < n, ratio, 1.0) * gradient
    ours = np.asarray(field(0.0, jnp.asarray(state), field.parameters(task, ratio)))
    worst, floor = 0.0, 1e-5 * max(1.0, ratio)
    for here in (slice(0, n), slice(n, None)):
        # a circuit whose gradient vanishes is compared on the scale of one rounding of the loss, times its rate
        worst = max(worst, np.abs(ours[here] - reference[here]).max() / max(np.abs(reference[here]).max(), floor))
    return worst, outside


def check_velocity(problem):
    worst, outside = velocity_mismatch(*problem)
    assert worst < ROUNDING
    assert outside < 1e-12


def check_motion(problem):
    """What is integrated is what moves: the velocity of the state seen through the coordinates of the motion."""
    task, field, state, ratio = problem
    parameters, state = field.parameters(task, ratio), jnp.asarray(state)
    y = field.motion_of(state, parameters)
    ours = np.array(field.motion(0.0, y, parameters))
    velocity = field(0.0, state, parameters)
    _, seen = jax.jvp(lambda state: jnp.stack(field.motion_of(state, parameters)), (state,), (velocity,))
    assert np.abs(ours - seen).max() <= ROUNDING * max(np.abs(seen).max(), 1e-5)
    # a change of the motion moves the observed coordinates by the difference of what is observed
    change = tuple(0.3 * v for v in jax.random.normal(jax.random.key(0), (len(y),)))
    zero = tuple(jnp.zeros_like(v) for v in y)
    after, before = (
        np.array(field.displacement(zero, position, parameters))
        for position in (tuple(a + b for a, b in zip(y, change, strict=True)), y)
    )
    moved = np.array(field.displacement(y, change, parameters))
    np.testing.assert_allclose(moved, after - before, rtol=1e-11, atol=1e-11 * max(1.0, np.abs(after).max()))
    np.testing.assert_allclose(
        before, field.to_reduced(field.circuits.blocks(state), parameters), rtol=1e-11, atol=1e-12
    )


@given(problems())
@FAST
def test_factor_velocity_is_the_gradient_of_the_full_factors(problem):
    check_velocity(problem)
    check_motion(problem)


@pytest.mark.slow
@given(problems())
@MANY
def test_factor_velocity_is_the_gradient_of_the_full_factors_over_many_tasks(problem):
    check_velocity(problem)
    check_motion(problem)


def wrong_metric(self, state, gradient, rate):
    """The standard parts as if they were trivial."""
    right = circuits.Factorized.velocity
    moved = [np.asarray(right(self, state, gradient, rate)).copy()][0]
    shape = self.shapes[0]
    moved[: shape.hidden * (shape.rows + shape.columns)] *= 2.0
    return jnp.asarray(moved)


def wrong_sign(self, state, gradient, rate):
    """The second factor runs up the gradient."""
    moved = np.asarray(circuits.Factorized.velocity(self, state, gradient, rate)).copy()
    moved[-self.shapes[-1].columns :] *= -1.0
    return jnp.asarray(moved)


def wrong_factor(self, state, gradient, rate):
    """Each factor is driven through itself instead of the other one."""
    factors = self.factors(state)
    swapped = jnp.concatenate(
        [a.reshape(-1) for p, q in factors for a in (jnp.resize(q, p.shape), jnp.resize(p, q.shape))]
    )
    return circuits.Factorized.velocity(self, swapped, gradient, rate)


@pytest.mark.parametrize("wrong", [wrong_metric, wrong_sign, wrong_factor])
def test_planted_errors_are_seen(wrong):
    field = fs.compile(derive(RICH, "FAFO"))
    state = np.random.default_rng(0).normal(size=field.n_state)
    assert velocity_mismatch(RICH, field, state, 2.0)[0] < ROUNDING
    pair = field.circuits

    class Planted(circuits.Factorized):
        velocity = wrong

    qk, ov = Planted(pair.qk.shapes), Planted(pair.ov.shapes)
    broken = pair._replace(qk=qk, ov=ov)
    blocks = pair.blocks(jnp.asarray(state))
    parameters = field.parameters(RICH, 2.0)
    moved = broken.velocity(jnp.asarray(state), field.gradient(blocks, 0.0, parameters), 2.0)
    gradient, _ = gradient_of_state(RICH, field, state)
    reference = -np.where(np.arange(field.n_state) < qk.size, 2.0, 1.0) * gradient
    assert np.abs(moved - reference).max() > 1e-3 * np.abs(reference).max()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("T_1c = P_T_1_1*Q_T_c_1 + P_T_1_2*Q_T_c_2", "T_1c = P_T_1_1*Q_T_c_1"),  # a hidden unit forgotten
        ("-G_S_d1*P_S", "-G_S_d2*P_S"),  # another group's pull
        ("c0 = K - 1", "c0 = K"),  # a wrong multiplicity
    ],
)
def test_planted_errors_in_the_generated_source_are_seen(old, new):
    field = fs.compile(derive(RICH, "FAFO"))
    parameters = field.parameters(RICH, 2.0)
    state = jnp.asarray(np.random.default_rng(0).normal(size=field.n_state))
    y = field.motion_of(state, parameters)
    source = codegen._source(field.flow, "motion")
    assert source.count(old) == 1
    namespace = dict(codegen._NAMESPACE)
    exec(source.replace(old, new), namespace)
    right, wrong = (np.array(f(0.0, y, parameters)) for f in (field.motion, namespace["motion"]))
    assert np.abs(right - wrong).max() > 1e-4 * np.abs(right).max()


def test_a_gradient_outside_the_symmetric_subspace_is_seen():
    """The symmetry check itself: factors off the symmetric line have a gradient off it."""
    field = fs.compile(derive(RICH, "FAFO"))
    state = np.random.default_rng(1).normal(size=field.n_state)
    factors = full.symmetric_factors(RICH, factors_of(field, state))
    key = factors.key.copy()
    key[0, 0] += 0.1
    one, other = (full.factor_gradient(f, full.mean_counts(RICH)) for f in (factors, factors._replace(key=key)))
    blocks = full.symmetric_factors(RICH, factors_of(field, gradient_of_state(RICH, field, state)[0]))
    np.testing.assert_allclose(one.query, blocks.query, atol=1e-12)
    assert np.abs(other.query - blocks.query).max() > 1e-5


# --- the symbolic side ---


STRUCTURES = [
    PLAIN.structure,
    RICH.structure,
    Structure(("distinct", "null"), "shared", None, False),
    Structure(("distinct",), "per-class", None, False),
    Structure(("common", "distinct"), "shared", None, True),
]


@pytest.mark.parametrize("name", ["FACO", "CAFO", "FAFO"])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_equations_are_closed_and_printed(structure, name):
    flow = derive(structure, name)
    text, latex = str(flow), flow.latex()
    assert text.startswith(f"{name} flow: ")
    assert latex.count("&=") == len(flow.equations)
    known = set(flow.velocity) | {sp.Symbol("K", positive=True), sp.Symbol("R", positive=True)}
    known |= {sp.Symbol("r", nonnegative=True)} | {s for g in flow.reduction.groups for s in (g.types, g.count)}
    for equation in flow.equations:
        left, right = equation.args
        assert right.free_symbols <= known, equation
        known.add(left)
    moving = [eq.args[0].args[0] for eq in flow.equations if isinstance(eq.args[0], sp.Derivative)]
    assert moving == list(flow.velocity)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_conservation_laws_hold_and_are_all_there(structure):
    flow = derive(structure, "FAFO")
    state = list(flow.block_velocity)
    quadratic = 0
    for invariant in flow.conserved:
        drift = sum(sp.diff(invariant.expression, s) * flow.block_velocity[s] for s in state)
        assert sp.simplify(sp.expand(drift)) == 0
        quadratic += "whatever the loss" in invariant.meaning
    widths = [side.circuit.width(part) for part, side in flow.factorized_parts]
    assert quadratic == sum(width * (width + 1) // 2 for width in widths)


def test_a_law_that_is_not_conserved_is_seen():
    flow = derive(PLAIN, "FAFO")
    p, q = sp.symbols("P_S Q_S_d", real=True)
    drift = sp.diff(p**2 + q**2, p) * flow.block_velocity[p] + sp.diff(p**2 + q**2, q) * flow.block_velocity[q]
    assert sp.simplify(drift) != 0


@pytest.mark.parametrize(
    ("query", "background", "standard", "trivial"),
    [
        ("per-class", "common", "1/sqrt(C)", ["1/sqrt(C)", "-sqrt(K/D)"]),
        ("per-class", "null", "1/sqrt(C)", ["1/sqrt(C)"]),
        ("shared", "common", None, ["sqrt(K/C)", "-K/sqrt(D)"]),
        ("shared", "null", None, ["sqrt(K/C)"]),
    ],
)
@pytest.mark.parametrize("name", ["FACO", "CAFO", "FAFO"])
def test_drives_are_the_papers(query, background, standard, trivial, name):
    closed = derive(Structure(("distinct", background), query, None, False), name).closed_form
    assert isinstance(closed, TwoClocks)
    names = {letter: sp.Symbol(letter, positive=True) for letter in "CD"} | {"K": K}
    expected = {}
    if name[0] == "F":
        expected["qk_trivial"] = sp.Matrix([sp.sympify(x, locals=names) for x in trivial])
        if standard is not None:
            expected["qk_standard"] = sp.Matrix([sp.sympify(standard, locals=names)])
    if name[2] == "F":
        expected["ov_standard"] = sp.Matrix([sp.sqrt(names["C"])])
    assert {part.name for part in closed.parts} == expected.keys()
    for part in closed.parts:
        assert sp.simplify(part.drive * part.direction - expected[part.name]) == sp.zeros(*part.direction.shape)
    assert sp.simplify(closed.ratio - sp.Symbol("r", nonnegative=True) * names["C"] * (K - 1) / K) == 0
    assert "tau_k" in closed.latex().replace("\\tau_{k}", "tau_k")


def test_collapsed_circuits_keep_their_closed_form():
    assert isinstance(derive(PLAIN).closed_form, ClosedForm)
    assert derive(RICH, "FAFO").closed_form is None


@pytest.mark.parametrize(
    ("hidden", "words"),
    [
        (0, "at least 1"),
        ({"qk_standard": 1.5}, "whole"),
        ({"ov_standard": 2}, "ov_standard.*FACO"),
        ({"nothing": 2}, "nothing"),
    ],
)
def test_hidden_sizes_are_refused_by_name(hidden, words):
    with pytest.raises(InvalidInput, match=words):
        derive(PLAIN, "FACO", hidden=hidden)
    with pytest.raises(InvalidInput, match="none, as both circuits are collapsed"):
        derive(PLAIN, "CACO", hidden={"qk_standard": 1})


def test_flows_are_cached_by_parameterization_and_hidden_size():
    assert derive(PLAIN, "FAFO") is derive(PLAIN, "FAFO", hidden=1)
    assert derive(PLAIN, "FAFO", hidden=2) is derive(
        PLAIN, "FAFO", hidden={"qk_standard": 2, "qk_trivial": 2, "ov_standard": 2, "ov_trivial": 2}
    )
    assert len({derive(PLAIN, "FAFO"), derive(PLAIN, "FAFO", hidden=2), derive(PLAIN, "FACO"), derive(PLAIN)}) == 4


def derivation(name):
    path = pathlib.Path(__file__).parent.parent / "derivations" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_documents_fail_on_a_wrong_sign_and_a_wrong_constant(monkeypatch):
    flows, clocks = derivation("05_factorized_flow"), derivation("07_two_clocks")
    flows.induced_flow()
    clocks.orbit()
    solved = clocks.solved

    def altered(case, name, hidden=1):
        flow, closed = solved(case, name, hidden)
        return flow, dataclasses.replace(closed, ratio=closed.ratio * sp.Rational(105, 100))

    monkeypatch.setattr(clocks, "solved", altered)
    with pytest.raises(AssertionError):
        clocks.orbit()
    right = symbolic.Factorized.velocity

    def upwards(self, part, gradient, rate):
        velocity = right(self, part, gradient, rate)
        return [*velocity[:-1], -velocity[-1]]

    monkeypatch.setattr(symbolic.Factorized, "velocity", upwards)
    with pytest.raises(AssertionError):
        flows.induced_flow()


def test_the_registry_pairs_both_sides():
    for letter, kind in symbolic.KINDS.items():
        assert isinstance(getattr(circuits, kind.numeric), type)
        assert type(kind.symbolic(())).__name__ == kind.numeric
        assert letter == kind.word[0].upper()
