"""The reduced flow against the autodiff gradient of the full matrices, over random tasks and symmetric states."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowsim.codegen import CompiledField, compile
from flowsim.task import FixedContext, Group, MixtureContext, Task
from flowsim.theory import derive
from tests import full_matrix as full

ROUNDING = 1e-11
FAST = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def tasks(draw) -> Task:
    roles = ["distinct"] * draw(st.integers(1, 2))
    roles += ["common"] * draw(st.integers(0, 2)) + ["null"] * draw(st.integers(0, 2))
    roles = draw(st.permutations(roles))
    groups = [Group(f"group{i}", role, draw(st.integers(1, 4))) for i, role in enumerate(roles)]
    count = st.one_of(st.just(0.0), st.floats(0.2, 9.0), st.integers(1, 40).map(float))
    laws = draw(st.lists(st.lists(count, min_size=len(groups), max_size=len(groups)), min_size=1, max_size=3))
    laws = [law if any(law) else [1.0] * len(law) for law in laws]
    weights = np.array(draw(st.lists(st.floats(0.1, 1.0), min_size=len(laws), max_size=len(laws))))
    return Task(
        classes=draw(st.integers(2, 5)),
        groups=groups,
        context=MixtureContext(list(zip((weights / weights.sum()).tolist(), laws, strict=True))),
        query=draw(st.sampled_from(["per-class", "shared"])),
        attend_query=draw(st.booleans()),
        other_outputs=draw(st.integers(0, 5)),
    )


@st.composite
def problems(draw):
    """A task, its field, a symmetric state, a ratio."""
    task = draw(tasks())
    field = compile(derive(task))
    seed = draw(st.integers(0, 2**31))
    scale = draw(st.sampled_from([0.0, 0.1, 1.0, 4.0]))
    blocks = scale * np.random.default_rng(seed).normal(size=field.n_blocks)
    return task, field, blocks, draw(st.sampled_from([0.0, 1e-3, 1.0, 30.0]))


def velocity_mismatch(task, field, blocks, ratio, gradient=None) -> float:
    """Largest relative difference of the block velocity from the projected gradient of the full matrices."""
    parameters = field.parameters(task, ratio)
    rates = np.where(field.is_qk, ratio, 1.0)
    if gradient is None:
        ours = np.asarray(field(0.0, jnp.asarray(blocks), parameters))
    else:
        ours = -rates * np.array([float(g) for g in gradient(tuple(jnp.asarray(blocks)), 0.0, parameters)])
    gradients = full.full_gradient(*full.symmetric_matrices(task, blocks), full.mean_counts(task))
    reference = -rates * full.project(task, *gradients)
    return _mismatch(ours, reference, field.is_qk, max(1.0, ratio))


def _mismatch(ours, reference, is_qk, rate=1.0) -> float:
    worst = 0.0
    for circuit in (True, False):
        here = np.asarray(is_qk) == circuit
        size = np.abs(reference[here]).max() if here.any() else 0.0
        difference = np.abs(ours[here] - reference[here]).max() if here.any() else 0.0
        # a circuit whose gradient vanishes is compared on the scale of one rounding of the loss, times its rate
        worst = max(worst, difference / max(size, 1e-5 * rate))
    return float(worst)


def check_velocity(problem):
    task, field, blocks, ratio = problem
    assert velocity_mismatch(task, field, blocks, ratio) < ROUNDING


def check_no_asymmetric_gradient(problem):
    task, _, blocks, _ = problem
    gradient = full.full_gradient(*full.symmetric_matrices(task, blocks), full.mean_counts(task))
    symmetric = full.symmetric_matrices(task, full.project(task, *gradient))
    for whole, part in zip(gradient, symmetric, strict=True):
        assert np.abs(whole - part).max() <= 1e-12 * max(np.abs(whole).max(), 1e-3)


def check_reduced(problem):
    task, field, blocks, ratio = problem
    parameters, blocks = field.parameters(task, ratio), jnp.asarray(blocks)
    x = field.to_reduced(blocks, parameters)
    seen = np.asarray(field.to_reduced(field(0.0, blocks, parameters), parameters))
    moved = np.asarray(field.reduced(0.0, x, parameters))
    scores = [name.startswith("theta") for name in field.reduced_names]
    assert _mismatch(moved, seen, scores) < ROUNDING


def check_recovered(problem):
    task, field, blocks, ratio = problem
    parameters, start = field.parameters(task, ratio), jnp.asarray(blocks)
    x0 = field.to_reduced(start, parameters)
    blocks, x = start, x0
    for _ in range(3):  # Euler steps are linear in the velocity, so block and reduced paths stay tied exactly
        blocks = blocks + 0.3 * field(0.0, blocks, parameters)
        x = x + 0.3 * field.reduced(0.0, x, parameters)
    recovered = field.from_reduced(x, x0, start, parameters)
    np.testing.assert_allclose(recovered, blocks, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(field.to_reduced(recovered, parameters), x, rtol=1e-11, atol=1e-11)


def check_observables(problem):
    task, field, blocks, ratio = problem
    parameters = field.parameters(task, ratio)
    seen = field.observables(field.to_reduced(jnp.asarray(blocks), parameters), parameters)
    w_qk, w_ov = full.symmetric_matrices(task, blocks)
    index = full.token_index(task)
    attentions, error, loss = np.zeros(len(index)), 0.0, 0.0
    for probability, counts in task.compositions:  # every class gives the same; take class 0
        appearances, zeros = np.zeros(w_qk.shape[0]), 0.0
        for count, tokens in zip(counts, index, strict=True):
            if tokens is None:
                zeros += count
            else:
                appearances[tokens[0]] += count / tokens.shape[1]
        attention = np.asarray(full.attend(w_qk[:, 0], appearances, zeros))
        logits = w_ov @ attention
        wrong = np.exp(np.delete(logits, 0) - logits[0]).sum()
        error, loss = error + probability * wrong / (1 + wrong), loss + probability * np.log1p(wrong)
        masses = np.array([0.0 if tokens is None else attention[tokens].sum() for tokens in index])
        nulls = np.array([count if tokens is None else 0.0 for count, tokens in zip(counts, index, strict=True)])
        masses += (1 - masses.sum()) * nulls / max(nulls.sum(), 1e-300)
        attentions += probability * masses

    roles = [group.role for group in task.all_groups]
    background = [i for i, group in enumerate(task.groups) if group.role != "distinct"]
    reference = next((roles.index(role) for role in ("null", "common") if role in roles), len(roles) - 1)
    scores = np.array([0.0 if tokens is None else w_qk[tokens[0, 0], 0] for tokens in index])
    distinct = [t for t, role in zip(index, roles, strict=True) if t is not None and role == "distinct"]
    margins = [w_ov[0, t[0, 0]] - w_ov[1, t[0, 0]] for t in distinct]
    first = roles.index("distinct")
    near = {"rtol": 1e-10, "atol": 1e-10}
    np.testing.assert_allclose(seen.margins, margins, **near)
    np.testing.assert_allclose(seen.margin, margins[0], **near)
    np.testing.assert_allclose(seen.scores, scores - scores[reference], **near)
    gap = scores[first] - scores[background[0] if background else reference]
    np.testing.assert_allclose(seen.score_gap, gap, **near)
    np.testing.assert_allclose(np.exp(seen.log_error), error, **near)
    np.testing.assert_allclose(np.exp(seen.log_loss), loss, **near)
    np.testing.assert_allclose(np.exp(seen.log_attentions), attentions, **near)
    np.testing.assert_allclose(1 / (1 + np.exp(-seen.log_odds)), attentions[first], **near)


CHECKS = [check_velocity, check_no_asymmetric_gradient, check_reduced, check_recovered, check_observables]


@given(problems())
@FAST
def test_reduction_is_exact(problem):
    for check in CHECKS:
        check(problem)


@pytest.mark.slow
@given(problems())
@MANY
def test_reduction_is_exact_over_many_tasks(problem):
    for check in CHECKS:
        check(problem)


PLAIN = Task(classes=4, distinct=10, common=10, context=FixedContext(distinct=32, common=31))
FIXED = Task(
    classes=3,
    groups=[Group("a", "distinct", 2), Group("b", "distinct", 3), Group("c", "common", 4), Group("n", "null")],
    context=MixtureContext([(0.3, (3.0, 0.0, 2.0, 1.0)), (0.7, (1.0, 2.5, 4.0, 2.0))]),
    attend_query=True,
    other_outputs=3,
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("m_d1_c_other*(w_d1)", "m_d1_c_other*(-w_d1)"),  # a changed sign
        ("c0 = K - 1", "c0 = K"),  # a wrong multiplicity
        ("theta_d1 + log(m_1)", "theta_d1 + log(m_2)"),  # a wrong weight
        ("(-w_d1, -w_d2, 0.0, 0.0, -w_q)", "(-w_d1, -w_d2, 0.0, 0.0, 0.0)"),  # the query's own value forgotten
        ("errors((K - 1, R)", "errors((K - 1, R - 1)"),  # one output too few
    ],
)
def test_planted_errors_are_seen(old, new):
    field = compile(derive(FIXED))
    blocks = np.random.default_rng(0).normal(size=field.n_blocks)
    assert velocity_mismatch(FIXED, field, blocks, 2.0) < ROUNDING
    assert velocity_mismatch(FIXED, field, blocks, 2.0, planted(field, old, new)) > 1e-4


def planted(field: CompiledField, old: str, new: str):
    """The gradient function with one piece of its source replaced."""
    from flowsim import codegen

    source = codegen._source(field.flow, "gradient")
    assert source.count(old) == 1
    namespace = dict(codegen._NAMESPACE)
    exec(source.replace(old, new), namespace)
    return namespace["gradient"]


def test_asymmetric_gradient_is_seen():
    """The symmetry check itself: a state off the symmetric line has a gradient off it."""
    w_qk, w_ov = full.symmetric_matrices(FIXED, np.ones(compile(derive(FIXED)).n_blocks))
    w_qk[0, 0] += 0.1
    gradient = full.full_gradient(w_qk, w_ov, full.mean_counts(FIXED))
    symmetric = full.symmetric_matrices(FIXED, full.project(FIXED, *gradient))
    assert np.abs(gradient[0] - symmetric[0]).max() > 1e-6 * np.abs(gradient[0]).max()


@pytest.mark.parametrize("query", ["per-class", "shared"])
@pytest.mark.parametrize("other_outputs", [0, 2])
def test_random_identities_have_the_same_gradient_on_the_symmetric_line(query, other_outputs):
    groups = [Group("a", "distinct", 2), Group("c", "common", 2), Group("n", "null")]
    context = MixtureContext([(0.4, (2, 1, 1)), (0.6, (1, 2, 0))])
    task = Task(classes=3, groups=groups, context=context, query=query, other_outputs=other_outputs)
    blocks = np.random.default_rng(1).normal(size=compile(derive(task)).n_blocks)
    matrices = full.symmetric_matrices(task, blocks)
    means, identities = full.mean_counts(task), full.random_identities(task)
    of_means, of_identities = (full.project(task, *full.full_gradient(*matrices, s)) for s in (means, identities))
    np.testing.assert_allclose(of_identities, of_means, rtol=1e-12, atol=1e-14)
    matrices[0][0, 0] += 0.5  # off the line the two populations differ
    assert abs(full.full_loss(*matrices, means) - full.full_loss(*matrices, identities)) > 1e-6


@pytest.mark.parametrize("task", [PLAIN, FIXED])
def test_no_other_linear_combination_of_the_blocks_is_conserved(task):
    """Velocities at random states span everything that the listed invariants leave free."""
    field = compile(derive(task))
    states = jnp.asarray(np.random.default_rng(4).normal(size=(80, field.n_blocks)))
    parameters = field.parameters(task, 1.0)
    velocities = np.asarray(jax.jit(jax.vmap(lambda blocks: field(0.0, blocks, parameters)))(states))
    singular = np.linalg.svd(velocities / np.abs(velocities).max(), compute_uv=False)
    linear = [c for c in derive(task).conserved if "orbit" not in c.meaning]
    assert (singular > 1e-12).sum() == field.n_blocks - len(linear)


def test_projection_inverts_construction():
    blocks = np.random.default_rng(2).normal(size=compile(derive(FIXED)).n_blocks)
    np.testing.assert_allclose(full.project(FIXED, *full.symmetric_matrices(FIXED, blocks)), blocks, atol=1e-13)


def test_a_group_without_positions_does_not_move():
    task = Task(classes=3, distinct=2, common=2, null=True, context=FixedContext(distinct=3, common=0, null=2))
    field = compile(derive(task))
    blocks = np.random.default_rng(3).normal(size=field.n_blocks)
    velocity = dict(zip(field.block_names, field(0.0, jnp.asarray(blocks), field.parameters(task, 1.0)), strict=True))
    assert velocity["t_c"] == 0
    assert velocity_mismatch(task, field, blocks, 1.0) < ROUNDING
