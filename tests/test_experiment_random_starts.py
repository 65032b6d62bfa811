"""Random starts: the Gram flow by autodiff of the factors, averages by enumerating the group, and planted errors."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xarray as xr

import flowsim as fs
from flowsim import data
from flowsim.experiments import RandomStartsSettings, random_starts
from flowsim.experiments._random_starts import VARIANTS, gram, reading, tokens_alike
from flowsim.experiments._stability.linearized import symmetric_start, velocity
from flowsim.experiments._symmetrized import symmetrized, train_each
from flowsim.isotypic import asymmetries
from flowsim.models import Circuits, FactorizedCircuit
from flowsim.symmetric import Layout, Matrices

TASK = fs.Task(classes=3, distinct=2, common=2, context=fs.FixedContext(distinct=3, common=2))
LAYOUT = Layout.of(TASK)
SMALL = RandomStartsSettings(
    classes=3,
    distinct=2,
    common=2,
    distinct_count=3,
    common_count=2,
    scales=(0.03, 0.3),
    widths=(5,),
    seeds=6,
    time=60.0,
    points=20,
    linear_seeds=2,
)


def _random(seed: int, hidden: int = 5) -> Circuits:
    rng = np.random.default_rng(seed)

    def circuit(rows: int, columns: int) -> FactorizedCircuit:
        left, right = rng.normal(size=(rows, hidden)), rng.normal(size=(hidden, columns))
        return FactorizedCircuit(jnp.asarray(0.3 * left), jnp.asarray(0.3 * right))

    return Circuits(circuit(LAYOUT.tokens, LAYOUT.queries), circuit(LAYOUT.outputs, LAYOUT.tokens))


def _stack(circuits: list[Circuits]) -> Circuits:
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *circuits)


def _first(circuits: Circuits) -> Circuits:
    return jax.tree.map(lambda array: array[0], circuits)


def _group():
    """All permutations of the symmetry group: of tokens, and of queries or outputs."""
    k, c, d = 3, 2, 2
    for classes in itertools.permutations(range(k)):
        for types in itertools.product(itertools.permutations(range(c)), repeat=k):
            for common in itertools.permutations(range(d)):
                tokens = [c * owner + kind for owner, order in zip(classes, types, strict=True) for kind in order]
                yield np.array([*tokens, *(k * c + np.array(common))]), np.array(classes)


def test_symmetrized_factors_have_the_averages_over_the_group():
    circuits = _random(0)
    lifted = gram.grams(_first(symmetrized(LAYOUT, _stack([circuits]))))
    n, m = LAYOUT.tokens, LAYOUT.queries
    # what tells tokens of a group apart is left out of the lifted factors: the symmetric gradient never meets it
    alike = np.kron(np.eye(4), np.full((2, 2), 0.5))
    for i, (found, mine) in enumerate(zip(lifted, gram.grams(circuits), strict=True)):
        average = np.zeros((n + m, n + m))
        orders = [
            np.concatenate([tokens, n + classes] if i == 0 else [classes, m + tokens]) for tokens, classes in _group()
        ]
        for order in orders:
            average += np.asarray(mine)[np.ix_(order, order)] / len(orders)
        project = np.eye(n + m)
        at = slice(0, n) if i == 0 else slice(m, None)
        project[at, at] = alike
        np.testing.assert_allclose(found, project @ average @ project, atol=1e-13)
        assert np.abs(found - np.asarray(mine)).max() > 0.01


def test_gram_flow_is_what_the_gradient_of_the_factors_does():
    circuits, batch, ratio = _random(1), data.population(TASK), jnp.asarray(2.5)
    _, expected = jax.jvp(gram.grams, (circuits,), (velocity(circuits, batch, ratio),))
    found = gram.velocity(LAYOUT, gram.grams(circuits), batch, ratio)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-14)


@pytest.mark.slow
def test_reduction_of_a_symmetric_start_is_reduced_descent():
    start = symmetric_start(TASK, "FAFO", 4, 4)
    run = train_each(TASK, "FAFO", symmetrized(LAYOUT, _stack([start])), 2, ratio=2.0, lr=0.2, steps=300, points=10)
    expected = fs.descend(TASK, "FAFO", ratio=2.0, lr=0.2, steps=300, points=10)
    np.testing.assert_allclose(run.margin[0], expected.margin, rtol=1e-10)
    np.testing.assert_allclose(run.attention[0], expected.attention, rtol=1e-10)
    assert run.extra["asymmetry"].max() < 1e-12


def test_making_tokens_alike_removes_their_types_and_no_other():
    circuits = _stack([_random(2)])
    before = asymmetries(LAYOUT, _matrices(_first(circuits)))
    for roles, gone in (
        (("common",), {"common", "query_code"}),
        (("distinct",), {"distinct", "distinct_label"}),
        ((), set()),
    ):
        after = asymmetries(LAYOUT, _matrices(_first(tokens_alike(LAYOUT, circuits, roles))))
        assert {name for name, value in after.items() if float(value) < 1e-12} == gone
    assert min(map(float, before.values())) > 0.01


def _matrices(circuits: Circuits) -> Matrices:
    return Matrices(circuits.qk.matrix(), circuits.ov.matrix())


def test_linearized_flow_predicts_small_deviations_in_training():
    base = symmetric_start(TASK, "FAFO", 5, 5)
    noisy = jax.tree.map(lambda a, b: a + 1e-4 * b, base, _random(3))
    starts = _stack([noisy])
    lr, steps = 0.05, 400
    run = train_each(TASK, "FAFO", starts, 2, ratio=2.0, lr=lr, steps=steps, points=8)
    predicted = gram.linearized(
        LAYOUT,
        gram.grams(symmetrized(LAYOUT, starts)),
        gram.grams(starts),
        data.population(TASK),
        jnp.asarray(2.0),
        jnp.asarray(run.time),
    )
    for name, values in predicted.items():
        measured = run.extra[f"asymmetry_{name}"] * run.extra["size"]
        np.testing.assert_allclose(measured, values, rtol=0.03)  # the step is 0.05


@pytest.fixture(scope="module")
def dataset():
    return random_starts(SMALL)


def _made(attention: float, alike: float = 0.0) -> xr.Dataset:
    """Arrays in which runs as drawn have that much attention too much, and those with tokens alike a part of it."""
    time, seeds = np.array([1.0, 10.0, 100.0]), 4
    off = np.array([attention, attention, alike, alike])[:, None, None] * np.array([0.0, 0.5, 1.0])
    shape = (1, 1, 4, seeds, 3)
    reduction = np.full((1, 1, seeds, 3), 0.5)
    norms = np.broadcast_to(np.array([1.0, 2.0, 8.0]), (1, 1, 6, seeds, 3))
    axes = ("width", "scale", "seed", "time")
    return xr.Dataset(
        {
            "attention": ((*axes[:2], "variant", *axes[2:]), np.broadcast_to(0.5 * (1 + off), shape)),
            "margin": ((*axes[:2], "variant", *axes[2:]), np.full(shape, 2.0)),
            "attention_reduction": (axes, reduction),
            "margin_reduction": (axes, 4 * reduction),
            "size": (axes, 20 * reduction),
            "asymmetry": ((*axes[:2], "type", *axes[2:]), norms),
            "asymmetry_linear": ((*axes[:2], "type", "linear_seed", "time"), norms[:, :, :, :2]),
        },
        {"width": [4], "scale": [0.1], "variant": list(VARIANTS), "type": list(reading.NAMES), "time": time},
        {"allowed": 0.1},
    )


def test_findings_name_the_part_that_was_planted():
    assert reading.findings(_made(0.05))[0].verdict == "agrees"
    for alike, cause in ((0.29, "Class asymmetry"), (0.01, "Asymmetry of distinct tokens")):
        leaves, why, _ = reading.findings(_made(0.3, alike))
        assert leaves.verdict == "differs"
        assert leaves.value == 10.0
        assert why.found.startswith(cause)
        assert "grown by a factor of 2 since the start, 2 in" in why.found
    less = _made(0.3).isel(variant=[0, 2, 1, 3]).assign_coords(variant=list(VARIANTS))
    assert reading.findings(less)[1].found.startswith("Asymmetry of common tokens")


@pytest.mark.slow
def test_findings_follow_the_arrays(dataset):
    exact = dataset.copy()
    for name in ("attention", "margin"):
        exact[name] = (dataset[f"{name}_reduction"] * (1 + 0 * dataset[name])).transpose(*dataset[name].dims)
    kept = [finding for finding in reading.findings(exact) if "follows" in finding.claim]
    assert {finding.verdict for finding in kept} == {"agrees"}
    off = exact.assign(attention=1.2 * exact.attention)  # planted: 20 % of attention too much
    planted = [finding for finding in reading.findings(off) if "follows" in finding.claim]
    assert {finding.verdict for finding in planted} == {"differs"}
    assert float(dataset.asymmetry.sel(scale=0.3).median()) > float(dataset.asymmetry.sel(scale=0.03).median())
    # the reduction is read from the start of each seed
    first = dataset.isel(time=0).sel(variant="as drawn")
    np.testing.assert_allclose(first.attention, first.attention_reduction, rtol=0.1)


def test_figure():
    dataset = _made(0.2, 0.1)
    figure = fs.plot.random_starts(dataset)
    assert len(figure.axes) == 4
    with pytest.raises(fs.InvalidInput, match="scale"):
        fs.plot.random_starts(dataset, scale=0.2)
    with pytest.raises(fs.InvalidInput, match="asymmetry_linear"):
        fs.plot.random_starts(dataset[["size"]])


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"widths": (8, 4)}, "widths"),
        ({"scales": ()}, "scales"),
        ({"kind": "cauchy"}, "kind"),
        ({"linear_seeds": 65}, "linear_seeds"),
        ({"time": 0.1}, "time"),
        ({"seeds": 1}, "seeds"),
    ],
)
def test_refusals(change, fragment):
    with pytest.raises(fs.InvalidInput, match=fragment):
        RandomStartsSettings(**change)
