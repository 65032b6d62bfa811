r"""Switches JAX to float64. Every numeric module imports this one before it builds an array.

The theory needs double precision: at $\ln t = 10^4$ a float32 clock cannot even represent the horizon.
`FLOWSIM_X64=0` leaves JAX's precision alone, and flowsim then refuses to solve theory (`require_x64`).
"""

import os

import jax
import jax.numpy as jnp

from flowsim.errors import InvalidInput

if os.environ.get("FLOWSIM_X64", "1") != "0":
    jax.config.update("jax_enable_x64", True)


def require_x64() -> None:
    """Refuse to solve theory in single precision.

    Raises:
        InvalidInput: if JAX's float64 is off.
    """
    if jnp.result_type(float) != jnp.float64:
        raise InvalidInput(
            "FLOWSIM_X64=0 (or jax_enable_x64=False) leaves only float32, in which flowsim does not solve theory; "
            "unset it, or call jax.config.update('jax_enable_x64', True)."
        )
