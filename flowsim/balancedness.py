r"""What factorization does to gradient flow: the induced flow of the product (paper, Proposition 1 and Lemmas 1, 2).

For $W = W_O W_V$ with balanced or $\lambda$-balanced factors, $W_O^\top W_O - W_V W_V^\top = \lambda I$, gradient
flow on the factors moves the product by a flow of $W$ alone, $\dot W = -\eta (L G + G R)$ with
$G = \partial \ell/\partial W$ and

$$ L = W_O W_O^\top = P\,[(W W^\top + \lambda^2/4)^{1/2} + \lambda/2]\,P, \qquad
   R = W_V^\top W_V = P'\,[(W^\top W + \lambda^2/4)^{1/2} - \lambda/2]\,P', $$

$P$ the projector on the columns of $W_O$ and $P'$ on the rows of $W_V$. The same holds for $W_{QK} = W_K W_Q^\top$ with
$W_K$, $W_Q^\top$ in place of $W_O$, $W_V$. All from one singular value decomposition of $W$, without squaring it.
"""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax, _validate
from flowsim.errors import InvalidInput

_RANK_TOLERANCE = 16
"""Singular values below this many ulp of the largest, for each row or column, count as rounding errors of 0."""


class Preconditioner(eqx.Module):
    r"""The two matrices of the induced flow $\dot W = -\eta (L G + G R)$.

    Attributes:
        left: $L = W_O W_O^\top$, symmetric and positive semidefinite.
        right: $R = W_V^\top W_V$.
    """

    left: Float[Array, "rows rows"]
    right: Float[Array, "columns columns"]

    def apply(self, gradient: Float[Array, "rows columns"]) -> Float[Array, "rows columns"]:
        r"""$L G + G R$: minus the velocity of $W$, up to the learning rate.

        Args:
            gradient: $G = \partial \ell/\partial W$.
        """
        return self.left @ gradient + gradient @ self.right


class Factors(NamedTuple):
    r"""Factors of a matrix, $W = W_O W_V$.

    Attributes:
        left: $W_O$ (or $W_K$).
        right: $W_V$ (or $W_Q^\top$).
    """

    left: Float[Array, "rows hidden"]
    right: Float[Array, "hidden columns"]


def preconditioner(W: Any, imbalance: Any = 0.0, *, hidden: int | None = None) -> Preconditioner:
    r"""The matrices $W_O W_O^\top$ and $W_V^\top W_V$ of $\lambda$-balanced factors of a matrix, from the matrix alone.

    For $\lambda = 0$ they are $(W W^\top)^{1/2}$ and $(W^\top W)^{1/2}$, homogeneous of degree 1 in $W$. They are
    differentiable in `W` and `imbalance` (forward and backward, repeated singular values included) where the functions
    are: everywhere for $\lambda \ne 0$ at the widest `hidden`; for $\lambda = 0$ not at a rank below
    `min(rows, columns)`, where derivatives are NaN. There $W$ moves like an absolute value through 0.

    Args:
        W: any matrix, of any rank; 0 is allowed.
        imbalance: $\lambda$, of either sign; a number.
        hidden: width of the factors, at least the rank of $W$; $\lambda > 0$ needs `hidden <= rows`, $\lambda < 0$
            needs `hidden <= columns`. None takes the widest of these (for $\lambda = 0$ any width gives the same).
            Where a narrower one leaves a choice of columns of $W_O$ (rank of $W$ < `hidden` < rows), the singular
            vectors of `W` are taken.

    Returns:
        Both matrices; `apply(G)` combines them.

    Raises:
        InvalidInput: if `W` is no finite real matrix or no such factors exist.
    """
    matrix, lam, width = _checked(W, imbalance, hidden)
    return _preconditioner(width, matrix, lam)


def balanced_factors(W: Any, imbalance: Any = 0.0, *, hidden: int | None = None) -> Factors:
    r"""Factors with $W_O W_V = W$ and $W_O^\top W_O - W_V W_V^\top = \lambda I$, from a singular value decomposition.

    They are unique up to a rotation of the hidden space, and where `preconditioner` says that there is a choice.

    Args:
        W: any matrix, of any rank; 0 is allowed.
        imbalance: $\lambda$, of either sign; a number.
        hidden: width of the factors, as for `preconditioner`.

    Returns:
        $W_O$ and $W_V$.

    Raises:
        InvalidInput: if `W` is no finite real matrix or no such factors exist.
    """
    matrix, lam, width = _checked(W, imbalance, hidden)
    return _balanced_factors(width, matrix, lam)


@functools.partial(jax.jit, static_argnums=0)
def _balanced_factors(width: int, matrix: Array, lam: Array) -> Factors:
    u, sigma, v = _decompose(matrix)
    p, q = _split(_padded(sigma, width), lam)
    return Factors(_columns(u, width) * p, (_columns(v, width) * q).T)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
@functools.partial(jax.jit, static_argnums=0)
def _preconditioner(width: int, matrix: Array, lam: Array) -> Preconditioner:
    u, sigma, v = _decompose(matrix)
    p, q = _split(_padded(sigma, width), lam)
    left, right = _columns(u, width) * p, _columns(v, width) * q
    return Preconditioner(left @ left.T, right @ right.T)


@_preconditioner.defjvp
def _preconditioner_jvp(width: int, primals, tangents):
    r"""$dL = U (f[\sigma_i^2, \sigma_j^2] \circ U^\top d(W W^\top) U) U^\top$ with $W W^\top = U \Sigma^2 U^\top$."""
    (matrix, lam), (d_matrix, d_lam) = primals, tangents
    u, sigma, v = _decompose(matrix)
    rotated = u.T @ d_matrix @ v  # the change of W between its singular vectors
    rows, columns = matrix.shape

    def side(vectors, rotated, size, sign):
        own = _padded(sigma, size)
        squared = rotated[:, : sigma.size] * sigma[: rotated.shape[1]]  # U^T dW W^T U, without the other half
        squared = jnp.pad(squared, ((0, 0), (0, size - squared.shape[1])))
        change = _divided_differences(own, lam, sign, width, sigma.size) * (squared + squared.T)
        root = jnp.hypot(own, lam / 2)
        # d/d lambda of root + sign lambda/2; at lambda = 0 = sigma only the second part has a derivative
        slope = jnp.where(root > 0, lam / 4 / jnp.where(root > 0, root, 1.0), 0.0) + sign / 2
        slope = jnp.where(jnp.arange(size) < width, slope, 0.0)
        return vectors @ (change + jnp.diag(slope * d_lam)) @ vectors.T

    tangent = Preconditioner(side(u, rotated, rows, 1.0), side(v, rotated.T, columns, -1.0))
    return _preconditioner(width, matrix, lam), tangent


def _divided_differences(sigma: Array, lam: Array, sign: float, width: int, singular: int) -> Array:
    r"""$(f_i - f_j)/(\sigma_i^2 - \sigma_j^2)$ of $f = \sqrt{\sigma^2 + \lambda^2/4} \pm \lambda/2$ (0 outside).

    Within the width that is $1/(r_i + r_j)$ with the roots $r$; across it $f_i/\sigma_i^2 = 1/(r_i \mp \lambda/2)$,
    since singular values beyond the width are 0.
    """
    root = jnp.hypot(sigma, lam / 2)
    size = jnp.arange(sigma.size)
    inside, beyond = size < width, size >= singular  # beyond: no singular value at all, 0 whatever W is
    p, q = _split(sigma, lam)
    partner = jnp.square(q if sign > 0 else p)  # r -+ lambda/2 without cancellation
    within = root[:, None] + root
    across = jnp.where(inside[:, None], partner[:, None], partner)
    both = inside[:, None] & inside
    denominator = jnp.where(both, within, across)
    # Between two directions outside of W and of the width, or that W never reaches, nothing changes.
    constant = ~(inside[:, None] | inside) | (beyond[:, None] & beyond)
    safe = jnp.where(constant, 1.0, denominator)
    return jnp.where(constant, 0.0, jnp.where(safe > 0, 1 / jnp.where(safe > 0, safe, 1.0), jnp.nan))


def _decompose(matrix: Array) -> tuple[Array, Array, Array]:
    """All singular vectors, as columns, and the singular values."""
    u, sigma, vt = jnp.linalg.svd(matrix, full_matrices=True)
    return u, sigma, vt.T


def _split(sigma: Array, lam: Array) -> tuple[Array, Array]:
    r"""$p q = \sigma$, $p^2 - q^2 = \lambda$: the larger one first, the other by division, so that nothing cancels."""
    large = jnp.sqrt(jnp.abs(lam) / 2 + jnp.hypot(sigma, lam / 2))
    positive = large > 0
    small = jnp.where(positive, sigma / jnp.where(positive, large, 1.0), 0.0)
    return jnp.where(lam >= 0, large, small), jnp.where(lam >= 0, small, large)


def _columns(vectors: Array, width: int) -> Array:
    """The first `width` vectors; where there are fewer, zeros, which go with the smaller factor that is 0 there."""
    return jnp.pad(vectors[:, :width], ((0, 0), (0, max(0, width - vectors.shape[1]))))


def _padded(sigma: Array, size: int) -> Array:
    return jnp.pad(sigma[:size], (0, max(0, size - sigma.size)))


def _checked(W: Any, imbalance: Any, hidden: int | None) -> tuple[Array, Array, int]:
    _jax.require_x64()
    traced = _validate.is_traced(W)
    matrix = jnp.asarray(W, dtype=float) if traced else _validate.numeric_array("W", W)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise InvalidInput(f"W has shape {matrix.shape}; give a matrix with at least one row and one column.")
    if not traced and not np.isfinite(matrix).all():
        raise InvalidInput("W has entries that are not finite; give a finite matrix.")
    rows, columns = matrix.shape
    lam = imbalance if _validate.is_traced(imbalance) else _validate.real("imbalance", imbalance)
    if hidden is None:
        if _validate.is_traced(lam):
            raise InvalidInput("imbalance is traced, so hidden=None cannot depend on its sign; give hidden=.")
        hidden = min(rows, columns) if lam == 0 else rows if lam > 0 else columns
    width = _validate.whole("hidden", hidden, minimum=1)
    if not _validate.is_traced(lam):
        for possible, words, most in ((lam <= 0, "rows", rows), (lam >= 0, "columns", columns)):
            if not possible and width > most:
                sign = ">" if lam > 0 else "<"
                raise InvalidInput(
                    f"imbalance={lam:g} cannot be with hidden={width}: an imbalance {sign} 0 needs hidden <= {words} = "
                    f"{most}; give a smaller hidden or the other sign."
                )
    if not traced and width < min(rows, columns):
        sigma = np.linalg.svd(matrix, compute_uv=False)
        rank = int((sigma > _RANK_TOLERANCE * max(rows, columns) * np.finfo(float).eps * sigma[0]).sum())
        if rank > width:
            raise InvalidInput(f"hidden={width} is less than the rank {rank} of W; give hidden={rank} or more.")
    return jnp.asarray(matrix, dtype=float), jnp.asarray(lam, dtype=float), width
