r"""Growth laws of the four parameterizations, derived by asymptotic series (never by fitting).

A parameterization is a pair of circuits. The output-value circuit sets the clock that a law is read against, and its
own margin $\hat w(l)$, the one it would have with all attention on the distinct tokens:

* collapsed: $l = \ln(t/C)$ and $\hat w = l$;
* factorized: $l = \ln(2t/\sqrt C)$ and $\hat w - \ln\hat w = l$, so $\hat w = l + \ln l + ...$

The query-key circuit turns the drive $X$, $c w^2/2$ or $c w/(2\sqrt C)$ plus what the start adds, into odds:

* collapsed (`caco`, `cafo`): $y + \ln y = g X$, the Wright omega function;
* factorized (`factorized`): $y = \theta' X\,(1 + O(1/\theta))$ with $\theta' = d\theta/d\tau_k \to 2 F \theta$.

Before attention saturates (`early`) the orbit is a series around the frozen gate.
"""

import functools

import sympy as sp

from flowsim.theory.growth import caco, cafo, early, factorized
from flowsim.theory.growth.caco import omega_series, orbit_series
from flowsim.theory.growth.law import (
    BEFORE,
    MARGIN,
    ODDS,
    SATURATED,
    SCORE_GAP,
    GrowthLaw,
    alpha0,
    base_odds,
    distinct_types,
    drive,
    gate,
    imbalance,
    kappa,
    l,
    log_time,
    loglog,
    margin0,
    margin_l,
    odds_l,
    odds_rate,
    rho,
    start_share,
    tower,
    unattended0,
)

__all__ = [
    "BEFORE",
    "MARGIN",
    "ODDS",
    "SATURATED",
    "SCORE_GAP",
    "GrowthLaw",
    "alpha0",
    "base_odds",
    "crossing_margin",
    "distinct_types",
    "drive",
    "gate",
    "growth_laws",
    "imbalance",
    "kappa",
    "l",
    "log_time",
    "loglog",
    "margin0",
    "margin_l",
    "odds_l",
    "odds_rate",
    "omega_series",
    "orbit_series",
    "rho",
    "start_share",
    "tower",
    "unattended0",
]

_LAWS = {
    "CACO": lambda: (*caco.saturated_laws(), *early.collapsed_laws()),
    "CAFO": lambda: (*cafo.saturated_laws(), *early.factorized_output_laws()),
    "FACO": lambda: (*factorized.saturated_laws(2), *early.factorized_attention_laws(2)),
    "FAFO": lambda: (*factorized.saturated_laws(1), *early.factorized_attention_laws(1)),
}


@functools.cache
def growth_laws(parameterization: str = "CACO") -> tuple[GrowthLaw, ...]:
    r"""The growth laws of a parameterization.

    A factorized query-key circuit has no law of the score gap before saturation: there $\theta$ follows its own clock,
    $\theta_0 e^{2 F \tau_k}$ with $\tau_k$ growing as $\log^2 t$ (FACO) or $\log t$ (FAFO), which is no power of
    $\log t$.

    Args:
        parameterization: four letters.

    Returns:
        The laws of margin, odds and score gap in each regime in which they have one, saturated ones first.
    """
    return _LAWS[parameterization]()


def crossing_margin() -> sp.Expr:
    r"""The margin where the two regimes of the score gap meet for CACO, in the symbols of this module.

    There the law before saturation, $\theta - \theta_0 = (1 - \alpha_0) \rho (w^2 - w_0^2)/2$, reaches a gap of 1: the
    attention gate closes.
    """
    squared = sp.Symbol("w^2", positive=True)
    (found,) = sp.solve(unattended0 * rho * (squared - margin0**2) / 2 - 1, squared)
    return sp.sqrt(sp.expand(found))
