r"""What a growth law is, and the symbols that it is written in."""

# SymPy's annotations are wider than what it returns.
# pyright: reportReturnType=false, reportArgumentType=false

from typing import NamedTuple

import sympy as sp

MARGIN, ODDS, SCORE_GAP = "margin", "odds", "score_gap"
SATURATED, BEFORE = "saturated", "before saturation"

# What a law depends on.
l = sp.Symbol("l", positive=True)  # logarithm of time, see GrowthLaw.clock
rho = sp.Symbol("rho", positive=True)  # collapsed attention: rho = g c, with factorized output g c/(2 sqrt C)
kappa = sp.Symbol("kappa", real=True)  # collapsed attention: y0 + ln y0 - rho J(w0), J = w^2/2 or sqrt(w^2 + nu^2)
alpha0 = sp.Symbol("alpha_0", positive=True)  # attention at the start
unattended0 = sp.Symbol("beta_0", positive=True)  # 1 - alpha0, a symbol of its own so that nothing cancels
margin0 = sp.Symbol("w_0", real=True)  # margin at the start
base_odds = sp.Symbol("y_b", positive=True)  # m/n, the odds at score gap 0
log_time = sp.Symbol("tau", real=True)  # ln t
distinct_types = sp.Symbol("C", positive=True)
imbalance = sp.Symbol("nu", nonnegative=True)  # factorized output: |lambda|/(2 sqrt C)
# What the circuits give at l, each defined by an equation of its own and evaluated, not expanded.
margin_l = sp.Symbol("w_l", positive=True)  # w of the output-value circuit under full attention
odds_l = sp.Symbol("Y", positive=True)  # factorized attention: Y = theta' X at w_l, with theta = ln(Y n/m)
loglog = sp.Symbol("Lambda", positive=True)  # factorized attention: theta'/(2 F) there, which tends to theta
# Factorized attention: theta''/theta'^2 there, and by how much theta'''/theta'^3 and theta''''/theta'^4 differ from its
# powers (they do not for a single growing exponential).
tower = sp.symbols("n_1 m_2 m_3", real=True)
odds_rate = sp.Symbol("phi", positive=True)  # factorized attention: F c, with factorized output F c/sqrt C
start_share = sp.Symbol("g_J", positive=True)  # X without its start over X, at w_l
# Factorized attention: -ln(1 - x), x the share of X that tau_k and the constant of the integral take at most.
drive = sp.Symbol("xi", nonnegative=True)
# Factorized attention before saturation: theta - theta0 at w_l, and its derivative with respect to alpha0 w.
gate = sp.symbols("psi psi_x", nonnegative=True)


class GrowthLaw(NamedTuple):
    r"""One observable as a function of the logarithm of time: `leading + correction`, up to about `remainder`.

    Attributes:
        observable: `"margin"`, `"odds"` or `"score_gap"`.
        regime: `"saturated"` or `"before saturation"`.
        name: the law as one says it: `"log t"`, `"log^2 t log log t"`, `"log log t"`.
        power: the power of $l$ in the basis; 0 where the basis is a logarithm of $l$.
        constant: coefficient of the basis.
        basis: $l^{power}$, times $\Lambda$ for `log log t`; or $\ln l$, plus a share of $\ln\Lambda$.
        offset: the constant beside it.
        correction: the next terms, exact to the order before `remainder`.
        remainder: the first terms left out, each taken positive.
        clock: $l$ in terms of $\tau = \ln t$.
    """

    observable: str
    regime: str
    name: str
    power: int
    constant: sp.Expr
    basis: sp.Expr
    offset: sp.Expr
    correction: sp.Expr
    remainder: sp.Expr
    clock: sp.Expr

    @property
    def leading(self) -> sp.Expr:
        """The leading term as a function of $l$."""
        return self.constant * self.basis + self.offset


def output_clock(power: int) -> sp.Expr:
    r"""$l$ of saturated attention: $\ln(t/C)$ for a collapsed output-value circuit (2), $\ln(2t/\sqrt C)$ else (1).

    Args:
        power: the power of the margin in the drive.
    """
    scale = distinct_types if power == 2 else sp.sqrt(distinct_types) / 2
    return log_time - sp.expand_log(sp.log(scale))
