"""Attention through several layers (Abnar and Zuidema 2020)."""

from typing import Any

import numpy as np
from jaxtyping import Float

from flowsim import _checks, _validate
from flowsim.errors import InvalidInput

_ROUNDING = 1e-4  # rows of attention in single precision


def attention_rollout(attention: Any, *, residual: float = 0.5) -> Float[np.ndarray, "*texts queries keys"]:
    r"""How much of each first-layer token reaches each position after all layers.

    $$ R = \tilde A_L \cdots \tilde A_2 \tilde A_1, \qquad
       \tilde A_l = (1 - \varrho)\, \tfrac1H \sum_h A_{lh} + \varrho\, I, $$

    with $\varrho$ the part that the residual connection carries, a half in the paper. With one layer and
    $\varrho = 1/2$ no position but the query's own can have more than a half: use $\varrho = 0$ there, which is the
    attention itself.

    Args:
        attention: shape (..., layers, heads, positions, positions), rows sum to 1.
        residual: $\varrho$, from 0 to below 1.

    Returns:
        $R$, whose rows sum to 1.

    Raises:
        InvalidInput: naming the argument, its value and the fix.
    """
    array = _validate.numeric_array("attention", attention).astype(float)
    if array.ndim < 4 or array.shape[-1] != array.shape[-2] or 0 in array.shape:
        raise InvalidInput(
            f"attention has shape {array.shape}; give (..., layers, heads, positions, positions), none of them 0."
        )
    share = _checks.real("residual", residual, minimum=0.0)
    if share >= 1:
        raise InvalidInput(f"residual={share:g} leaves nothing to attention; give a number below 1.")
    if not (array >= 0).all() or not (np.abs(array.sum(axis=-1) - 1) < _ROUNDING).all():
        raise InvalidInput("attention has a row that is no distribution; give rows of 0 or more that sum to 1.")
    layers = (1 - share) * array.mean(axis=-3) + share * np.eye(array.shape[-1])
    rolled = layers[..., 0, :, :]
    for number in range(1, layers.shape[-3]):
        rolled = layers[..., number, :, :] @ rolled
    return rolled
