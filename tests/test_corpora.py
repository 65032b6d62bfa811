"""Readers of real texts: made records in the official formats, worked out by hand, and every way to be malformed.

With FLOWSIM_DATA set to a folder with the real files these are read too.
"""

import copy
import gzip
import json
import os
import pathlib

import numpy as np
import pytest

import flowsim as fs
from flowsim import corpora

POSTS = {
    "a": {
        "post_id": "a",
        "annotators": [{"label": name, "annotator_id": i, "target": []} for i, name in enumerate(("x", "y", "x"))],
        "rationales": [[0, 1, 0, 0], [0, 1, 1, 0]],
        "post_tokens": ["one", "two", "three", "four"],
    },
    "b": {
        "post_id": "b",
        "annotators": [{"label": "normal", "annotator_id": i, "target": []} for i in range(3)],
        "rationales": [],
        "post_tokens": ["one", "five"],
    },
    "c": {
        "post_id": "c",
        "annotators": [{"label": name, "annotator_id": i, "target": []} for i, name in enumerate("xyz")],
        "rationales": [[1]],
        "post_tokens": ["one"],
    },
}
HEADER = "sentence\torig_sentence\tverb_pos\tsubj_index\tverb_index"
LINES = [
    HEADER,
    'the "key to the cabinets is old\t-\tVBZ\t2\t6',
    "keys open doors\t-\tVBP\t1\t2",
]
SQUAD = {
    "version": "1.1",
    "data": [
        {
            "title": "Colours",
            "paragraphs": [
                {
                    "context": "The sky is deep-blue, often.",
                    "qas": [
                        {
                            "id": "q1",
                            "question": "What colour?",
                            "answers": [
                                {"text": "deep-blue", "answer_start": 11},
                                {"text": "blue", "answer_start": 16},
                            ],
                        },
                        {"id": "q2", "question": "When?", "answers": [{"text": "ofte", "answer_start": 22}]},
                    ],
                }
            ],
        }
    ],
}


def write(folder, name, content, zipped=False):
    path = folder / name
    data = (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(gzip.compress(data) if zipped else data)
    return path


@pytest.mark.parametrize("zipped", [False, True])
def test_hatexplain(tmp_path, zipped):
    corpus = corpora.hatexplain(write(tmp_path, "dataset.json", POSTS, zipped))
    first, second = corpus.examples
    assert first.label == "x"  # two of three
    assert first.relevant == (False, True, True, False)  # in either rationale
    assert first.tokens == ("one", "two", "three", "four")
    assert (second.label, second.relevant) == ("normal", None)
    assert corpus.labels == ("normal", "x")
    assert corpus.left_out == {"the three annotators disagree": 1}
    assert corpus.skipped == ()


@pytest.mark.parametrize("zipped", [False, True])
def test_subject_verb(tmp_path, zipped):
    corpus = corpora.subject_verb(write(tmp_path, "agr.tsv", "\n".join(LINES) + "\n", zipped))
    first, second = corpus.examples
    assert first.tokens == ("the", '"key', "to", "the", "cabinets")  # a lone quotation mark joins no lines
    assert first.relevant == (False, True, False, False, False)
    assert (first.label, second.label) == ("VBZ", "VBP")
    assert (second.tokens, second.relevant) == (("keys",), (True,))


def test_words_are_parted_by_plain_spaces_alone(tmp_path):
    line = "the  10\u00a0000 cats sleep\t-\tVBP\t3\t4"  # two spaces, and a word that holds one of another kind
    (example,) = corpora.subject_verb(write(tmp_path, "agr.tsv", f"{HEADER}\n{line}\n")).examples
    assert example.tokens == ("the", "10\u00a0000", "cats")
    assert example.relevant == (False, False, True)


def test_squad(tmp_path):
    corpus = corpora.squad(write(tmp_path, "dev.json", SQUAD))
    first, second = corpus.examples
    assert first.span is not None
    assert second.span is not None
    assert first.relevant is not None
    assert first.tokens[:4] == ("What", "colour", "?", "[SEP]")
    assert first.tokens[first.span[0] : first.span[1] + 1] == ("deep", "-", "blue")
    assert first.answers == ("deep-blue", "blue")
    assert second.tokens[second.span[0] : second.span[1] + 1] == ("often",)  # widened to the whole token
    assert sum(first.relevant) == 3
    assert {first.source, second.source} == {"Colours"}
    assert corpus.labels == ()


def change(*path, value):
    """The posts with one place of record a changed."""
    posts = copy.deepcopy(POSTS)
    here = posts["a"]
    for step in path[:-1]:
        here = here[step]
    if value is ...:
        del here[path[-1]]
    else:
        here[path[-1]] = value
    return posts


@pytest.mark.parametrize(
    ("posts", "fault"),
    [
        (change("post_tokens", value=[]), "no list of tokens"),
        (change("post_tokens", value=["one", 2, "three", "four"]), "no token"),
        (change("post_tokens", value=...), "post_tokens"),
        (change("annotators", value=[]), "0 entries, not 3"),
        (change("annotators", 0, value=None), "TypeError"),
        (change("annotators", 0, "label", value=["x"]), "label"),
        (change("rationales", 0, value=[0, 1]), "2 entries for 4 tokens"),
        (change("rationales", 0, value=[0, 1, 2, 0]), "besides 0 and 1"),
        (change("rationales", value=None), "TypeError"),
    ],
)
def test_a_malformed_post_is_named_and_can_be_skipped(tmp_path, posts, fault):
    path = write(tmp_path, "dataset.json", posts)
    with pytest.raises(fs.FileProblem) as caught:
        corpora.hatexplain(path)
    assert all(word in str(caught.value) for word in ("dataset.json", "record 1 ('a')", fault, "skip"))
    corpus = corpora.hatexplain(path, skip_bad=True)
    assert [example.key for example in corpus.examples] == ["b"]
    assert len(corpus.skipped) == 1
    assert fault in corpus.skipped[0]


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("keys open\t-\tVBP\t1", "too short"),
        ("keys open\t-\tVBP\tone\t2", "ValueError"),
        ("keys open\t-\tVBP\t2\t2", "do not fit"),
        ("keys open\t-\tVBP\t1\t3", "do not fit"),
        ("keys open\t-\tVBP\t0\t2", "do not fit"),
        ("keys open\t-\tNN\t1\t2", "'NN'"),
    ],
)
def test_a_malformed_line_is_named_and_can_be_skipped(tmp_path, line, fault):
    path = write(tmp_path, "agr.tsv", "\n".join([*LINES, line]))
    with pytest.raises(fs.FileProblem) as caught:
        corpora.subject_verb(path)
    assert all(word in str(caught.value) for word in ("agr.tsv", "line 4", fault))
    assert len(corpora.subject_verb(path, skip_bad=True).examples) == 2
    with pytest.raises(fs.InvalidInput, match="skip_bad='no' must be True or False"):
        corpora.subject_verb(path, skip_bad="no")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("answers", [], "no answer"),
        ("answers", [{"text": "deep-blue", "answer_start": 10}], "answer_start 10"),
        ("answers", [{"text": " ", "answer_start": 3}], "empty"),
        ("question", None, "TypeError"),
        ("id", ..., "id"),
    ],
)
def test_a_malformed_question_is_named_and_can_be_skipped(tmp_path, key, value, fault):
    content = copy.deepcopy(SQUAD)
    question = content["data"][0]["paragraphs"][0]["qas"][0]
    if value is ...:
        del question[key]
    else:
        question[key] = value
    path = write(tmp_path, "dev.json", content)
    with pytest.raises(fs.FileProblem) as caught:
        corpora.squad(path)
    assert all(word in str(caught.value) for word in ("dev.json", "article 1, paragraph 1, question 1", fault))
    assert [example.key for example in corpora.squad(path, skip_bad=True).examples] == ["q2"]


@pytest.mark.parametrize("read", [corpora.hatexplain, corpora.subject_verb, corpora.squad])
def test_files_that_are_none_of_theirs(tmp_path, read):
    with pytest.raises(fs.FileProblem, match="does not exist"):
        read(tmp_path / "missing")
    for content in (b"\x1f\x8bdamaged", b"\xff\xfe\x00", b"", b"[1, 2]", b'"text"', b"{}"):
        path = tmp_path / "other"
        path.write_bytes(content)
        with pytest.raises(fs.FileProblem, match="other"):
            read(path)
    for broken in ({"data": [3]}, {"data": [{"title": "t", "paragraphs": [None]}]}, {"data": []}):
        with pytest.raises(fs.FileProblem):
            read(write(tmp_path, "broken", broken))


def many(n):
    examples = tuple(corpora.Example(str(i), str(i // 2), ("word", f"w{i}"), label="x") for i in range(n))
    return corpora.Corpus("made", "made.json", examples, ("x",), {}, ())


def test_no_source_is_in_two_parts_and_the_draw_is_reproducible():
    corpus = many(200)
    parts = corpora.split(corpus, shares=(0.6, 0.2, 0.2), seed=3)
    sources = [{example.source for example in part} for part in (parts.train, parts.val, parts.test)]
    assert [len(each) for each in sources] == [60, 20, 20]
    assert set.union(*sources) == {example.source for example in corpus.examples}
    assert sum(map(len, sources)) == 100
    assert corpora.split(corpus, shares=(0.6, 0.2, 0.2), seed=3) == parts
    assert corpora.split(corpus, shares=(0.6, 0.2, 0.2), seed=4).train != parts.train
    # the order of the file does not matter
    turned = corpora.Corpus("made", "made.json", corpus.examples[::-1], ("x",), {}, ())
    assert corpora.split(turned, shares=(0.6, 0.2, 0.2), seed=3).train == parts.train[::-1]


def test_official_divisions(tmp_path):
    path = write(tmp_path, "divisions.json", {"train": ["0", "5"], "val": ["1"], "test": ["2", "unknown"]})
    parts = corpora.split(many(6), divisions=path)
    assert [[example.key for example in part] for part in (parts.train, parts.val, parts.test)] == [
        ["0", "5"],
        ["1"],
        ["2"],
    ]
    with pytest.raises(fs.FileProblem, match="no val example"):
        corpora.split(many(6), divisions=write(tmp_path, "d.json", {"train": ["0"], "val": ["9"], "test": ["1"]}))
    assert parts.how == "official divisions, which leave 2 texts in no part"
    for ids in (
        {"train": ["0"]},
        {"train": [["0"]], "val": ["1"], "test": ["2"]},
        {"train": [0], "val": [], "test": []},
    ):
        with pytest.raises(fs.FileProblem, match="does not list"):
            corpora.split(many(6), divisions=write(tmp_path, "e.json", ids))
    for part, shared in (("val", "0"), ("test", "0"), ("test", "1")):  # a test text that was learnt from
        ids = {"train": ["0"], "val": ["1"], "test": ["2"]}
        ids[part] = [*ids[part], shared]
        with pytest.raises(fs.FileProblem, match=f"names '{shared}' in both .* and {part}"):
            corpora.split(many(6), divisions=write(tmp_path, "f.json", ids))


@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.5, 0.4, 0.2), (1.0, 0.0, 0.0), (0.9, 0.05, 0.05), None])
def test_shares_that_cannot_be_used(shares):
    with pytest.raises(fs.InvalidInput, match="shares"):
        corpora.split(many(6), shares=shares)


def test_vocabulary_and_rows():
    texts = [
        corpora.Example(str(i), "", tuple(text.split()), label="x") for i, text in enumerate(("b a b", "a c", "d"))
    ]
    words = corpora.Vocabulary.of(texts[:2])
    assert words.words == ("[PAD]", "[UNK]", "a", "b", "c")  # by frequency, then alphabet
    rows, lengths = words.numbers(texts, 4)
    np.testing.assert_array_equal(rows, [[0, 3, 2, 3], [0, 0, 2, 4], [0, 0, 0, 1]])
    np.testing.assert_array_equal(lengths, [3, 2, 1])
    np.testing.assert_array_equal(words.numbers(texts, 2)[0], [[2, 3], [2, 4], [0, 1]])  # the end is kept
    hidden = corpora.Example("4", "", ("a", "[PAD]", "[UNK]"), label="x")
    np.testing.assert_array_equal(words.numbers([hidden], 3)[0], [[2, 1, 1]])  # no word of a text is padding
    assert corpora.Vocabulary.of(texts, at_least=2).words[2:] == ("a", "b")
    with pytest.raises(fs.InvalidInput, match="at_least=9"):
        corpora.Vocabulary.of(texts, at_least=9)


if "FLOWSIM_DATA" in os.environ:  # numbers of the files' own description; nothing is printed of the texts
    DATA = pathlib.Path(os.environ["FLOWSIM_DATA"])

    def test_real_files():
        posts = corpora.hatexplain(DATA / "hatexplain_val_test.json.gz")
        assert len(posts.examples) + sum(posts.left_out.values()) == 3846
        marked = [example.relevant for example in posts.examples if example.relevant is not None]
        assert 0.3 < np.mean([np.mean(each) for each in marked]) < 0.5  # about 40 % of the tokens
        assert len(corpora.subject_verb(DATA / "sva_ewt_linzen_columns.tsv.gz").examples) == 2237
        assert len(corpora.squad(DATA / "squad_dev11_exact_spans.json.gz").examples) == 9788
        assert len(corpora.squad(DATA / "xquad.en.json.gz").examples) == 1190


def test_lines_are_what_ends_with_a_newline_and_are_counted_as_they_stand(tmp_path):
    odd = ["a\u2028b cat sits here\t-\tVBZ\t2\t3", "", "the cat sits\t-\tVBZ\t9\t3"]
    with pytest.raises(fs.FileProblem, match="line 4: subj_index 9"):
        corpora.subject_verb(write(tmp_path, "odd.tsv", "\r\n".join([HEADER, *odd]) + "\r\n"))
    with pytest.raises(fs.FileProblem, match="line 2: field larger"):
        corpora.subject_verb(write(tmp_path, "long.tsv", "\n".join([HEADER, "x" * 200_000 + "\t-\tVBZ\t1\t2"])))


def test_damaged_archives_and_endless_nesting_are_refused(tmp_path):
    whole = gzip.compress(b"sentence\n" * 1000)
    path = tmp_path / "x.tsv.gz"
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 255, *[7] * 20]) + whole[41:])
    with pytest.raises(fs.FileProblem, match="cannot be read"):
        corpora.subject_verb(path)
    with pytest.raises(fs.FileProblem, match="is no JSON"):
        corpora.hatexplain(write(tmp_path, "deep.json", "[" * 200_000))


def test_what_is_wrong_with_a_file_is_said_once(tmp_path):
    path = tmp_path / "dataset.json"
    path.write_bytes(json.dumps(POSTS).replace("five", "fünf").encode("latin-1"))
    for read in (corpora.hatexplain, corpora.squad, corpora.subject_verb):
        with pytest.raises(fs.FileProblem, match=r"is no UTF-8 from byte \d+ on; save it as UTF-8\.$") as caught:
            read(path)
        assert str(caught.value).count("file ") == 1
    with pytest.raises(fs.FileProblem) as caught:
        corpora.hatexplain(tmp_path / "missing")
    assert str(caught.value).count("file ") == 1


def test_posts_of_one_name_are_refused_since_one_would_be_lost(tmp_path):
    twice = "{" + ", ".join(f'"a": {json.dumps(post)}' for post in POSTS.values()) + "}"
    with pytest.raises(fs.FileProblem, match="'a' stands twice"):
        corpora.hatexplain(write(tmp_path, "dataset.json", twice))
