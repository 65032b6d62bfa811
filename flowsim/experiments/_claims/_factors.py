"""What factors do to gradient flow: gradient identities, conservation, preconditioning (Proposition 1, Lemmas 1 and 2).

Everything is measured on full random matrices, by automatic differentiation of the model's cross-entropy.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.balancedness import balanced_factors, preconditioner
from flowsim.data import Batch, population
from flowsim.experiments._claims._flow import WHERE
from flowsim.experiments._experiment import Finding
from flowsim.models import AttentionModel, CollapsedCircuit, loss
from flowsim.symmetric import Layout
from flowsim.task import Task
from flowsim.training import RandomStart, train

STARTS = ("balanced", "lambda-balanced", "random")
IMBALANCE = 0.5
"""Imbalance of the lambda-balanced factors."""
_SCALE = 0.3  # standard deviation of the entries of the random matrices and factors
_TIME = 20.0  # gradient-flow time at which drifts are compared
_EXACT = 1e-10  # rounding of random matrices of this size
_PARALLEL = 0.95  # cosine from which on directions are close
_ORDER = 0.15  # of a drift that is proportional to the learning rate


def measure(task: Task, seeds: int, lrs: tuple[float, ...]) -> xr.Dataset:
    """Errors of the identities, over seeds and circuits, and the drift of training.

    Args:
        task: the task.
        seeds: number of random matrices.
        lrs: learning rates of the training that shows the drift.
    """
    found = {"qk": _circuit(task, "qk", seeds), "ov": _circuit(task, "ov", seeds)}
    names = next(iter(found.values()))
    dims = {"preconditioner_error": ("circuit", "factors", "seed")}
    arrays: dict[str, Any] = {
        name: (dims.get(name, ("circuit", "seed")), np.stack([f[name] for f in found.values()])) for name in names
    }
    steps = round(2 * _TIME / min(lrs))
    run = train(
        task, "FAFO", ratio=1.0, lr=list(lrs), steps=steps, points=200, start=RandomStart(_SCALE), progress=False
    )
    drifts = [
        np.exp(np.interp(np.log(_TIME), at, np.log(drift)))
        for name in ("drift_qk", "drift_ov")
        for at, drift in zip(np.asarray(run.log_time), np.asarray(run.extra[name]), strict=True)
    ]
    arrays["drift"] = ("circuit", "lr"), np.reshape(drifts, (2, len(lrs)))
    return xr.Dataset(arrays, {"circuit": list(found), "factors": list(STARTS), "lr": list(lrs)})


def _circuit(task: Task, name: str, seeds: int) -> dict[str, np.ndarray]:
    layout = Layout.of(task)
    sides = (layout.tokens, layout.queries) if name == "qk" else (layout.outputs, layout.tokens)
    keys = jax.random.split(jax.random.key(0 if name == "qk" else 1), seeds)
    with jax.default_matmul_precision("highest"):
        found = _measured(name, layout, sides, population(task), keys)
    return {what: np.moveaxis(np.asarray(values), 0, -1) for what, values in found.items()}


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _measured(name: str, layout: Layout, sides: tuple[int, int], batch: Batch, keys: Array) -> dict[str, Array]:
    hidden = min(sides)

    def one(key: Array) -> dict[str, Array]:
        at, left, right = jax.random.split(key, 3)
        other_sides = (layout.outputs, layout.tokens) if name == "qk" else (layout.tokens, layout.queries)
        other = _SCALE * jax.random.normal(at, other_sides)

        def of_matrix(matrix: Array) -> Array:
            qk, ov = (matrix, other) if name == "qk" else (other, matrix)
            return loss(AttentionModel(CollapsedCircuit(qk), CollapsedCircuit(ov)), batch)

        def of_factors(left: Array, right: Array) -> Array:
            return of_matrix(left @ right)

        p = _SCALE * jax.random.normal(left, (sides[0], hidden))
        q = _SCALE * jax.random.normal(right, (hidden, sides[1]))
        matrix = p @ q
        gradient = jax.grad(of_matrix)(matrix)
        by_left, by_right = jax.grad(of_factors, (0, 1))(p, q)
        identity = jnp.maximum(_distance(by_left, gradient @ q.T), _distance(by_right, p.T @ gradient))
        sign = 1 if hidden == sides[0] else -1  # the imbalance that factors of this width can have
        pairs = [
            balanced_factors(matrix, 0.0, hidden=hidden),
            balanced_factors(matrix, sign * IMBALANCE, hidden=hidden),
            (p, q),
        ]
        operators = [preconditioner(matrix, lam, hidden=hidden) for lam in (0.0, sign * IMBALANCE, 0.0)]
        errors = []
        for (a, b), operator in zip(pairs, operators, strict=True):
            slopes = jax.grad(of_factors, (0, 1))(a, b)
            errors.append(_distance(slopes[0] @ b + a @ slopes[1], operator.apply(gradient)))
        moved = operators[0].apply(gradient)
        degree = jnp.log2(_norm(preconditioner(2 * matrix, 0.0, hidden=hidden).apply(gradient)) / _norm(moved))
        skewed = preconditioner(2 * matrix, sign * IMBALANCE, hidden=hidden).apply(gradient)
        return {
            "identity_error": identity,
            "preconditioner_error": jnp.stack(errors),
            "degree": degree,
            "degree_imbalanced": jnp.log2(_norm(skewed) / _norm(operators[1].apply(gradient))),
            "cosine": jnp.sum(moved * gradient) / (_norm(moved) * _norm(gradient)),
        }

    return jax.vmap(one)(keys)


def _norm(matrix: Float[Array, "rows columns"]) -> Float[Array, ""]:
    return jnp.sqrt(jnp.sum(matrix**2))


def _distance(found: Array, expected: Array) -> Float[Array, ""]:
    """Frobenius distance, relative."""
    return _norm(found - expected) / _norm(expected)


def findings(dataset: xr.Dataset) -> list[Finding]:
    """The rows on factors."""
    return [_identities(dataset), *_conservation(dataset), *_preconditioning(dataset), *_homogeneity(dataset)]


def _identities(dataset: xr.Dataset) -> Finding:
    worst = float(dataset["identity_error"].max())
    return Finding(
        "gradients of the factors are the collapsed gradient times the other factor (Proposition 1)",
        WHERE,
        f"automatic differentiation at {dataset.sizes['seed']} random points, both circuits: relative distance at most "
        f"{worst:.1e}",
        "agrees" if worst < _EXACT else "differs",
        worst,
    )


def _conservation(dataset: xr.Dataset) -> list[Finding]:
    drift, lr = dataset["drift"].max("circuit"), dataset["lr"].values
    order = float(np.polyfit(np.log(lr), np.log(drift.values), 1)[0])
    vanishes = abs(order - 1) < _ORDER
    return [
        Finding(
            "gradient flow conserves W_O^T W_O - W_V W_V^T and W_K^T W_K - W_Q^T W_Q (Lemma 1)",
            WHERE,
            f"in training from random factors to t = {_TIME:g} they move by {drift.values.max():.2g} of the factors' "
            f"squared size with lr = {lr.max():g}, and as lr^{order:.3f}: by nothing in the limit",
            "agrees" if vanishes else "differs",
            order,
        ),
        Finding(
            "finite steps conserve what the flow conserves",
            "",
            f"only up to the order of the step: {drift.values.min():.2g} at lr = {lr.min():g}",
            "not stated there" if vanishes and drift.values.min() > _EXACT else "undecided",
            float(drift.values.min()),
        ),
    ]


def _preconditioning(dataset: xr.Dataset) -> list[Finding]:
    error = dataset["preconditioner_error"].max(["circuit", "seed"])
    balanced, imbalanced = (float(error.sel(factors=name)) for name in STARTS[:2])
    random = float(dataset["preconditioner_error"].sel(factors="random").min())
    return [
        Finding(
            "balanced factors move the product by a preconditioned gradient of the product alone (Lemma 2)",
            WHERE,
            f"relative distance at most {balanced:.1e} on both circuits",
            "agrees" if balanced < _EXACT else "differs",
            balanced,
        ),
        Finding(
            "balancedness is needed for Lemma 2",
            WHERE,
            f"factors drawn at random are off by {random:.2g} at least; with the imbalance known, the operator of "
            f"lambda-balanced factors is off by {imbalanced:.1e}",
            "agrees" if random > 1e-3 and imbalanced < _EXACT else "differs",
            random,
        ),
    ]


def _homogeneity(dataset: xr.Dataset) -> list[Finding]:
    degree = dataset["degree"].values
    skewed = dataset["degree_imbalanced"]
    off = float(np.abs(degree - 1).max())
    cosine = dataset["cosine"].median("seed")
    least = float(cosine.min())
    return [
        Finding(
            "the preconditioner is a homogeneous map of the product (Lemma 2)",
            WHERE,
            f"of degree 1 within {off:.1e} for balanced factors; with an imbalance of {IMBALANCE:g} the degree is "
            f"{float(skewed.min()):.2g} to {float(skewed.max()):.2g}",
            "agrees" if off < _EXACT else "differs",
            float(degree.mean()),
        ),
        Finding(
            "factorization is close to collapsed training with some learning rate, for matrices of any kind",
            WHERE,
            "homogeneity says how fast the product moves, not where to: the cosine between preconditioned and plain "
            f"gradient of random balanced factors is {float(cosine.sel(circuit='qk')):.2f} (query-key) and "
            f"{float(cosine.sel(circuit='ov')):.2f} (output-value; {_PARALLEL:g} counts "
            "as close)",
            "agrees" if least > _PARALLEL else "differs",
            least,
        ),
    ]
