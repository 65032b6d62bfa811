r"""A GPT-style causal transformer for real texts (paper, section 7) with circuits that can be collapsed.

Pre-norm blocks, learned positions, GELU, separate $W_Q, W_K, W_V, W_O$ in every head. A circuit may be *factorized*,
as usual, or *collapsed*: one matrix $W_{QK}$ or $W_{OV}$ of the model's dimension in each head. Texts stand at the
right end of their rows, and positions count from a text's first token. Padding is hidden: what stands before a text,
and `PADDING` within it, which leaves the other tokens their positions.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from flowsim import _checks, _validate
from flowsim.errors import InvalidInput

PADDING = 0
"""Number of the token that is never seen."""
_SPREAD = 0.02  # of the weights at the start, as in GPT-2
_WIDER = 4  # hidden units of the MLP per dimension


class _Draws:
    """Standard normal arrays, one after the other out of one vector: each call of the generator would compile anew."""

    def __init__(self, key: PRNGKeyArray, size: int):
        self._values, self._used = jax.random.normal(key, (size,)), 0

    def __call__(self, *shape: int) -> Array:
        first, self._used = self._used, self._used + math.prod(shape)
        return self._values[first : self._used].reshape(shape)


class Factorized(eqx.Module):
    """Two matrices per head; `left` belongs to the keys (or outputs), `right` to the queries (or values)."""

    left: Float[Array, "heads d hidden"]
    right: Float[Array, "heads d hidden"]

    @staticmethod
    def start(draw: "_Draws", heads: int, d: int, spread: tuple[float, float]) -> "Factorized":
        """Gaussian weights."""
        shape = (heads, d, d // heads)
        return Factorized(spread[0] * draw(*shape), spread[1] * draw(*shape))

    def scores(self, x: Float[Array, "n d"]) -> Float[Array, "heads n n"]:
        r"""$x_i W_Q W_K^\top x_j$, queries first."""
        queries, keys = jnp.einsum("nd,hdk->hnk", x, self.right), jnp.einsum("nd,hdk->hnk", x, self.left)
        return jnp.einsum("hik,hjk->hij", queries, keys)

    def outputs(self, x: Float[Array, "heads n d"]) -> Float[Array, "n d"]:
        r"""$\sum_h W_O W_V x$."""
        return jnp.einsum("hnk,hdk->nd", jnp.einsum("hnd,hdk->hnk", x, self.right), self.left)


class Collapsed(eqx.Module):
    """One matrix per head: keys (or outputs) by queries (or values)."""

    weight: Float[Array, "heads d d"]

    @staticmethod
    def start(draw: "_Draws", heads: int, d: int, spread: tuple[float, float]) -> "Collapsed":
        """The product of the factors that `Factorized` would start from."""
        factors = Factorized.start(draw, heads, d, spread)
        return Collapsed(jnp.einsum("hdk,hek->hde", factors.left, factors.right))

    def scores(self, x: Float[Array, "n d"]) -> Float[Array, "heads n n"]:
        r"""$x_i W_{QK}^\top x_j$, queries first."""
        return jnp.einsum("je,hed,id->hij", x, self.weight, x)

    def outputs(self, x: Float[Array, "heads n d"]) -> Float[Array, "n d"]:
        r"""$\sum_h W_{OV} x$."""
        return jnp.einsum("hed,hnd->ne", self.weight, x)


_KINDS = {"F": Factorized, "C": Collapsed}


class Norm(eqx.Module):
    """Layer normalization with scale and shift."""

    scale: Float[Array, " d"]
    shift: Float[Array, " d"]

    def __call__(self, x: Float[Array, "n d"]) -> Float[Array, "n d"]:
        """Normalizes rows; the 1e-5 under the root is GPT-2's, part of the model."""
        centred = x - x.mean(axis=-1, keepdims=True)
        return centred / jnp.sqrt(jnp.mean(centred**2, axis=-1, keepdims=True) + 1e-5) * self.scale + self.shift


class Block(eqx.Module):
    """Attention, then an MLP, each after a norm and beside a residual connection."""

    qk: Factorized | Collapsed
    ov: Factorized | Collapsed
    before_attention: Norm
    before_mlp: Norm
    up: Float[Array, "wide d"]
    up_bias: Float[Array, " wide"]
    down: Float[Array, "d wide"]
    down_bias: Float[Array, " d"]
    score_scale: float = eqx.field(static=True)

    def __call__(self, x: Float[Array, "n d"], visible: Array) -> tuple[Float[Array, "n d"], Float[Array, "heads n n"]]:
        """The block's output and its attention, queries first."""
        inside = self.before_attention(x)
        scores = jnp.where(visible, self.score_scale * self.qk.scores(inside), -jnp.inf)
        attention = jax.nn.softmax(scores, axis=-1)
        x = x + self.ov.outputs(jnp.einsum("hij,jd->hid", attention, inside))
        hidden = jax.nn.gelu(self.before_mlp(x) @ self.up.T + self.up_bias)
        return x + hidden @ self.down.T + self.down_bias, attention


class Read(NamedTuple):
    """What the transformer makes of a text.

    Attributes:
        logits: of the classes, at the last position that is no padding; at the end of the row where there is none.
        span_logits: of being the first and the last token of the answer, minus infinity on padding.
        attention: of every layer and head, queries first; padding attends to itself alone.
    """

    logits: Float[Array, " classes"]
    span_logits: Float[Array, "2 n"]
    attention: Float[Array, "layers heads n n"]


class Transformer(eqx.Module):
    """The model; make one with `Transformer.start`."""

    tokens: Float[Array, "vocabulary d"]
    positions: Float[Array, "length d"]
    blocks: tuple[Block, ...]
    last: Norm
    head: Float[Array, "classes d"]
    head_bias: Float[Array, " classes"]
    span: Float[Array, "2 d"]

    @staticmethod
    def start(
        key: PRNGKeyArray,
        *,
        vocabulary: int,
        length: int,
        classes: int,
        d: int = 64,
        layers: int = 1,
        heads: int = 1,
        parameterization: str = "FAFO",
    ) -> "Transformer":
        r"""Random weights, as in GPT-2: Gaussian with 0.02, those into the residual stream smaller by $\sqrt{2L}$.

        Args:
            key: of the draw.
            vocabulary: number of words, padding included.
            length: longest text.
            classes: number of classes.
            d: dimension of the residual stream, a multiple of `heads`.
            layers: number of blocks.
            heads: of each block.
            parameterization: which circuits are factorized and which collapsed, attention letter first.

        Raises:
            InvalidInput: naming the argument, its value and the fix.
        """
        sizes = {"vocabulary": vocabulary, "length": length, "classes": classes, "layers": layers, "heads": heads}
        for what, value in sizes.items():
            _checks.whole(what, value, minimum=1)
        name = _validate.parameterization(parameterization)
        if _checks.whole("d", d, minimum=1) % heads:
            raise InvalidInput(f"d={d} is no multiple of heads={heads}; change one of them.")
        into_stream = _SPREAD / (2 * layers) ** 0.5
        one, zero = jnp.ones(d), jnp.zeros(d)
        # four matrices of the circuits and two of the MLP in each block, and what stands around the blocks
        draws = _Draws(key, layers * (4 + 2 * _WIDER) * d * d + (vocabulary + length + classes + 2) * d)

        def draw(*shape: int, spread: float = _SPREAD) -> Array:
            return spread * draws(*shape)

        blocks = tuple(
            Block(
                qk=_KINDS[name[0]].start(draws, heads, d, (_SPREAD, _SPREAD)),
                ov=_KINDS[name[2]].start(draws, heads, d, (into_stream, _SPREAD)),
                before_attention=Norm(one, zero),
                before_mlp=Norm(one, zero),
                up=draw(_WIDER * d, d),
                up_bias=jnp.zeros(_WIDER * d),
                down=draw(d, _WIDER * d, spread=into_stream),
                down_bias=zero,
                score_scale=(d // heads) ** -0.5,
            )
            for _ in range(layers)
        )
        return Transformer(
            tokens=draw(vocabulary, d),
            positions=draw(length, d),
            blocks=blocks,
            last=Norm(one, zero),
            head=draw(classes, d),
            head_bias=jnp.zeros(classes),
            span=draw(2, d),
        )

    def __call__(self, text: Int[Array, " n"], size: Int[Array, ""]) -> Read:
        """Reads one text.

        Args:
            text: token numbers at the right end of a row of at most `length`.
            size: how many of them belong to the text; what stands before is padding, as is every `PADDING` among them.
        """
        n = text.shape[0]
        place = jnp.arange(n)
        before = place < n - size
        padding = before | (text == PADDING)
        causal = place[:, None] >= place[None, :]
        # padding sees only itself, so that its rows are distributions too; nothing else sees padding
        seen = causal & ~padding[None, :] & ~padding[:, None]
        visible = seen | (place[:, None] == place[None, :])
        words = jnp.where(padding[:, None], 0.0, self.tokens[text])  # a text without any word is its position alone
        x = words + self.positions[jnp.where(before, 0, place - (n - size))]
        attentions = []
        for block in self.blocks:
            x, attention = block(x, visible)
            attentions.append(attention)
        x = self.last(x)
        spans = jnp.where(padding, -jnp.inf, self.span @ x.T)
        last = jnp.max(jnp.where(padding, -1, place))  # -1 is the end of the row
        return Read(self.head @ x[last] + self.head_bias, spans, jnp.stack(attentions))
