"""Solvers: the closed form (`exact`), the reduced flow over time (`ode`), and finite steps (`descent`).

The closed form in three parts: `orbit` (odds from the margin, by `omega`), `time_map` (a quadrature), `inversion`.
"""
