"""Made records in the official formats of HateXplain and of Linzen et al., with a sign that decides the label."""

import json

import numpy as np

WORDS = [f"w{i}" for i in range(12)]
SIGNS = {"odd": "zap", "plain": "zip"}


def posts(n, seed=0):
    """HateXplain posts: `odd` and `plain` ones hold their sign, which is their rationale; `normal` ones hold none."""
    rng = np.random.default_rng(seed)
    made = {}
    for i in range(n):
        label = ("normal", "odd", "plain")[i % 3]
        tokens = [WORDS[k] for k in rng.integers(0, 12, rng.integers(3, 9))]
        rationales = []
        if label in SIGNS:
            at = int(rng.integers(len(tokens)))
            tokens[at] = SIGNS[label]
            rationales = [[int(j == at) for j in range(len(tokens))]] * 2
        annotators = [{"label": label, "annotator_id": k, "target": []} for k in range(3)]
        made[f"post{i}"] = {
            "post_id": f"post{i}", "annotators": annotators, "rationales": rationales, "post_tokens": tokens
        }  # fmt: skip
    return made


def divisions(n):
    """Official ids: every fifth post for validation, the one after it for the test."""
    parts = {"train": [], "val": [], "test": []}
    for i in range(n):
        parts[{0: "val", 1: "test"}.get(i % 5, "train")].append(f"post{i}")
    return parts


def lines(n, seed=1):
    """Linzen et al.'s columns: `cat` goes with VBZ, `cats` with VBP, somewhere before the verb."""
    rng = np.random.default_rng(seed)
    made = ["sentence\torig_sentence\tverb_pos\tsubj_index\tverb_index"]
    for i in range(n):
        words = [WORDS[k] for k in rng.integers(0, 12, rng.integers(2, 8))]
        at = int(rng.integers(len(words)))
        words[at] = ("cat", "cats")[i % 2]
        verb, label = (("runs", "VBZ"), ("run", "VBP"))[i % 2]
        made.append("\t".join([" ".join([*words, verb, f"end{i}"]), "-", label, str(at + 1), str(len(words) + 1)]))
    return made


def put(folder, n=120, official=True):
    """Both data sets in a folder."""
    (folder / "dataset.json").write_text(json.dumps(posts(n)))
    if official:
        (folder / "post_id_divisions.json").write_text(json.dumps(divisions(n)))
    (folder / "agr_50_mostcommon_10K.tsv").write_text("\n".join(lines(n)) + "\n")
    return folder
