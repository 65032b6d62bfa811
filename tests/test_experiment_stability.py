"""Stability: directions by character theory, linearization by finite differences of SciPy, moments by enumeration."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.integrate import solve_ivp

import flowsim as fs
from flowsim import data
from flowsim.experiments import StabilitySettings, stability
from flowsim.experiments._stability import directions, linearized, noisy_starts, reading
from flowsim.experiments._stability.moments import second_moments
from flowsim.isotypic import asymmetries
from flowsim.symmetric import Layout, Matrices
from tests import full_matrix as full

TASK = fs.Task(classes=3, distinct=2, common=3, context=fs.FixedContext(distinct=3, common=2))
LAYOUT = Layout.of(TASK)
PAPER = Layout.of(fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31)))
N_QK = LAYOUT.tokens * LAYOUT.queries
parts_of = jax.jit(asymmetries, static_argnums=0)
SMALL = StabilitySettings(
    classes=3,
    distinct=3,
    common=3,
    distinct_count=6,
    common_count=5,
    parameterizations=("CACO",),
    ratios=(2.0,),
    check_ratio=2.0,
    points=25,
    last_time=200.0,
    check_times=(1.0, 30.0),
    check_lr=0.1,
    scales=(0.03, 0.3),
    seeds=8,
    tolerance_time=60.0,
)


def _matrices(flat: np.ndarray) -> Matrices:
    return Matrices(flat[:N_QK].reshape(LAYOUT.tokens, -1), flat[N_QK:].reshape(LAYOUT.outputs, -1))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("layout", [LAYOUT, PAPER], ids=["small", "paper"])
@pytest.mark.parametrize("widths", [(None, None), (None, 9), (7, 9)])
def test_types_make_up_the_whole_space(layout, widths):
    kinds = directions.kinds(layout, *widths)
    vectors, _ = linearized.stacked(kinds)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(vectors)), atol=1e-14)
    assert len({kind.name for kind in kinds}) == len(kinds)
    dimensions = [kind.dimension * len(kind.vectors) for kind in kinds]
    assert sum(dimensions) == vectors.shape[1]
    assert sum(dimensions[:-1]) != vectors.shape[1]


def test_directions_lie_in_the_isotypic_parts_of_their_names():
    for kind in directions.kinds(LAYOUT):
        for vector in kind.vectors:
            found = {name: float(value) for name, value in parts_of(LAYOUT, _matrices(vector)).items()}
            for name, value in found.items():
                assert value == pytest.approx(float(name == kind.name.partition("_cyclic")[0]), abs=1e-12)


def _jacobian(sequences: full.Sequences, flat: np.ndarray) -> np.ndarray:
    """Second derivative of the enumerated population's loss, from the written-out reference."""

    def loss(x):
        qk, ov = (jnp.asarray(part) for part in _matrices(x))
        tokens, outputs = sequences.appearances.shape[1], len(sequences.possible)
        qk = jnp.pad(qk, ((0, tokens - qk.shape[0]), (0, -qk.shape[1] % 8)))
        return full.loss(qk, jnp.pad(ov, ((0, outputs - ov.shape[0]), (0, tokens - ov.shape[1]))), sequences)

    return np.asarray(jax.jit(jax.hessian(loss))(jnp.asarray(flat)))


def test_second_moments_linearize_as_the_enumerated_population():
    blocks = np.random.default_rng(3).normal(size=6)
    flat = np.concatenate([matrix.ravel() for matrix in full.symmetric_matrices(TASK, blocks)])
    start = linearized.symmetric_start(TASK, "CACO", None, None)
    _, unravel = ravel_pytree(start)

    @functools.partial(jax.jit)
    def hessian(batch):
        move = lambda x: -ravel_pytree(linearized.velocity(unravel(x), batch, jnp.ones(())))[0]  # noqa: E731
        return jax.jacfwd(move)(jnp.asarray(flat))

    expected = _jacobian(full.random_identities(TASK), flat)
    sampled = second_moments(TASK)
    assert float(sampled.weights.sum()) == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_allclose(hessian(sampled), expected, atol=1e-12 * np.abs(expected).max())
    mean = hessian(data.population(TASK))  # which differ off the symmetric line
    assert np.abs(mean - expected).max() > 1e-2 * np.abs(expected).max()
    few = fs.Task(classes=3, distinct=2, common=3, context=fs.FixedContext(distinct=1, common=2))
    with pytest.raises(fs.InvalidInput, match="too few"):
        second_moments(few)


@pytest.mark.slow
def test_linearized_flow_against_differences_of_scipy_solutions():
    """Central differences of two DOP853 solutions of the full-matrix flow, by autodiff of the written-out loss."""
    ratio, times = 3.0, np.array([1.0, 10.0, 40.0])
    sequences = full.mean_counts(TASK)
    rates = np.concatenate([np.full(N_QK, ratio), np.ones(LAYOUT.outputs * LAYOUT.tokens)])

    def field(_, flat):
        qk, ov = full.full_gradient(*_matrices(flat), sequences)
        return -rates * np.concatenate([qk.ravel(), ov.ravel()])

    kinds = directions.kinds(LAYOUT)
    vectors, parts = linearized.stacked(kinds)
    start = linearized.symmetric_start(TASK, "CACO", None, None)
    arguments = (data.population(TASK), jnp.asarray(vectors), jnp.asarray([ratio]), jnp.asarray(times))
    arguments = (*arguments, linearized.type_numbers(kinds))
    found = linearized.propagate(start, *arguments)
    epsilon = 1e-4
    for kind, part in zip(kinds, parts, strict=True):
        if kind.name not in ("class", "distinct", "query_code"):
            continue
        mixed = np.ones(len(kind.vectors)) / np.sqrt(len(kind.vectors))
        ends = [
            solve_ivp(field, (0, 40), sign * epsilon * mixed @ kind.vectors, "DOP853", times, rtol=1e-11, atol=1e-13).y
            for sign in (1, -1)
        ]
        expected = (ends[0] - ends[1]).T / (2 * epsilon)
        moved = np.einsum("tdn,d->tn", np.asarray(found.moved[0])[:, part], mixed)
        # the differences are off by (epsilon x growth)^2
        size = np.linalg.norm(expected, axis=1)
        error = np.linalg.norm(moved - expected, axis=1) / size
        assert np.all(error < 10 * (epsilon * size) ** 2 + 1e-7)
    assert float(found.leakage.max()) < 1e-12
    flow = fs.integrate(TASK, ratio=ratio, times=times)
    base = np.asarray(found.matrices[0])
    margins = base[:, N_QK] - base[:, N_QK + LAYOUT.tokens]  # the first token's logits of its own and another label
    np.testing.assert_allclose(margins, flow.margin, rtol=1e-6)


@pytest.fixture(scope="module")
def dataset():
    return stability(SMALL)


def test_training_grows_perturbations_as_predicted_and_planted_errors_are_seen(dataset):
    here = dataset.sel(parameterization="CACO")
    errors = reading.slope_errors(here)
    assert {"class", "distinct", "query_code"} <= set(errors.type.values)
    assert float(errors.error.max()) < 0.05
    assert float(errors["size"].max()) < 1e-3
    assert float(errors.step.max()) > 1e-5  # the step is felt
    assert float(dataset.leakage.max()) < 1e-12
    assert dataset.base_growth.isnull().all()  # a start at zero has no size to compare with
    verdicts = {finding.claim: finding.verdict for finding in reading.findings(dataset)}
    claim = "small perturbations of CACO grow in training as linearized"
    assert verdicts[claim] == verdicts["the linearized flow keeps isotypic types apart"] == "agrees"
    slower = dataset.assign(predicted=0.9 * dataset.predicted, leakage=dataset.leakage + 1e-3)
    planted = {finding.claim: finding.verdict for finding in reading.findings(slower)}
    assert planted[claim] == planted["the linearized flow keeps isotypic types apart"] == "differs"


def test_larger_random_starts_are_farther_off(dataset):
    for name in ("deviation_attention", "deviation_margin"):
        median = dataset[name].sel(parameterization="CACO").median("seed")
        assert np.all(np.diff(median.values, axis=-1) >= 0)
        assert float(median[1, -1]) > 3 * float(median[0, -1])


def test_figure(dataset):
    figure = fs.plot.transverse_stability(dataset)
    assert len(figure.axes) == 3
    with pytest.raises(fs.InvalidInput, match="log_growth"):
        fs.plot.transverse_stability(dataset[["leakage"]])


def test_tolerated_scale_is_interpolated_in_logarithms():
    scales = np.array([0.01, 0.1, 1.0])
    deviation = np.repeat((scales**2)[:, None, None], 3, axis=1) * np.array([0.5, 1.0, 200.0, 1e6])
    found = noisy_starts.tolerated(scales, deviation, 0.25)
    np.testing.assert_allclose(found, [np.sqrt(0.5), 0.5, np.sqrt(0.25 / 200), 0.0], rtol=1e-12)
    assert noisy_starts.tolerated(scales, 0 * deviation, 0.25)[0] == np.inf
    lost = deviation.copy()
    lost[2] = np.inf  # diverged: no logarithm to interpolate, but the smaller scale is fine
    assert noisy_starts.tolerated(scales, lost, 0.25)[0] == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"check_ratio": 3.0}, "check_ratio=3"),
        ({"classes": 1}, "classes"),
        ({"scales": (0.3, 0.1)}, "scales"),
        ({"check_times": (30.0, 1e6)}, "check_times"),
        ({"check_lr": 2.0}, "check_lr"),
        ({"allowed": 0.0}, "allowed"),
        ({"parameterizations": ("CACA",)}, "CACA"),
    ],
)
def test_refusals(change, fragment):
    with pytest.raises(fs.InvalidInput, match=fragment):
        StabilitySettings(**change)
