"""Arrays as `table1` and `ratio-dial` make them, drawn by hand: two data sets of different size, known effects."""

import json

import numpy as np
import xarray as xr

ARMS = ("baseline", "raised", "raised, decay independent")
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
MULTIPLIERS = (0.1, 1.0, 10.0, 30.0, 100.0)
SIZES = {"hatexplain": 120, "subject-verb": 80}
EPOCHS = 8
EVEN = {"hatexplain": 0.4, "subject-verb": 0.1}


def source(test):
    return {
        "file": "texts.json.gz", "split": "official divisions", "train": 300, "val": 50, "test": test,
        "vocabulary": 1234, "left_out": {"ties": 7, "too long": 0}, "skipped": 2,
        "attention": "raw attention of the only layer",
        "removal": "delete", "end_token": True, "cut": 0, "also_training": 0.0, "last_relevant": 0.25,
    }  # fmt: skip


def table1_arrays(*, effect=0.15, gain=0.0, noise=0.01, seeds=5, right=0.75, key=0):
    """Attention of the raised arms is higher by `effect`, accuracy by `gain`; `noise` is that of a run."""
    return _arrays({arm: (0.0 if arm == "baseline" else effect) for arm in ARMS}, "arm", gain, noise, seeds, right, key)


def dial_arrays(*, effect=0.1, gain=0.0, noise=0.01, seeds=5, right=0.75, key=1, theory=0.1, multipliers=MULTIPLIERS):
    """Attention increases by `effect` per decade of the multiplier, the theory's by `theory`."""
    shifts = {m: effect * np.log10(m) for m in multipliers}
    dataset = _arrays(shifts, "multiplier", gain, noise, seeds, right, key)
    dense = np.geomspace(0.05, 200, 30)
    curve = 0.35 + theory * np.log10(dense)
    both = np.stack([curve] * len(SIZES))
    return dataset.drop_vars(["tuning_multiplier", "tuning_multiplier_loss"]).assign(
        theory_attention=(("dataset", "theory_multiplier"), both),
        theory_attention_equal_time=(("dataset", "theory_multiplier"), both - 0.05),
        theory_multiplier=dense,
        **{
            f"theory_{name}": ("dataset", values)
            for name, values in {
                "classes": [3, 2],
                "distinct": [40, 9],
                "common": [500, 300],
                "share": [0.4, 0.1],
                "length": [25.0, 10.0],
            }.items()
        },
    )


def _arrays(shifts, axis, gain, noise, seeds, right, key):
    draw, own = np.random.default_rng(key), np.random.default_rng(key + 100)
    n, examples = len(shifts), max(SIZES.values())
    run = (len(SIZES), n, seeds)
    shift = np.array(list(shifts.values()))[None, :, None, None] + noise * draw.normal(size=(*run, 1))
    better = gain * (np.arange(n) > list(shifts.values()).index(0.0))[None, :, None, None] + noise * draw.normal(
        size=(*run, 1)
    )
    even = np.clip(np.array(list(EVEN.values()))[:, None] + 0.05 * draw.normal(size=(len(SIZES), examples)), 0.01, 0.9)
    there = np.arange(examples)[None, :] < np.array(list(SIZES.values()))[:, None]
    marked = there & ~((np.arange(examples) % 3 == 0)[None, :] & (np.arange(len(SIZES)) == 0)[:, None])
    attention = np.clip(even[:, None, None, :] + 0.05 + shift + 0.08 * draw.normal(size=(*run, examples)), 0.001, 0.999)
    # ranks in a random order, so that the accuracy of a run is what it was told to be, to one example
    size = np.array(list(SIZES.values()))[:, None, None, None]
    rank = np.zeros((*run, examples))
    for where in np.ndindex(run):
        m = size[where[0], 0, 0, 0]
        rank[where][:m] = draw.permutation(m)
    correct = (rank + 0.5 < (right + better) * size).astype(float)
    probability = np.where(
        correct == 1, 0.55 + 0.4 * draw.random(correct.shape), 0.05 + 0.4 * draw.random(correct.shape)
    )
    base = (*run, examples, len(SHARES))
    rise = np.linspace(0.02, 0.3, len(SHARES))
    comp = rise + shift[..., None] + 0.05 * draw.normal(size=base)
    suff = 0.4 - rise - shift[..., None] + 0.05 * draw.normal(size=base)
    inside = np.broadcast_to(there[:, None, None, :], (*run, examples))
    epoch = np.arange(1, EPOCHS + 1)
    best = draw.integers(4, EPOCHS - 1, size=run)
    loss = 0.6 + 0.02 * (epoch - best[..., None]) ** 2 + 0.01 * draw.normal(size=(*run, EPOCHS))
    loss = np.where(epoch <= best[..., None] + 2, loss, np.nan)
    dims, full = ("dataset", axis, "seed"), ("dataset", axis, "seed", "example")
    settings = {
        "threshold": 0.5, "confidence": 0.6, "share": 0.2, "preset": "tuned", "bins": 12, "weight_decay": 0.01,
        "parameterization": "FAFO", "d": 64, "layers": 1, "heads": 1, "batch": 32, "max_epochs": 60, "patience": 5,
        "longest": 512,
    }  # fmt: skip
    return xr.Dataset(
        {
            "probability": (full, np.where(inside, probability, np.nan)),
            "correct": (full, np.where(inside, correct, np.nan)),
            "attention": (full, np.where(marked[:, None, None, :], attention, np.nan)),
            "largest": (full, np.where(inside, 0.5 + shift + 0.05 * own.random(correct.shape), np.nan)),
            "high_by_chance": (full, np.where(marked[:, None, None, :], np.full(correct.shape, 0.25), np.nan)),
            "uniform": (("dataset", "example"), np.where(marked, even, np.nan)),
            "comprehensiveness": ((*full, "share"), np.where(inside[..., None], comp, np.nan)),
            "sufficiency": ((*full, "share"), np.where(inside[..., None], suff, np.nan)),
            "validation_loss": ((*dims, "epoch"), loss),
            "validation_accuracy": ((*dims, "epoch"), 1 - loss / 2),
            "training_loss": ((*dims, "epoch"), loss - 0.1),
            "best_epoch": (dims, best),
            "status": (dims, np.zeros(run, dtype=int)),
            "base_rate": ("dataset", [1e-3, 3e-4]),
            "majority": ("dataset", [0.41, 0.55]),
            "tuning_base_rate": (("dataset", "candidate"), [[1e-3, 1e-2], [3e-4, 1e-3]]),
            "tuning_base_loss": (("dataset", "candidate"), [[0.9, np.nan], [0.5, 0.6]]),
            "tuning_multiplier": (("dataset", "factor"), [[10.0, 30.0]] * 2),
            "tuning_multiplier_loss": (("dataset", "factor"), [[0.9, 0.8], [0.7, 0.6]]),
            **({"multiplier": ("dataset", [30.0, 100.0])} if axis == "arm" else {}),
        },
        {"dataset": list(SIZES), axis: list(shifts), "seed": np.arange(seeds), "share": list(SHARES), "epoch": epoch},
        {"settings": json.dumps(settings), "sources": json.dumps({k: source(v) for k, v in SIZES.items()})},
    )  # fmt: skip


def diverged(arrays, **where):
    """The same arrays after one run diverged: its status says so, its numbers are NaN."""
    axis = "arm" if "arm" in arrays.dims else "multiplier"
    here = xr.ones_like(arrays.status, dtype=bool)
    for name, value in where.items():
        here = here & (arrays[name] == value)
    runs = {name: arrays[name].where(~here) for name in arrays.data_vars
            if {axis, "seed"} <= set(arrays[name].dims) and name != "status"}  # fmt: skip
    return arrays.assign({**runs, "status": arrays.status.where(~here, 4)})


def swapped(dataset):
    """The same arrays with the labels of baseline and raised exchanged."""
    order = [1, 0, 2] if "arm" in dataset.dims else list(range(dataset.sizes["multiplier"]))[::-1]
    axis = "arm" if "arm" in dataset.dims else "multiplier"
    return dataset.isel({axis: order}).assign_coords({axis: dataset[axis].values})
