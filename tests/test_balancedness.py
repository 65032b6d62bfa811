"""The induced flow of the product against the factors themselves: mpmath, finite differences, a whole trajectory."""

import itertools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import flowsim as fs

SHAPES = [(3, 3), (4, 2), (2, 3), (3, 1), (1, 1)]


def matrix(shape, rank, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(shape[0], rank)) @ rng.normal(size=(rank, shape[1]))


def cases():
    for shape in SHAPES:
        for rank in range(min(shape) + 1):
            yield shape, rank, 0.0, min(shape)
            yield shape, rank, 0.0, max(shape) + 2
            for hidden in range(max(rank, 1), shape[0] + 1):
                yield shape, rank, 0.7, hidden
            for hidden in range(max(rank, 1), shape[1] + 1):
                yield shape, rank, -1.3, hidden


@pytest.mark.parametrize(("shape", "rank", "imbalance", "hidden"), list(cases()))
def test_factors_are_balanced_and_give_the_two_matrices(shape, rank, imbalance, hidden):
    w = matrix(shape, rank)
    left, right = fs.balanced_factors(w, imbalance, hidden=hidden)
    size = 1 + np.linalg.norm(w)
    assert left.shape == (shape[0], hidden)
    assert right.shape == (hidden, shape[1])
    assert np.abs(left @ right - w).max() < 1e-13 * size
    assert np.abs(left.T @ left - right @ right.T - imbalance * np.eye(hidden)).max() < 1e-13 * size
    found = fs.preconditioner(w, imbalance, hidden=hidden)
    assert np.abs(found.left - left @ left.T).max() < 1e-13 * size
    assert np.abs(found.right - right.T @ right).max() < 1e-13 * size


@pytest.mark.parametrize("imbalance", [0.0, 0.7, -1.3])
@pytest.mark.parametrize("shape", SHAPES)
def test_against_matrix_square_roots_at_40_digits(shape, imbalance):
    """At the widest hidden size both projectors of one side are full: a matrix function of W W^T and W^T W."""
    w = matrix(shape, min(shape), seed=1)
    found = fs.preconditioner(w, imbalance)
    for own, matrix_, sign in ((found.left, w, 1), (found.right, w.T, -1)):
        with mp.workdps(40):
            exact = mp.matrix(matrix_.tolist())
            values, vectors = mp.eigsy(exact * exact.T)
            roots = [mp.sqrt(abs(v) + mp.mpf(imbalance) ** 2 / 4) + sign * mp.mpf(imbalance) / 2 for v in values]
            expected = vectors * mp.diag(roots) * vectors.T
            expected = np.array(expected.tolist(), dtype=float)
        assert np.abs(np.asarray(own) - expected).max() < 1e-13 * (1 + np.abs(expected).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_balanced_is_homogeneous_of_degree_one(shape):
    for rank in range(min(shape) + 1):
        w = matrix(shape, rank)
        plain = fs.preconditioner(w)
        for factor in (1e-8, -3.0, 1e8):
            scaled = fs.preconditioner(factor * w)
            for one, other in ((plain.left, scaled.left), (plain.right, scaled.right)):
                assert np.abs(abs(factor) * one - other).max() <= 1e-13 * abs(factor) * (1 + np.abs(one).max())
    lazy = fs.preconditioner(3.0 * matrix(shape, 1), 1.0).left - 3.0 * fs.preconditioner(matrix(shape, 1), 1.0).left
    assert np.abs(lazy).max() > 0.1  # with an imbalance it is not homogeneous


def test_zero_matrix():
    nothing = fs.preconditioner(np.zeros((3, 2)))
    assert not np.any(nothing.left)
    assert not np.any(nothing.right)
    lazy = fs.preconditioner(np.zeros((3, 2)), 0.4)
    assert np.allclose(lazy.left, 0.4 * np.eye(3))
    assert not np.any(lazy.right)
    gradient = np.arange(6.0).reshape(3, 2)
    assert np.allclose(lazy.apply(gradient), 0.4 * gradient)  # collapsed, with the rate scaled by lambda
    assert np.allclose(fs.preconditioner(np.zeros((3, 2)), -0.4).apply(gradient), 0.4 * gradient)


def slope(function, h=1e-4):
    """Central differences of fourth order."""
    near, far = function(h) - function(-h), function(2 * h) - function(-2 * h)
    return float((8 * near - far) / (12 * h))


@pytest.mark.parametrize(
    ("shape", "imbalance"), [((3, 3), 0.8), ((4, 2), 0.0), ((4, 2), -0.8), ((2, 3), 0.8), ((2, 3), 0.0)]
)
def test_derivatives(shape, imbalance):
    """Forward and backward against central differences; repeated singular values among the points."""
    rng = np.random.default_rng(3)
    hidden = min(shape) if imbalance == 0 else shape[0] if imbalance > 0 else shape[1]
    probe = rng.normal(size=shape)

    @jax.jit
    def value(w, lam):
        return jnp.sum(jnp.sin(fs.preconditioner(w, lam, hidden=hidden).apply(probe)))

    points = [matrix(shape, min(shape), seed=2), np.eye(*shape)]
    if imbalance:
        points += [np.zeros(shape), matrix(shape, 1)]
    backward = jax.jit(jax.grad(value, argnums=(0, 1)))
    forward = jax.jit(lambda w, direction: jax.jvp(lambda w: value(w, imbalance), (w,), (direction,))[1])
    for w in points:
        gradient = backward(w, imbalance)
        direction = rng.normal(size=shape)
        numeric = slope(lambda h, w=w, direction=direction: value(w + h * direction, imbalance))
        assert float(np.sum(gradient[0] * direction)) == pytest.approx(numeric, abs=1e-8)
        assert float(forward(w, direction)) == pytest.approx(numeric, abs=1e-8)
        if imbalance:
            assert float(gradient[1]) == pytest.approx(slope(lambda h, w=w: value(w, imbalance + h)), abs=1e-8)


def test_no_derivative_at_a_lower_rank_without_imbalance():
    gradient = jax.grad(lambda w: jnp.sum(fs.preconditioner(w).left))(np.zeros((2, 2)))
    assert np.isnan(gradient).all()


def test_no_trace_for_new_numbers():
    traces = 0

    @jax.jit
    def value(w, lam):
        nonlocal traces
        traces += 1
        return fs.preconditioner(w, lam, hidden=2).left

    for seed, lam in enumerate((0.0, 1.0, -1.0)):
        value(matrix((3, 2), 2, seed), lam)
    assert traces == 1


# One attention head without any symmetry: embeddings, sequences, labels and weights at random.
TOKENS, LABELS, QUERIES, ROWS = 4, 3, 2, 5
RNG = np.random.default_rng(7)
EMBED, KEYS = RNG.normal(size=(6, TOKENS)), RNG.normal(size=(6, ROWS))
SEQUENCES = [(RNG.integers(0, 6, size=4), RNG.normal(size=QUERIES), int(RNG.integers(0, LABELS))) for _ in range(5)]


def loss(ov, qk):
    total = 0.0
    for tokens, query, label in SEQUENCES:
        attention = jax.nn.softmax(KEYS[tokens] @ qk @ query)
        total -= jax.nn.log_softmax(ov @ (attention @ EMBED[tokens]))[label]
    return total / len(SEQUENCES)


def solve(velocity, start):
    """DOP853 on a tuple of matrices."""
    sizes = np.cumsum([0, *(s.size for s in start)])
    shapes = [s.shape for s in start]

    def unpack(y):
        return [y[a:b].reshape(shape) for (a, b), shape in zip(itertools.pairwise(sizes), shapes, strict=True)]

    fast = jax.jit(lambda y: jnp.concatenate([jnp.ravel(v) for v in velocity(*unpack(y))]))
    times = np.linspace(0, 4, 9)
    y0 = np.concatenate([np.ravel(s) for s in start])
    found = solve_ivp(lambda _, y: np.asarray(fast(y)), (0, 4), y0, "DOP853", times, rtol=1e-12, atol=1e-13)
    assert found.success
    return [unpack(y) for y in found.y.T]


@pytest.mark.parametrize(
    ("lam_ov", "hidden_ov", "lam_qk", "hidden_qk"),
    [(0.0, 3, 0.0, 1), (0.6, 3, -0.4, 2), (-0.6, 4, 0.9, 5), (0.6, 2, 0.9, 5)],
)
def test_the_induced_flow_is_the_flow_of_the_factors(lam_ov, hidden_ov, lam_qk, hidden_qk):
    ov0 = 0.5 * matrix((LABELS, TOKENS), min(hidden_ov, LABELS), seed=11)
    qk0 = 0.3 * matrix((ROWS, QUERIES), min(hidden_qk, QUERIES), seed=12)
    ratio = 2.5

    def factor_flow(o, v, k, q):
        gradient = jax.grad(lambda o, v, k, q: loss(o @ v, k @ q), argnums=(0, 1, 2, 3))(o, v, k, q)
        return [-rate * g for rate, g in zip((1, 1, ratio, ratio), gradient, strict=True)]

    def induced_flow(ov, qk, lam_ov=lam_ov):
        d_ov, d_qk = jax.grad(loss, argnums=(0, 1))(ov, qk)
        left = fs.preconditioner(ov, lam_ov, hidden=hidden_ov)
        return -left.apply(d_ov), -ratio * fs.preconditioner(qk, lam_qk, hidden=hidden_qk).apply(d_qk)

    factors = solve(
        factor_flow,
        [*fs.balanced_factors(ov0, lam_ov, hidden=hidden_ov), *fs.balanced_factors(qk0, lam_qk, hidden=hidden_qk)],
    )
    products = solve(induced_flow, [ov0, qk0])
    moved = 0.0
    for (o, v, k, q), (ov, qk) in zip(factors, products, strict=True):
        assert np.abs(o @ v - ov).max() < 1e-10
        assert np.abs(k @ q - qk).max() < 1e-10
        moved = max(moved, np.abs(ov - ov0).max())
    assert moved > 0.3
    # another imbalance gives another trajectory: the planted error
    other = solve(lambda ov, qk: induced_flow(ov, qk, lam_ov + 0.05 if lam_ov >= 0 else lam_ov - 0.05), [ov0, qk0])
    o, v, _, _ = factors[-1]
    assert np.abs(o @ v - other[-1][0]).max() > 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.eye(3)[:2], 0.5, 3), r"imbalance=0.5 cannot be with hidden=3: an imbalance > 0 needs hidden <= rows = 2"),
        ((np.eye(3)[:, :2], -0.5, 3), r"imbalance=-0.5 cannot be with hidden=3.*hidden <= columns = 2"),
        ((np.eye(3), 0.0, 2), r"hidden=2 is less than the rank 3 of W"),
        ((np.zeros(3), 0.0, None), r"W has shape \(3,\)"),
        (([[np.nan]], 0.0, None), r"W has entries that are not finite"),
        ((np.eye(2), np.inf, None), r"imbalance=inf must be finite"),
        ((np.eye(2), 0.0, 0), r"hidden=0 must be a whole number|hidden=0"),
        (([["a"]], 0.0, None), r"W"),
    ],
)
def test_bad_input(arguments, message):
    w, lam, hidden = arguments
    for function in (fs.preconditioner, fs.balanced_factors):
        with pytest.raises(fs.InvalidInput, match=message):
            function(w, lam, hidden=hidden)


def test_a_traced_imbalance_needs_a_width():
    with pytest.raises(fs.InvalidInput, match="give hidden="):
        jax.jit(lambda lam: fs.preconditioner(np.eye(2), lam).left)(0.5)
