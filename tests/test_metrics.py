"""The metrics of attention and prediction: cases worked out by hand, and loops that follow the words."""

import numpy as np
import pytest

import flowsim as fs


def test_a_heat_map_by_hand():
    #  (attention, probability): corners, edges, and the interior of a 4 x 2 map
    attention = [0.0, 0.25, 0.249, 0.5, 1.0, 1.0, 0.99, 0.75]
    probability = [0.0, 0.5, 0.499, 1.0, 1.0, 0.0, 0.6, 0.2]
    expected = np.array([[2, 0], [0, 1], [0, 1], [2, 2]]) / 8
    np.testing.assert_array_equal(fs.dtap(attention, probability, bins=(4, 2)), expected)
    np.testing.assert_array_equal(fs.dtap([1.0], [1.0], bins=3), np.eye(3)[2][:, None] * np.eye(3)[2])
    np.testing.assert_array_equal(fs.dtap([0.3, 0.9], [0.1, 1.0], bins=1), [[1.0]])


@pytest.mark.parametrize("bins", [(7, 3), (10, 10), (1, 49)])
def test_a_heat_map_against_a_loop(bins):
    rng = np.random.default_rng(3)
    # on the edges as well: 0.1 * 3 is not 3/10, and 7 * (1/7) rounds to 1
    edges = np.concatenate([np.arange(bins[0] + 1) / bins[0], np.arange(bins[1] + 1) / bins[1]])
    attention = np.concatenate([rng.uniform(size=300), edges, np.nextafter(edges, 0)])
    probability = rng.permutation(attention)
    counted = np.zeros(bins)
    for a, p in zip(attention, probability, strict=True):
        place = []
        for value, n in zip((a, p), bins, strict=True):
            place.append(max(j for j in range(n) if value >= j / n))
        counted[tuple(place)] += 1
    found = fs.dtap(attention, probability, bins=bins)
    np.testing.assert_allclose(found, counted / attention.size, rtol=1e-15)
    assert found.sum() == pytest.approx(1, abs=1e-14)


def test_shares_of_attention_by_hand():
    attention, probability = [0.1, 0.5, 0.9, 0.7], [0.9, 0.4, 0.8, 0.5]
    assert fs.attention_confidence(attention) == 0.75  # a threshold is reached by equality
    np.testing.assert_array_equal(fs.attention_confidence(attention, [0.0, 0.6, 0.95]), [1.0, 0.5, 0.0])
    # confident at 0.5: examples 0, 2, 3; of these 2 and 3 attend
    assert fs.attention_model_confidence(attention, probability) == 2 / 3
    assert fs.attention_model_confidence(attention, probability, denominator="all") == 0.5
    table = fs.attention_model_confidence(attention, probability, [[0.6], [0.8]], confidence=[0.5, 0.85])
    np.testing.assert_array_equal(table, [[2 / 3, 0.0], [1 / 3, 0.0]])
    nobody = fs.attention_model_confidence(attention, probability, [0.1, 0.2], confidence=1.0)
    assert np.isnan(nobody).all()
    assert fs.attention_model_confidence(attention, probability, 0.1, confidence=1.0, denominator="all") == 0.0


def test_shares_of_attention_against_a_loop():
    rng = np.random.default_rng(8)
    attention, probability = rng.beta(2, 1, 400), rng.beta(1, 2, 400)
    for tau in (0.2, 0.6):
        assert fs.attention_confidence(attention, tau) == sum(a >= tau for a in attention) / 400
        for kappa in (0.3, 0.8):
            sure = [(a, p) for a, p in zip(attention, probability, strict=True) if p >= kappa]
            both = sum(a >= tau for a, _ in sure)
            found = fs.attention_model_confidence(attention, probability, tau, confidence=kappa)
            assert found == both / len(sure)
            assert (
                fs.attention_model_confidence(attention, probability, tau, confidence=kappa, denominator="all")
                == both / 400
            )


def test_mean_relevant_attention():
    attention = [[0.25, 0.25, 0.5, 0.0], [0.125, 0.125, 0.25, 0.5]]
    relevant = [[True, False, True, False], [False, False, False, True]]
    assert fs.mean_relevant_attention(attention, relevant) == (0.75 + 0.5) / 2
    present = [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert fs.mean_relevant_attention(attention, relevant, present) == 0.625
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(9), 50).astype(np.float32)  # sums off 1 by rounding
    mask = rng.uniform(size=rows.shape) < 0.5
    mask[:, 0] = True
    by_loop = np.mean([sum(float(a) for a, r in zip(row, marks, strict=True) if r)
                       for row, marks in zip(rows, mask, strict=True)])  # fmt: skip
    assert fs.mean_relevant_attention(rows, mask) == pytest.approx(by_loop, abs=1e-14)


ROW = [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: fs.dtap([0.1, 0.2], [0.1]), ["probability", "(1,)", "(2,)"]),
        (lambda: fs.dtap([0.1, 1.2], [0.1, 0.1]), ["attention[1]=1.2"]),
        (lambda: fs.dtap([0.1], [float("nan")]), ["probability[0]=nan"]),
        (lambda: fs.dtap([], []), ["attention", "(0,)"]),
        (lambda: fs.dtap([0.1], [0.1], bins=0), ["bins=0"]),
        (lambda: fs.dtap([0.1], [0.1], bins=10**9), ["bins=1000000000", "4096"]),
        (lambda: fs.mean_relevant_attention(ROW, np.ma.array([[1, 0]], mask=[[0, 1]])), ["relevant", "masked"]),
        (lambda: fs.dtap([0.1], [0.1], bins=(2, 2, 2)), ["bins=(2, 2, 2)"]),
        (lambda: fs.attention_confidence([0.1], 1.5), ["threshold=1.5"]),
        (lambda: fs.attention_confidence(0.3), ["attention", "()"]),
        (lambda: fs.attention_model_confidence([0.1], [0.1], confidence=-1), ["confidence=-1"]),
        (lambda: fs.attention_model_confidence([0.1], [0.1], denominator="both"), ["denominator='both'", "confident"]),
        (lambda: fs.attention_model_confidence([0.1], [0.1], [0.1, 0.2], confidence=[0.1, 0.2, 0.3]), ["broadcast"]),
        (lambda: fs.mean_relevant_attention([0.5, 0.5], [1, 0]), ["attention", "(2,)"]),
        (lambda: fs.mean_relevant_attention(ROW, [[1]]), ["relevant", "(1, 1)"]),
        (lambda: fs.mean_relevant_attention(ROW, [[2, 0]]), ["relevant", "0 and 1"]),
        (lambda: fs.mean_relevant_attention(ROW, [[0, 0]]), ["relevant[0]", "no token"]),
        (lambda: fs.mean_relevant_attention([[0.5, 0.4]], [[1, 0]]), ["attention[0]", "0.9"]),
        (lambda: fs.mean_relevant_attention([[-0.5, 1.5]], [[1, 0]]), ["attention[0, 0]=-0.5"]),
        (lambda: fs.mean_relevant_attention(ROW, [[1, 0]], [[1, 0]]), ["present[0]", "attended"]),
        (lambda: fs.mean_relevant_attention([[1.0, 0.0]], [[1, 1]], [[1, 0]]), ["present[0]", "relevant"]),
    ],
)
def test_refusals(call, words):
    with pytest.raises(fs.InvalidInput) as caught:
        call()
    assert all(word in str(caught.value) for word in words)
