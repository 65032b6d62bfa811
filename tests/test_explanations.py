"""Erasure, rollout and answers: cases worked out by hand, and implementations written another way."""

import collections
import itertools
import math

import numpy as np
import pytest

import flowsim as fs

WEIGHTS = np.array([0.0, 2.0, -1.0, 0.5, 3.0])  # of five words, for class 1


def predict(texts):
    """A bag of words: class 1 has probability sigma(sum of weights)."""
    p = np.array([1 / (1 + math.exp(-sum(WEIGHTS[i] for i in text))) for text in texts])
    return np.stack([1 - p, p], axis=1)


def sigma(x):
    return 1 / (1 + math.exp(-x))


def test_erasure_by_hand():
    found = fs.faithfulness(predict, [[1, 2, 3, 4]], [[0.3, 0.1, 0.2, 0.4]], shares=[0.5])
    # 4 and 1 are the explanation: class 1 has p = sigma(4.5), without them sigma(-0.5), with them alone sigma(5)
    assert found.comprehensiveness[0, 0] == pytest.approx(sigma(4.5) - sigma(-0.5), rel=1e-12)
    assert found.sufficiency[0, 0] == pytest.approx(sigma(4.5) - sigma(5.0), rel=1e-12)
    assert found.removal == "delete"


def test_the_class_is_the_one_predicted_from_the_whole_text():
    found = fs.faithfulness(predict, [[2, 2]], [[1.0, 0.0]], shares=[0.01])
    # class 0: p = sigma(2); at least one token is taken, the first of equals
    assert found.comprehensiveness[0, 0] == pytest.approx(sigma(2.0) - sigma(1.0), rel=1e-12)
    equal = fs.faithfulness(predict, [[4, 1]], [[0.5, 0.5]], shares=[0.5])
    assert equal.sufficiency[0, 0] == pytest.approx(sigma(5.0) - sigma(3.0), rel=1e-12)


def test_against_a_loop():
    rng = np.random.default_rng(0)
    texts = [rng.integers(1, 5, size=n) for n in (3, 7, 30)]
    importance = [rng.random(len(text)) for text in texts]
    always = [rng.random(len(text)) < 0.2 for text in texts]
    for removal, replacement in (("delete", None), ("mask", 0), ("pad", 0)):
        found = fs.faithfulness(predict, texts, importance, removal=removal, replacement=replacement, always=always)
        for i, (text, score, keep) in enumerate(zip(texts, importance, always, strict=True)):
            free = [j for j in range(len(text)) if not keep[j]]
            p = predict([text])[0]
            guess = int(np.argmax(p))
            for s, share in enumerate(found.shares):
                k = max(1, math.ceil(round(share * len(free), 9)))
                chosen = set(sorted(free, key=lambda j: -score[j])[:k])
                without = [t for j, t in enumerate(text) if j not in chosen]
                alone = [t for j, t in enumerate(text) if j in chosen or keep[j]]
                # word 0 has weight 0, so that replacing by it is the same as deleting for this model
                assert found.comprehensiveness[i, s] == pytest.approx(
                    p[guess] - predict([without])[0][guess], abs=1e-14
                )
                assert found.sufficiency[i, s] == pytest.approx(p[guess] - predict([alone])[0][guess], abs=1e-14)
        assert found.aopc_sufficiency == pytest.approx(np.mean(found.sufficiency), rel=1e-14)


def test_a_share_of_thirty_tokens_is_a_whole_number_of_them():
    text, score = [1] * 30, np.arange(30.0)
    seen = []
    fs.faithfulness(lambda texts: seen.append([len(t) for t in texts]) or predict(texts), [text], [score], shares=[0.1])
    assert seen == [[30], [27], [3]]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"removal": "hide"}, ["removal='hide'", "delete"]),
        ({"removal": "mask"}, ["replacement=None", "mask"]),
        ({"replacement": 3}, ["replacement=3", "leave it away"]),
        ({"removal": "mask", "replacement": 1.5}, ["replacement=1.5", "whole number"]),
        ({"shares": [0.0]}, ["shares"]),
        ({"shares": [1.5]}, ["shares=(1.5,)"]),
        ({"shares": []}, ["shares"]),
        ({"importance": [[0.1]]}, ["text 0", "(2,)"]),
        ({"importance": [[0.1, np.nan]]}, ["importance[0]", "not finite"]),
        ({"importance": []}, ["1 texts, 0 of importance"]),
        ({"always": [[True, True]]}, ["text 0", "may be removed"]),
        ({"predict": lambda texts: np.ones((len(texts), 2))}, ["no probabilities"]),
        ({"predict": lambda _: np.ones(3)}, ["shape (3,)"]),
    ],
)
def test_bad_input_of_erasure_is_one_sentence(changes, words):
    given = {"predict": predict, "texts": [[1, 2]], "importance": [[0.1, 0.2]], **changes}
    with pytest.raises(fs.InvalidInput) as caught:
        fs.faithfulness(**given)
    assert all(word in str(caught.value) for word in words)


def test_rollout_by_hand():
    uniform, first = np.full((2, 2), 0.5), np.array([[1.0, 0.0], [1.0, 0.0]])
    attention = np.stack([uniform, first])[:, None]  # two layers with one head
    np.testing.assert_allclose(fs.attention_rollout(attention, residual=0.0), first @ uniform, rtol=1e-15)
    # half and half: [[1, 0], [.5, .5]] @ [[.75, .25], [.25, .75]]
    np.testing.assert_allclose(fs.attention_rollout(attention), [[0.75, 0.25], [0.5, 0.5]], rtol=1e-15)
    np.testing.assert_array_equal(fs.attention_rollout(attention[:1], residual=0.0), uniform)


def test_rollout_is_the_sum_over_paths():
    rng = np.random.default_rng(1)
    attention = rng.dirichlet(np.ones(3), size=(2, 3, 2, 3))  # texts, layers, heads, queries
    rolled = fs.attention_rollout(attention, residual=0.3)
    assert rolled.shape == (2, 3, 3)
    np.testing.assert_allclose(rolled.sum(axis=-1), 1, rtol=1e-14)
    for text in range(2):
        step = [0.7 * attention[text, layer].mean(axis=0) + 0.3 * np.eye(3) for layer in range(3)]
        expected = np.zeros((3, 3))
        for a, b, c, d in itertools.product(range(3), repeat=4):
            expected[d, a] += step[2][d, c] * step[1][c, b] * step[0][b, a]
        np.testing.assert_allclose(rolled[text], expected, rtol=1e-13)


@pytest.mark.parametrize(
    ("attention", "residual", "words"),
    [
        (np.ones((2, 3, 3)), 0.5, ["shape (2, 3, 3)"]),
        (np.ones((1, 1, 2, 3)), 0.5, ["shape (1, 1, 2, 3)"]),
        (np.ones((1, 1, 2, 2)), 0.5, ["no distribution"]),
        (np.eye(2)[None, None], 1.0, ["residual=1"]),
        (np.eye(2)[None, None], -0.1, ["residual"]),
    ],
)
def test_bad_input_of_rollout_is_one_sentence(attention, residual, words):
    with pytest.raises(fs.InvalidInput) as caught:
        fs.attention_rollout(attention, residual=residual)
    assert all(word in str(caught.value) for word in words)


@pytest.mark.parametrize(
    ("answer", "right", "f1", "exact"),
    [
        ("The  Cat!", ["cat"], 1.0, 1.0),
        ("the old cat", ["cat", "old dog house"], 2 / 3, 0.0),  # p = 1/2, r = 1
        ("a cat cat", ["cat dog"], 0.5, 0.0),  # one shared of two and two
        ("dog", ["cat"], 0.0, 0.0),
        ("", ["cat"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),  # nothing left of either
        ("anthem", ["them"], 0.0, 0.0),  # articles are whole words
        ("U.S.", ["US"], 1.0, 1.0),
    ],
)
def test_answers_by_hand(answer, right, f1, exact):
    assert fs.answer_f1(answer, right) == pytest.approx(f1, rel=1e-14)
    assert fs.exact_match(answer, right) == exact


def test_answer_f1_is_the_harmonic_mean():
    rng = np.random.default_rng(2)
    for _ in range(200):
        one, two = (rng.choice(["x", "y", "z"], size=rng.integers(1, 6)).tolist() for _ in range(2))
        left = collections.Counter(two)
        shared = 0
        for word in one:
            if left[word] > 0:
                left[word] -= 1
                shared += 1
        precision, recall = shared / len(one), shared / len(two)
        expected = 2 * precision * recall / (precision + recall) if shared else 0.0
        assert fs.answer_f1(" ".join(one), [" ".join(two)]) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("right", [[], "cat"])
def test_answers_need_a_list_of_right_ones(right):
    with pytest.raises(fs.InvalidInput, match="right="):
        fs.answer_f1("cat", right)
    with pytest.raises(fs.InvalidInput, match="right="):
        fs.exact_match("cat", right)
