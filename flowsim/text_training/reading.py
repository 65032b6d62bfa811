"""What trained models make of texts: probabilities, and where the last position attends."""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from flowsim import _jax  # noqa: F401  float64 first
from flowsim.errors import InvalidInput
from flowsim.rollout import attention_rollout
from flowsim.text_training.batches import in_order, side_by_side, words
from flowsim.transformer import PADDING, Transformer

_BATCH = 128  # texts that are read side by side if they are short


class Reading(NamedTuple):
    """What a model makes of texts.

    Attributes:
        probabilities: of the classes.
        attention: of the position that predicts, the last that is no padding, on each token: one array for each text,
            summing to 1.
    """

    probabilities: Float[np.ndarray, "texts classes"]
    attention: list[Float[np.ndarray, " tokens"]]


def read(
    model: Transformer, texts: Sequence[np.ndarray], widths: Sequence[int], *, residual: float | None = None
) -> Reading:
    r"""Reads texts of any length up to the model's.

    Args:
        model: the model.
        texts: numbers of the tokens of each.
        widths: lengths that rows are cut to, increasing; each compiles once.
        residual: the part of the residual connection in the rollout of several layers; None: none for one layer,
            whose attention is given as it is, averaged over the heads, and a half for several.

    Raises:
        InvalidInput: if a text is longer than the model's texts or holds what is no number of a word, or there is none.
    """
    carried = (0.0 if len(model.blocks) == 1 else 0.5) if residual is None else residual
    rows: list[np.ndarray] = [np.zeros(0)] * len(texts)

    def look(number: int, layers: np.ndarray) -> None:
        n = len(texts[number])
        if not n:
            return  # a text without tokens has nothing to attend to
        seen = np.flatnonzero(np.asarray(texts[number]) != PADDING)
        last = seen[-1] if seen.size else -1  # as the transformer chooses the position that predicts
        rows[number] = attention_rollout(layers[..., -n:, -n:], residual=carried)[last]

    return Reading(_outputs(model, texts, widths, look), rows)


def probabilities(model: Transformer, texts: Sequence[np.ndarray], widths: Sequence[int]) -> np.ndarray:
    """The probabilities of the classes alone; for arguments see `read`."""
    return _outputs(model, texts, widths, None)


def _outputs(
    model: Transformer,
    texts: Sequence[np.ndarray],
    widths: Sequence[int],
    look: Callable[[int, np.ndarray], None] | None,
) -> np.ndarray:
    """Probabilities; `look` is shown number and attention of each text, of which nothing else is kept."""
    if not texts:
        raise InvalidInput("texts is empty; give one at least.")
    sizes = np.array([len(text) for text in texts], dtype=np.int32)
    longest = model.positions.shape[0]
    if sizes.max() > longest:
        raise InvalidInput(f"texts[{int(sizes.argmax())}] has {sizes.max()} tokens; this model reads up to {longest}.")
    words("texts", np.concatenate([np.asarray(text) for text in texts if len(text)] or [sizes]), model.tokens.shape[0])
    found = np.zeros((len(texts), model.head.shape[0]))
    bounds = tuple(sorted({*(width for width in widths if width < longest), longest}))
    together = side_by_side(_BATCH, longest)
    order = in_order(sizes, bounds, together)
    for width, rows, weights in zip(order.width, order.rows[0], order.weights, strict=True):
        here = rows[weights > 0]
        block = np.zeros((together, bounds[width]), dtype=np.int32)
        lengths = np.zeros(together, dtype=np.int32)
        lengths[: here.size] = sizes[here]
        for line, number in zip(block, here, strict=False):
            if sizes[number]:
                line[-sizes[number] :] = texts[number]
        chances, weight = _forward(model, block, lengths, look is not None)
        found[here] = np.asarray(chances, dtype=float)[: here.size]
        if look is not None:
            for number, layers in zip(here, np.asarray(weight, dtype=float), strict=False):
                look(number, layers)
    return found / found.sum(axis=1, keepdims=True)


@functools.partial(jax.jit, static_argnums=3)
def _forward(model: Transformer, tokens: Array, sizes: Array, keep: bool) -> tuple[Array, Array | None]:
    with jax.default_matmul_precision("highest"):
        seen = jax.vmap(model)(jnp.asarray(tokens), jnp.asarray(sizes))
    return jax.nn.softmax(seen.logits), seen.attention if keep else None
