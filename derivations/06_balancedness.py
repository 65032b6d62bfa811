r"""Derivation 6: what a factorization does to gradient flow (paper, Proposition 1, Lemmas 1 and 2).

Claim. With G = d loss/dW at W = W_O W_V, gradient flow on the factors conserves W_O^T W_O - W_V W_V^T and moves W as

    always      dW/dt = -eta (W_O W_O^T G + G W_V^T W_V)
    balanced    dW/dt = -eta ((W W^T)^(1/2) G + G (W^T W)^(1/2)),        homogeneous of degree 1 in W

and for W_O^T W_O - W_V W_V^T = lambda I, with the projectors P on the columns of W_O and P' on the rows of W_V,

    W_O W_O^T = P [(W W^T + lambda^2/4)^(1/2) + lambda/2] P
    W_V^T W_V = P'[(W^T W + lambda^2/4)^(1/2) - lambda/2] P'

so that W alone tells how it moves. lambda > 0 needs hidden <= rows, lambda < 0 needs hidden <= columns. The same holds
for W_QK = W_K W_Q^T with W_K, W_Q^T in place of W_O, W_V.

Assumptions. Any loss that depends on the factors through W; any matrices. Steps 1 to 3 are symbolic at small sizes with
free coefficients, step 4 for any size (matrices as symbols that do not commute), steps 6 and 7 numeric at random.

Run it: every step is asserted, and the formulas that it proves are printed.
"""

# SymPy's annotations are wider than what it returns.
# pyright: reportArgumentType=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false

import itertools

import numpy as np
import sympy as sp

import flowsim as fs

SIZES = [(1, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 3), (1, 3, 2)]  # rows, hidden, columns
ETA, LAMBDA = sp.symbols("eta lambda", real=True)


def main() -> None:
    """All steps in order."""
    gradients_of_the_factors()
    conservation()
    flow_of_the_product()
    square_roots()
    which_imbalance_can_be()
    one_mode()
    random_matrices()
    gradient_descent()


def small(rows: int, hidden: int, columns: int) -> tuple[sp.Matrix, sp.Matrix, sp.Matrix, sp.Expr]:
    """Factors, product and a loss with free first and second derivatives in the entries of the product."""
    o = sp.Matrix(rows, hidden, lambda i, j: sp.Symbol(f"o_{i}{j}"))
    v = sp.Matrix(hidden, columns, lambda i, j: sp.Symbol(f"v_{i}{j}"))
    w = sp.Matrix(rows, columns, lambda i, j: sp.Symbol(f"w_{i}{j}"))
    loss = sum(sp.Symbol(f"a_{k}") * e for k, e in enumerate(w))
    pairs = itertools.combinations_with_replacement(range(len(w)), 2)
    return o, v, w, loss + sum(sp.Symbol(f"b_{j}{k}") * w[j] * w[k] for j, k in pairs)


def slope(loss: sp.Expr, matrix: sp.Matrix) -> sp.Matrix:
    """The derivative of a loss with respect to every entry."""
    return matrix.applyfunc(lambda entry: sp.diff(loss, entry))


def flow(rows: int, hidden: int, columns: int):
    """Factors, their gradients by differentiating the loss of the product, and G at the product."""
    o, v, w, loss = small(rows, hidden, columns)
    product = dict(zip(w, o * v, strict=True))
    composed = loss.subs(product, simultaneous=True)
    return o, v, slope(composed, o), slope(composed, v), slope(loss, w).subs(product, simultaneous=True)


def gradients_of_the_factors() -> None:
    r"""Step 1. grad_{W_O} = G W_V^T and grad_{W_V} = W_O^T G, by differentiating the loss of the product."""
    heading("1", "gradients of the factors")
    for size in SIZES:
        o, v, d_o, d_v, g = flow(*size)
        assert (d_o - g * v.T).expand().is_zero_matrix
        assert (d_v - o.T * g).expand().is_zero_matrix
        print(f"  rows, hidden, columns = {size}: grad W_O = G W_V^T, grad W_V = W_O^T G")


def conservation() -> None:
    r"""Step 2. d/dt (W_O^T W_O - W_V W_V^T) = 0 along dW_O/dt = -grad_{W_O}, dW_V/dt = -grad_{W_V}."""
    heading("2", "what is conserved")
    for size in SIZES:
        o, v, d_o, d_v, _ = flow(*size)
        change = -(d_o.T * o + o.T * d_o) + (d_v * v.T + v * d_v.T)
        assert change.expand().is_zero_matrix
    print("  d/dt (W_O^T W_O - W_V W_V^T) = 0")


def flow_of_the_product() -> None:
    r"""Step 3. dW/dt = dW_O/dt W_V + W_O dW_V/dt = -eta (W_O W_O^T G + G W_V^T W_V)."""
    heading("3", "how the product moves")
    for size in SIZES:
        o, v, d_o, d_v, g = flow(*size)
        moved = -ETA * (d_o * v + o * d_v)
        assert (moved + ETA * (o * o.T * g + g * v.T * v)).expand().is_zero_matrix
    print("  dW/dt = -eta (W_O W_O^T G + G W_V^T W_V)")


def square_roots() -> None:
    r"""Step 4. X = W_O W_O^T and Y = W_V^T W_V solve quadratic equations, whose positive roots are the claim.

    W_O^T W_O = W_V W_V^T + lambda gives X^2 = W W^T + lambda X and Y^2 = W^T W - lambda Y. With P X = X = X P the first
    is (X - lambda/2 P)^2 = W W^T + lambda^2/4 P. On the range of P, X has the eigenvalues of W_O^T W_O, which are
    positive there, and at least lambda, since W_V W_V^T >= 0: so X - lambda/2 P >= |lambda|/2 P (for lambda < 0 even
    X - lambda/2 P > |lambda|/2 P), and it is *the* positive square root. In the same way for Y with -lambda.
    """
    heading("4", "square roots")
    o, ot, v, vt, p = sp.symbols("O O' V V' P", commutative=False)
    x, y, ww, vv = o * ot, vt * v, o * v * vt * ot, vt * ot * o * v
    balanced = {ot * o: v * vt + LAMBDA}
    assert sp.expand((x * x).subs(balanced)) == sp.expand(ww + LAMBDA * x)
    other = {v * vt: ot * o - LAMBDA}
    assert sp.expand((y * y).subs(other)) == sp.expand(vv - LAMBDA * y)
    # (X - lambda/2 P)^2 with P X = X P = X, P^2 = P
    symbol = sp.Symbol("X", commutative=False)
    square = sp.expand((symbol - LAMBDA / 2 * p) ** 2)
    square = sp.expand(square.subs({p * symbol: symbol, symbol * p: symbol, p**2: p}))
    assert sp.expand(square - (symbol**2 - LAMBDA * symbol + LAMBDA**2 / 4 * p)) == 0
    print("  X^2 = W W^T + lambda X:   X = P [(W W^T + lambda^2/4)^(1/2) + lambda/2] P")
    print("  Y^2 = W^T W - lambda Y:   Y = P'[(W^T W + lambda^2/4)^(1/2) - lambda/2] P'")
    # Lemma 2: a square root of the squares scales as the matrix does
    scale, sigma = sp.symbols("c sigma", nonnegative=True)
    assert sp.sqrt((scale * sigma) ** 2) == scale * sp.sqrt(sigma**2)
    print("  lambda = 0: (c^2 W W^T)^(1/2) = |c| (W W^T)^(1/2), homogeneous of degree 1")


def which_imbalance_can_be() -> None:
    r"""Step 5. lambda > 0 makes W_O^T W_O >= lambda I, so W_O has full column rank: hidden <= rows.

    lambda < 0 makes W_V W_V^T >= -lambda I: hidden <= columns. flowsim refuses the others by name.
    """
    heading("5", "which imbalance can be")
    for (rows, columns), lam, hidden in (((2, 3), 0.5, 3), ((3, 2), -0.5, 3)):
        try:
            fs.preconditioner(np.zeros((rows, columns)), lam, hidden=hidden)
        except fs.InvalidInput as refusal:
            print(f"  {rows} x {columns}: {refusal}")
        else:
            raise AssertionError("such factors cannot be")
        fs.preconditioner(np.zeros((rows, columns)), -lam, hidden=hidden)


def one_mode() -> None:
    r"""Step 6. One mode of width 1, sigma = p q and p^2 - q^2 = lambda: it moves at the rate p^2 + q^2."""
    heading("6", "one mode")
    sigma, positive = sp.Symbol("sigma", real=True), sp.Symbol("lambda", positive=True)
    p = sp.sqrt(positive / 2 + sp.sqrt(positive**2 / 4 + sigma**2))
    q = sigma / p
    assert sp.simplify(p**2 - q**2 - positive) == 0
    assert sp.simplify(p**2 + q**2 - sp.sqrt(positive**2 + 4 * sigma**2)) == 0
    assert sp.limit(sp.sqrt(positive**2 + 4 * sigma**2) / positive, positive, sp.oo) == 1
    print("  dsigma/dt = -eta (p^2 + q^2) dL/dsigma = -eta sqrt(lambda^2 + 4 sigma^2) dL/dsigma")
    print("  lambda = 0: rate 2 |sigma|;  lambda -> oo: the collapsed flow with eta lambda")


def random_matrices() -> None:
    r"""Step 7. Random matrices of any shape and rank: both matrices from W alone equal those of the factors.

    The balanced factors are made by a Cholesky root and a random rotation of the hidden space, not from singular
    values: W_V at random, then W_O with W_O^T W_O = W_V W_V^T + lambda I.
    """
    heading("7", "random matrices")
    rng = np.random.default_rng(0)
    worst, tried = 0.0, 0
    for rows, hidden, columns in itertools.product((1, 2, 3, 5), (1, 2, 3, 5), (1, 2, 4)):
        for lam in (0.0, 0.7, -0.7):
            if hidden > rows or (lam <= 0 and hidden > columns):
                continue  # a Cholesky root needs W_V W_V^T + lambda I > 0; narrower ones are covered by the tests
            v = rng.normal(size=(hidden, columns)) + 2 * np.eye(hidden, columns)
            gram = v @ v.T + lam * np.eye(hidden)
            if np.linalg.eigvalsh(gram).min() < 0.05:
                continue
            basis, _ = np.linalg.qr(rng.normal(size=(rows, hidden)))
            o = basis @ np.linalg.cholesky(gram).T
            tried += 1
            # where W leaves a choice of columns (rank < hidden < rows), no function of W can know it
            if np.linalg.matrix_rank(v) < hidden < rows:
                continue
            found = fs.preconditioner(o @ v, lam, hidden=hidden)
            size = np.abs(o @ o.T).max() + np.abs(v.T @ v).max()
            difference = max(np.abs(found.left - o @ o.T).max(), np.abs(found.right - v.T @ v).max()) / size
            worst = max(worst, float(difference))
    assert tried > 30
    assert worst < 1e-12, worst
    print(f"  {tried} triples of random factors: largest relative difference {worst:.1e}")
    w = rng.normal(size=(4, 2)) @ rng.normal(size=(2, 5))
    difference = np.abs(fs.preconditioner(-3 * w).left - 3 * fs.preconditioner(w).left).max()
    assert difference < 1e-12
    print(f"  homogeneous of degree 1 at rank 2 of 4 x 5: {difference:.1e}")


def gradient_descent() -> None:
    r"""Step 8. A step of gradient descent changes the conserved matrix by eta^2 (W_V G^T G W_V^T - W_O^T G G^T W_O).

    The flow conserves it, finite steps do not: over a fixed time the drift is of order eta.
    """
    heading("8", "finite steps")
    for size in SIZES:
        o, v, d_o, d_v, g = flow(*size)
        new_o, new_v = o - ETA * d_o, v - ETA * d_v
        change = (new_o.T * new_o - new_v * new_v.T) - (o.T * o - v * v.T)
        assert (change - ETA**2 * (v * g.T * g * v.T - o.T * g * g.T * o)).expand().is_zero_matrix
    print("  one step: change of W_O^T W_O - W_V W_V^T = eta^2 (W_V G^T G W_V^T - W_O^T G G^T W_O)")


def heading(number: str, title: str) -> None:
    """Prints the heading of a step."""
    print(f"\nStep {number}: {title}")


if __name__ == "__main__":
    main()
