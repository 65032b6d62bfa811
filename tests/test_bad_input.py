"""Bad input through the Python functions: one sentence that names argument, value and fix."""

import json
import math

import h5py
import numpy as np
import pytest

import flowsim as fs

TASK = fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31))
SOLVERS = {
    "exact": lambda **changes: fs.exact(TASK, **{"ratio": 1.0, "times": [1.0, 2.0], **changes}),
    "integrate": lambda **changes: fs.integrate(TASK, **{"ratio": 1.0, "times": [1.0, 2.0], **changes}),
    "descend": lambda **changes: fs.descend(TASK, **{"ratio": 1.0, "lr": 0.1, "steps": 10, **changes}),
    "train": lambda **changes: fs.train(TASK, **{"ratio": 1.0, "lr": 0.1, "steps": 10, **changes}),
}
TIMED = ("exact", "integrate")
STEPPED = ("descend", "train")
MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
# values that are no positive finite number
NOT_A_RATE = [
    -1.0,
    math.nan,
    math.inf,
    -math.inf,
    "abc",
    "1",
    None,
    True,
    1j,
    [],
    [1.0, -1.0],
    [1.0, math.nan],
    [[1.0]],
]


def one_sentence(call, *fragments):
    with pytest.raises(fs.InvalidInput) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert message.endswith(".")
    for fragment in fragments:
        assert fragment in message, (fragment, message)


@pytest.mark.parametrize("value", NOT_A_RATE, ids=repr)
@pytest.mark.parametrize("solver", SOLVERS)
def test_ratio(solver, value):
    one_sentence(lambda: SOLVERS[solver](ratio=value), "ratio")


@pytest.mark.parametrize("value", [MASKED, [np.ma.masked, 1.0], {1.0, 2.0}, np.ma.masked, bytearray(b"1")], ids=repr)
def test_what_numpy_would_read_as_numbers(value):
    one_sentence(lambda: SOLVERS["exact"](ratio=value), "ratio=")


def test_the_most_steps_of_the_integrator():
    one_sentence(lambda: SOLVERS["integrate"](max_steps=10**30), "max_steps", "at most")


@pytest.mark.parametrize("losses", [{"log_losses": [1000.0]}, {"losses": [1e300]}], ids=repr)
def test_losses_above_the_start(losses):
    ((name, (value,)),) = losses.items()
    one_sentence(lambda: SOLVERS["exact"](times=None, **losses), f"{name} holds {value!r}")


@pytest.mark.parametrize("value", [[], None, {}], ids=repr)
def test_compile(value):
    one_sentence(lambda: fs.compile(value), "flow=")


@pytest.mark.parametrize("value", [0.0, *NOT_A_RATE], ids=repr)
@pytest.mark.parametrize("solver", STEPPED)
def test_lr(solver, value):
    one_sentence(lambda: SOLVERS[solver](lr=value), "lr")


@pytest.mark.parametrize("value", [0, -1, 1.5, math.nan, "ten", None, True, 10**30], ids=repr)
@pytest.mark.parametrize("name", ["steps", "points"])
@pytest.mark.parametrize("solver", STEPPED)
def test_steps_and_points(solver, name, value):
    one_sentence(lambda: SOLVERS[solver](**{name: value}), name)


@pytest.mark.parametrize(
    "value",
    [[], [2.0, 1.0], [1.0, 1.0], [-1.0, 1.0], [1.0, math.nan], [1.0, math.inf], ["a"], "soon", [[1.0, 2.0]], [None, 1]],
    ids=repr,
)
@pytest.mark.parametrize("solver", TIMED)
def test_times(solver, value):
    one_sentence(lambda: SOLVERS[solver](times=value), "times")


@pytest.mark.parametrize("value", [[], [2.0, 1.0], [1.0, 1.0], [1.0, math.nan], [1.0, math.inf], "soon"], ids=repr)
@pytest.mark.parametrize("solver", TIMED)
def test_log_times(solver, value):
    one_sentence(lambda: SOLVERS[solver](times=None, log_times=value), "log_times")


@pytest.mark.parametrize("solver", TIMED)
def test_no_times_and_two_kinds_of_times(solver):
    one_sentence(lambda: SOLVERS[solver](times=None), "times=", "log_times=")
    one_sentence(lambda: SOLVERS[solver](log_times=[1.0]), "times=", "log_times=")


@pytest.mark.parametrize("value", [math.nan, math.inf, "abc", {1.0}, np.ma.masked], ids=repr)
@pytest.mark.parametrize("name", ["margin0", "score_gap0"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_start(solver, name, value):
    one_sentence(lambda: SOLVERS[solver](**{name: value}), name)


@pytest.mark.parametrize("value", ["caco", "XYZ", None, 3], ids=repr)
@pytest.mark.parametrize("solver", SOLVERS)
def test_parameterization(solver, value):
    one_sentence(lambda: SOLVERS[solver](parameterization=value), "parameterization", repr(value), "CACO")


@pytest.mark.parametrize("value", [None, "task.toml", 3], ids=repr)
@pytest.mark.parametrize("solver", ["exact", "integrate", "descend", "train"])
def test_task_that_is_none(solver, value):
    arguments = {"times": [1.0]} if solver in TIMED else {"lr": 0.1, "steps": 10}
    one_sentence(lambda: getattr(fs, solver)(value, ratio=1.0, **arguments), "task")


FIXED = fs.FixedContext(distinct=3, common=3)


@pytest.mark.parametrize(
    ("make", "fragments"),
    [
        (lambda: fs.Task(classes=1, distinct=2, common=2, context=FIXED), ["classes=1", "at least 2"]),
        (lambda: fs.Task(classes=2.5, distinct=2, common=2, context=FIXED), ["classes=2.5", "whole"]),
        (lambda: fs.Task(classes="many", distinct=2, common=2, context=FIXED), ["classes='many'"]),
        (lambda: fs.Task(classes=2, distinct=0, common=2, context=FIXED), ["distinct", "0"]),
        (lambda: fs.Task(classes=2, common=2, context=FIXED), ["distinct"]),
        (lambda: fs.Task(classes=2, distinct=2, context=FIXED), ["common"]),
        (lambda: fs.Task(classes=2, distinct=2, common=2, context=None), ["context=None"]),
        (lambda: fs.Task(classes=2, distinct=2, common=2, context=FIXED, query="all"), ["query='all'", "shared"]),
        (lambda: fs.Task(classes=2, distinct=2, common=2, context=FIXED, other_outputs=-1), ["other_outputs=-1"]),
        (lambda: fs.Group("a", "odd"), ["role='odd'", "distinct, common, null"]),
        (lambda: fs.Group("a", "distinct", types=math.nan), ["types", "nan"]),
        (lambda: fs.FixedContext(), ["empty"]),
        (lambda: fs.FixedContext(distinct=0, common=0), ["no positions"]),
        (lambda: fs.FixedContext(distinct=-1, common=3), ["distinct=-1", "negative"]),
        (lambda: fs.FixedContext(distinct=math.inf, common=3), ["distinct", "finite"]),
        (lambda: fs.BinomialContext(length=0, gamma=0.5), ["length=0"]),
        (lambda: fs.BinomialContext(length=5, gamma=1.5), ["gamma=1.5", "[0, 1]"]),
        (lambda: fs.BinomialContext(length=5, gamma=math.nan), ["gamma", "finite"]),
        (lambda: fs.MixtureContext([]), ["empty"]),
        (lambda: fs.MixtureContext([(0.5, (1, 2)), (0.4, (2, 1))]), ["sum to 0.9", "1"]),
        (lambda: fs.MixtureContext([(1.5, (1, 2)), (-0.5, (2, 1))]), ["1.5", "[0, 1]"]),
        (lambda: fs.MixtureContext([(1.0, (0, 0))]), ["no positions"]),
        (lambda: fs.MixtureContext({(1.0, (1, 2))}), ["compositions", "list"]),  # pyright: ignore[reportArgumentType]
        (lambda: fs.MixtureContext([(1.0, {1, 2})]), ["counts 0={1, 2}", "list"]),  # pyright: ignore[reportArgumentType]
        (lambda: fs.MixtureContext([(1.0, np.array(3.0))]), ["counts 0=array(3.)"]),
        (lambda: fs.FixedContext(counts=np.array(3.0)), ["counts=array(3.)"]),  # pyright: ignore[reportArgumentType]
        (lambda: fs.FixedContext(counts=b"1"), ["counts=b'1'"]),
        (lambda: fs.FixedContext(counts={3, 4}), ["counts={3, 4}"]),  # pyright: ignore[reportArgumentType]
        (lambda: fs.FixedContext(counts=MASKED), ["counts[1]", "mask"]),
        (lambda: fs.Group("a", np.array(["distinct", "common"])), ["role=array"]),  # pyright: ignore[reportArgumentType]
        (lambda: fs.Task(classes=10**400, distinct=2, common=2, context=FIXED), ["classes", "too large"]),
        (lambda: fs.Task(classes=10**5000, distinct=2, common=2, context=FIXED), ["classes", "too large"]),
        (lambda: fs.Task(classes=2, distinct=2, common=2, context=np.ones((99, 99))), ["context=array"]),
        (lambda: fs.BinomialContext(length=10**300, gamma=0.5), ["length", "1000000"]),
        (lambda: fs.Start(ov_standard=np.ones((2, 2))), ["ov_standard", "(2, 2)"]),  # pyright: ignore[reportArgumentType]
    ],
)
def test_tasks(make, fragments):
    one_sentence(make, *fragments)


@pytest.mark.parametrize("solver", STEPPED)
def test_diverging_lane_says_at_which_step_and_the_others_are_kept(solver):
    # the symmetric task is separable, so that only a step beyond float64 makes it diverge
    both = SOLVERS[solver](ratio=[1.0, 1e200], lr=[0.1, 1e200], steps=20, points=5)
    assert both.axes == ("ratio", "lr")
    diverged = np.array([[False, False], [False, True]])
    assert (np.asarray(both.status) == np.where(diverged, fs.Status.DIVERGED, fs.Status.OK)).all()
    assert np.asarray(both.n_steps)[1, 1] == 0
    assert (np.isfinite(np.asarray(both.margin)).all(axis=-1) == ~diverged).all()
    assert "lr" in fs.Status.DIVERGED.message


@pytest.fixture(scope="module")
def trajectory():
    log_times = np.linspace(0.0, 5.0, 6)
    return fs.Trajectory.from_arrays(margin=log_times, log_odds=log_times, score_gap=log_times, log_times=log_times)


def test_saving_over_a_file_or_into_no_folder(trajectory, tmp_path):
    trajectory.save(tmp_path / "x.nc")
    before = (tmp_path / "x.nc").read_bytes()
    one_sentence(lambda: trajectory.save(tmp_path / "x.nc"), "x.nc", "exists", "overwrite=True")
    assert (tmp_path / "x.nc").read_bytes() == before
    one_sentence(lambda: trajectory.save(tmp_path / "missing" / "x.nc"), "x.nc", "does not exist")
    one_sentence(lambda: trajectory.save(tmp_path / "x.csv"), "x.csv", ".nc")
    assert [item.name for item in tmp_path.iterdir()] == ["x.nc"]


@pytest.mark.parametrize("value", [None, 3, b"x.nc", "x\0.nc"], ids=repr)
def test_paths_that_are_none(trajectory, value):
    figure = fs.plot.theory_vs_simulation(trajectory)
    for call in (trajectory.save, fs.Trajectory.load, fs.Task.from_toml, lambda path: fs.plot.savefig(figure, path)):
        one_sentence(lambda call=call: call(value), "path=")
    one_sentence(lambda: fs.plot.savefig(None, "x.png"), "figure=None")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", ["a", None, 0.5, np.array(0.5), np.array([0, 1])], ids=repr)
def test_lanes_that_are_none(value):
    trajectory = SOLVERS["exact"](ratio=[1.0, 2.0])
    one_sentence(lambda: trajectory.lane(ratio=value), "ratio=", "index")
    assert trajectory.lane(ratio=np.int64(1)).coords["ratio"] == 2.0


def test_loading_what_is_missing_truncated_or_foreign(trajectory, tmp_path):
    one_sentence(lambda: fs.Trajectory.load(tmp_path / "x.nc"), "x.nc", "does not exist")
    trajectory.save(tmp_path / "x.nc")
    whole = (tmp_path / "x.nc").read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 1):
        (tmp_path / "cut.nc").write_bytes(whole[:size])
        one_sentence(lambda: fs.Trajectory.load(tmp_path / "cut.nc"), "cut.nc")
    with h5py.File(tmp_path / "foreign.nc", "w") as file:
        file["margin"] = [1.0, 2.0]
    one_sentence(lambda: fs.Trajectory.load(tmp_path / "foreign.nc"), "foreign.nc")


@pytest.mark.parametrize("shared", [True, False])
def test_loading_a_file_with_one_byte_of_the_numbers_changed(tmp_path, shared):
    trajectory = SOLVERS["exact"](ratio=[1.0, 2.0] if shared else 1.0, times=np.linspace(1, 9, 50))
    trajectory.save(tmp_path / "x.nc")
    whole = bytearray((tmp_path / "x.nc").read_bytes())
    for name in ("margin", "log_loss", "log_time"):
        at = whole.find(np.asarray(getattr(trajectory, name)).tobytes()[:64])
        assert at > 0
        damaged = whole.copy()
        damaged[at + 17] ^= 1
        (tmp_path / "damaged.nc").write_bytes(damaged)
        one_sentence(lambda: fs.Trajectory.load(tmp_path / "damaged.nc"), "damaged.nc", "is damaged, ")
    with h5py.File(tmp_path / "x.nc", "a") as file:
        file["status"][...] = 77  # pyright: ignore[reportIndexIssue]
    one_sentence(lambda: fs.Trajectory.load(tmp_path / "x.nc"), "x.nc", "status=77")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("format", "flowsim trajectory 0"), ("task", "{"), ("method", "magic"), ("settings", "x"), ("scalar_coords", "")],
)
def test_loading_a_file_with_one_attribute_spoiled(trajectory, tmp_path, attribute, value):
    trajectory.save(tmp_path / "x.nc")
    with h5py.File(tmp_path / "x.nc", "a") as file:
        file.attrs[attribute] = value
    one_sentence(lambda: fs.Trajectory.load(tmp_path / "x.nc"), "x.nc")


@pytest.mark.parametrize("name", ["margin", "status", "log_time"])
def test_loading_a_file_with_one_variable_missing(trajectory, tmp_path, name):
    trajectory.save(tmp_path / "x.nc")
    with h5py.File(tmp_path / "x.nc", "a") as file:
        del file[name]
    one_sentence(lambda: fs.Trajectory.load(tmp_path / "x.nc"), "x.nc")


@pytest.mark.parametrize("text", ["", "classes = 4", "not toml", json.dumps({"classes": 4})], ids=repr)
def test_task_files(tmp_path, text):
    (tmp_path / "task.toml").write_text(text)
    one_sentence(lambda: fs.Task.from_toml(tmp_path / "task.toml"), "task.toml")


def test_verify_refuses_what_is_no_trajectory():
    one_sentence(lambda: fs.verify([1.0, 2.0]), "trajectory")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("argument", ["ratio", "times", "margin0"])
def test_iterators(argument):
    one_sentence(lambda: SOLVERS["exact"](**{argument: iter([1.0])}), f"{argument}=<list_iterator")


@pytest.mark.parametrize("value", [np.zeros((2, 2)), "x" * 500, [1.0, [2]]], ids=["array", "long", "ragged"])
def test_what_is_no_task_or_parameterization(value):
    for call in (fs.exact, fs.integrate):
        one_sentence(lambda call=call: call(value, ratio=1.0, times=1.0), "task=")
    one_sentence(lambda: fs.derive(value), "task=")
    with pytest.raises(fs.InvalidInput, match="parameterization=") as caught:
        fs.derive(TASK, value)
    assert len(str(caught.value)) < 150
