"""What every experiment shares: settings, provenance, files, and the command that runs it."""

import contextlib
import dataclasses
import json
import types

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

import flowsim.experiments as ex
from flowsim.cli import run
from flowsim.cli._workspace import workspace
from flowsim.errors import InvalidInput
from flowsim.experiments._experiment import PrintedTable, changed, settings_of, up_to_date
from flowsim.experiments._files import load, save
from flowsim.experiments._seeds import difference, share


@dataclasses.dataclass(frozen=True)
class SquaresSettings:
    upto: int = 5
    scale: float = 2.0
    shifts: tuple[float, ...] = (0.0, 1.0)
    name: str = "squares"

    @classmethod
    def quick(cls):
        return cls(upto=2)


def squares(settings, report=None):
    x = np.arange(settings.upto)
    if report is not None:
        report("squaring", 1, 1)
    CALLS.append(settings)
    data = settings.scale * x**2 + np.asarray(settings.shifts)[:, None]
    return xr.Dataset({"y": (("shift", "x"), data)}, coords={"x": x, "shift": list(settings.shifts)})


def findings(dataset):
    last = float(dataset.y[0, -1])
    return [ex.Finding("squares grow", "paper, section 0", f"the last one is {last:g}", "agrees", last)]


def draw(dataset):
    figure = Figure()
    figure.subplots().plot(dataset.x, dataset.y[0])
    return figure


CALLS = []
EXPERIMENT = ex.Experiment("squares", "Squares.", SquaresSettings, squares, findings, {"squares_figure": draw})


@pytest.fixture
def registered(monkeypatch):
    """The experiment above as if it were one of flowsim's."""
    import sys

    module = types.ModuleType("flowsim.experiments._squares")
    module.__dict__["EXPERIMENT"] = EXPERIMENT
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ex, "_MODULES", {"squares": ("_squares", "EXPERIMENT")})
    monkeypatch.setattr(ex, "ALL", ("squares",))
    CALLS.clear()


def test_a_dataset_gives_back_the_settings_that_made_it():
    settings = SquaresSettings(upto=3, shifts=(0.1, 0.2, 1 / 3))
    dataset = ex.perform(EXPERIMENT, settings)
    assert settings_of(EXPERIMENT, dataset) == settings
    assert up_to_date(EXPERIMENT, settings, dataset)
    assert not up_to_date(EXPERIMENT, dataclasses.replace(settings, upto=4), dataset)
    assert not up_to_date(EXPERIMENT, settings, dataset.assign_attrs(versions="{}"))


@pytest.mark.usefixtures("registered")
def test_files_hold_arrays_findings_and_figures(tmp_path):
    dataset = ex.perform(EXPERIMENT, SquaresSettings())
    written = save(EXPERIMENT, dataset, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(written)
    found, again = load(tmp_path / "squares.nc")
    assert found is EXPERIMENT
    xr.testing.assert_identical(again, dataset)
    told = json.loads((tmp_path / "squares.json").read_text())
    assert told["settings"]["shifts"] == [0.0, 1.0]
    assert told["findings"][0]["value"] == 32.0
    assert set(told["versions"]) >= {"flowsim", "jax", "numpy"}


def test_a_fault_in_a_figure_costs_no_result(tmp_path):
    def broken(_):
        raise RuntimeError("a figure that cannot be drawn")

    faulty = dataclasses.replace(EXPERIMENT, figures={"broken": broken})
    with pytest.raises(RuntimeError):
        save(faulty, ex.perform(EXPERIMENT), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"squares.nc", "squares.json"}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"up": "3"}, ["'up'", "upto"]),
        ({"upto": "many"}, ["upto", "'many'", "a whole number"]),
        ({"scale": ""}, ["scale", "a number"]),
        ({"shifts": "1,x"}, ["shifts", "'x'"]),
        ({"shifts": ""}, ["shifts", "separated by commas"]),
    ],
)
def test_a_bad_setting_is_one_clear_sentence(texts, words):
    with pytest.raises(InvalidInput) as caught:
        changed(SquaresSettings(), texts)
    assert all(word in str(caught.value) for word in words)


def test_settings_are_read_as_what_they_are():
    read = changed(SquaresSettings(), {"upto": "7", "scale": "1e-3", "shifts": "3, 4.5", "name": "a=b"})
    assert read == SquaresSettings(7, 1e-3, (3.0, 4.5), "a=b")


def test_a_verdict_must_be_one_of_the_four():
    with pytest.raises(InvalidInput, match="maybe"):
        ex.Finding("", "", "", "maybe")


@pytest.mark.usefixtures("registered")
def test_reproduce_writes_prints_and_draws_again(tmp_path, capsys):
    out = tmp_path / "a"
    assert run(["reproduce", "squares", "--set", "upto=4", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "the last one is 18" in printed
    assert "agrees" in printed
    assert "squares.nc" in printed
    assert run(["reproduce", "squares", "--from", str(out / "squares.nc"), "--out", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["upto"] == 4
    assert len(CALLS) == 1
    assert (tmp_path / "b" / "squares_figure.svg").read_bytes() == (out / "squares_figure.svg").read_bytes()


@pytest.mark.usefixtures("registered")
def test_all_goes_on_where_it_stopped(tmp_path, capsys):
    out = str(tmp_path / "all")
    assert run(["reproduce", "all", "--quick", "--out", out]) == 0
    assert run(["reproduce", "all", "--quick", "--out", out]) == 0
    assert len(CALLS) == 1
    assert "has it already" in capsys.readouterr().out
    assert run(["reproduce", "all", "--out", out]) == 2  # other settings: not replaced unasked
    assert "--overwrite" in capsys.readouterr().err
    assert run(["reproduce", "all", "--out", out, "--overwrite", "--json"]) == 0
    assert [settings.upto for settings in CALLS] == [2, 5]
    assert json.loads(capsys.readouterr().out)["squares"]["settings"]["upto"] == 5


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["cubes"], ["cubes", "squares, all"]),
        (["squares", "--set", "upto"], ["--set upto", "FIELD=VALUE"]),
        (["squares", "--set", "upto=1", "--set", "upto=2"], ["--set upto", "twice"]),
        (["squares", "--from", "nowhere.nc"], ["nowhere.nc", "does not exist"]),
        (["squares", "--from", "nowhere.nc", "--quick"], ["--quick", "--from nowhere.nc"]),
        (["all"], ["--out DIR"]),
        (["all", "--set", "upto=1", "--out", "x"], ["--set", "one result"]),
        (["all", "--out", "no/such/folder"], ["no/such", "does not exist"]),
    ],
)
def test_bad_words_are_refused_in_one_sentence(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in told)
    assert not CALLS
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("registered")
def test_a_damaged_file_is_named(tmp_path, capsys):
    path = tmp_path / "squares.nc"
    save(EXPERIMENT, ex.perform(EXPERIMENT), tmp_path)
    path.write_bytes(path.read_bytes()[:-500])
    assert run(["reproduce", "squares", "--from", str(path)]) == 2
    assert "damaged" in capsys.readouterr().err


def test_an_unknown_experiment_is_refused():
    with pytest.raises(InvalidInput, match="cubes"):
        ex.experiment("cubes")


@pytest.mark.parametrize("name", ex.names())
def test_settings_of_any_kind_are_taken_as_the_default_is_or_refused_in_one_sentence(name):
    """Every field with values of every kind: texts, nothing, booleans, single lists, and what is too large."""
    default = ex.experiment(name).settings()
    wrong = {
        tuple: (3, "abc", None, (None,), (float("nan"),), (float("inf"),)),
        bool: (0, 1.0, "true", None),
        int: ("3", None, True, 0.5, -1, float("nan"), float("inf"), 1e300),
        float: ("3", None, True, float("nan"), -float("inf")),
        str: (3, None, True),
    }
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        for bad in wrong[type(value)]:
            with pytest.raises(InvalidInput) as caught:
                dataclasses.replace(default, **{field.name: bad})
            assert field.name in str(caught.value)
        if isinstance(value, int) and not isinstance(value, bool):  # a float that is whole, as a file may hold it
            same = dataclasses.replace(default, **{field.name: float(value)})
            assert type(getattr(same, field.name)) is int
        if isinstance(value, tuple):
            assert dataclasses.replace(default, **{field.name: list(value)}) == default
            with contextlib.suppress(InvalidInput):  # a shorter list is fine or refused, but nothing else
                dataclasses.replace(default, **{field.name: value[:1]})
    for quick in (default, ex.experiment(name).settings.quick()):  # every setting can be typed as it prints
        for field in dataclasses.fields(quick):
            value = getattr(quick, field.name)
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            assert changed(quick, {field.name: text}) == quick


def test_a_number_that_is_none_decides_nothing():
    assert ex.Finding("", "", "", "differs", float("nan")) == ex.Finding("", "", "", "undecided", None)
    assert ex.Finding("", "", "", "agrees", float("inf")) == ex.Finding("", "", "", "agrees", None)


def test_few_seeds_that_coincide_tell_nothing_of_their_spread():
    for values in ([0.02, 0.02], [0.68 - 0.66, 0.05 - 0.03, 0.04 - 0.02], [0.0, 0.0]):
        found = difference(values, counted=True)
        assert (found.sign, found.margin) == (0, np.inf)
    assert difference([0.02] * 4, counted=True).sign == 1
    assert difference([0.02, 0.02001], counted=True).sign == 1
    assert difference([0.02, 0.02]).sign == 1  # numbers that are not counted do not coincide by chance


def test_many_differences_together_mislead_no_more_often_than_one():
    """Four steps of five seeds each with no effect at all: some step is clear in 1 % of the draws or fewer."""
    draws = np.random.default_rng(0).normal(size=(2000, 4, 5))
    found = [any(difference(row, among=4).sign for row in rows) for rows in draws]
    assert np.mean(found) < 0.01 + 3 * np.sqrt(0.01 * 0.99 / 2000)
    alone = [any(difference(row).sign for row in rows) for rows in draws]
    assert np.mean(alone) > 0.025  # nearly four times as often


def test_few_seeds_decide_less_than_many():
    assert difference([1.0]).sign == difference([]).sign == difference([1.0, np.nan]).sign == 0
    assert difference([1.0, 1.1]).sign == 0  # 21 standard errors, but Student's t of two asks for 64
    assert difference([1.0, 1.1, 0.9, 1.05]).sign == 1
    assert difference([-1.0, -1.1, np.nan, -0.9, -1.05]).sign == -1
    mean, error, margin = difference([1.0, 2.0, 4.0, 5.0])
    assert (mean, error) == (3.0, pytest.approx(np.sqrt(10 / 3) / 2))
    assert margin / error == pytest.approx(5.840909, abs=1e-6)  # a table of Student's t, 3 degrees of freedom
    assert share([True, False, True], [True, True, False]) == 0.5
    assert np.isnan(share([True], [False]))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.assign_attrs(settings="{"),
        lambda d: d.assign_attrs(settings='{"upper": 3}'),
        lambda d: d.assign_attrs(versions="3,"),
        lambda d: d.drop_vars("y"),
        lambda d: d.drop_attrs().assign_attrs(experiment="squares"),
        lambda d: d.assign(y=("z", ["a", "b"])),
    ],
)
def test_a_file_that_was_changed_or_is_of_another_version_is_named(change, tmp_path, capsys):
    path = tmp_path / "old.nc"
    change(ex.perform(EXPERIMENT)).to_netcdf(path, engine="h5netcdf")
    assert run(["reproduce", "squares", "--from", str(path), "--out", str(tmp_path / "b")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert str(path) in said
    assert "another version" in said
    assert not (tmp_path / "b").exists()


@dataclasses.dataclass(frozen=True)
class CubesSettings:
    data: str = ""
    datasets: tuple[str, ...] = ("one", "two")
    preset: str = "tuned"
    seeds: int = 3
    skip_bad: bool = False

    @classmethod
    def quick(cls):
        return cls(seeds=1)


STOP = []  # after how many parts a run is interrupted


def cubes(settings, report=None, *, workspace=None):
    """Cubes one number after the other, and keeps each."""
    if not settings.data:
        raise InvalidInput("data='' names no folder with cubes.json; give --data DIR.")
    path = None if workspace is None else workspace / "cubes.npz"
    done = np.load(path)["done"].tolist() if path and path.exists() else []
    for i in range(len(done), settings.seeds):
        if report is not None:
            report("cubing", i, settings.seeds)
        if STOP and i >= STOP[0]:
            raise KeyboardInterrupt
        CALLS.append(i)
        done.append(i**3)
        if path is not None:
            np.savez(path, done=done)
    return xr.Dataset({"y": ("x", np.array(done))}).assign_attrs(names=",".join(settings.datasets))


def cube_tables(dataset):
    used = (f"data sets: {dataset.attrs['names']}",)
    rows = tuple((str(i), str(int(value))) for i, value in enumerate(dataset.y.values))
    return [PrintedTable("Cubes", used, ("x", "x|cubed"), rows, ("the first one is 0",))]


CUBES = ex.Experiment("cubes", "Cubes.", CubesSettings, cubes, lambda _: [], {}, cube_tables, resumable=True)


@pytest.fixture
def cubed(registered, monkeypatch):  # noqa: ARG001
    """The experiment above beside the other one."""
    import sys

    module = types.ModuleType("flowsim.experiments._cubes")
    module.__dict__["EXPERIMENT"] = CUBES
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(ex, "_MODULES", {name: (f"_{name}", "EXPERIMENT") for name in ("squares", "cubes")})
    STOP.clear()


@pytest.mark.usefixtures("cubed")
def test_a_table_is_printed_saved_and_told_as_json(tmp_path, capsys):
    words = ["reproduce", "cubes", "--data", "here", "--dataset", "two"]
    assert run([*words, "--out", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr().out
    assert printed.index("Cubes\n- data sets: two") < printed.index("x|cubed") < printed.index("- the first one is 0")
    assert (tmp_path / "a" / "cubes.md").read_text() == (
        "# Cubes.\n\n## Cubes\n\n- data sets: two\n\n"
        "| x | x\\|cubed |\n| --- | --- |\n| 0 | 0 |\n| 1 | 1 |\n| 2 | 8 |\n\n"
        "- the first one is 0\n"
    )
    told = json.loads((tmp_path / "a" / "cubes.json").read_text())
    assert told["tables"][0]["rows"] == [["0", "0"], ["1", "1"], ["2", "8"]]
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == told["tables"]
    assert run(["reproduce", "squares", "--json"]) == 0  # those without tables are told as before
    assert "tables" not in json.loads(capsys.readouterr().out)


def test_a_row_with_a_cell_too_few_is_refused():
    with pytest.raises(InvalidInput, match="2 cells"):
        PrintedTable("", (), ("a", "b", "c"), (("1", "2"),))


@pytest.mark.usefixtures("cubed")
def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, capsys):
    out, kept = tmp_path / "a", tmp_path / "a.partial"
    words = ["reproduce", "cubes", "--data", "here", "--out", str(out)]
    STOP.append(2)
    assert run(words) == 130
    said = capsys.readouterr().err
    assert str(kept) in said
    assert "the same command goes on" in said
    assert [path.name for path in tmp_path.iterdir()] == ["a.partial"]
    STOP.clear()
    (kept / "mine.txt").write_text("not flowsim's")
    assert run([*words, "--seeds", "4"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(part in said for part in ("seeds=3", "seeds=4", str(kept), "remove that folder"))
    assert run(words) == 0
    assert f"going on from what an unfinished run left in {str(kept)!r}" in capsys.readouterr().err
    assert CALLS == [0, 1, 2]  # nothing was done twice
    assert [path.name for path in kept.iterdir()] == ["mine.txt"]
    assert load(out / "cubes.nc")[1].y.values.tolist() == [0, 1, 8]
    (kept / "mine.txt").unlink()
    assert run([*words, "--overwrite"]) == 0
    assert "going on" not in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.usefixtures("cubed")
def test_what_is_done_stays_if_the_results_cannot_be_saved(tmp_path, monkeypatch):
    def broken(_):
        raise RuntimeError("a figure that cannot be drawn")

    faulty = dataclasses.replace(CUBES, figures={"broken": broken})
    monkeypatch.setattr(ex, "experiment", lambda _: faulty)
    with pytest.raises(RuntimeError):
        run(["reproduce", "cubes", "--data", "here", "--out", str(tmp_path / "a")])
    assert sorted(path.name for path in (tmp_path / "a.partial").iterdir()) == ["cubes.npz", "settings.json"]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")]
)
def test_too_little_memory_is_said_in_a_sentence(monkeypatch, capsys, error):
    def greedy(*_, **__):
        raise error

    monkeypatch.setattr(ex, "experiment", lambda _: dataclasses.replace(EXPERIMENT, run=greedy))
    assert run(["reproduce", "squares"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("flowsim: the memory does not suffice")
    assert said.count("\n") == 1


@pytest.mark.usefixtures("cubed")
def test_what_stands_in_the_place_of_the_workspace_is_named(tmp_path, capsys):
    (tmp_path / "a.partial").write_text("mine")
    assert run(["reproduce", "cubes", "--data", "here", "--out", str(tmp_path / "a")]) == 2
    assert "a.partial' for unfinished work; move it away" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["a.partial"]
    assert run(["reproduce", "cubes", "--data", "here", "--out", "/"]) == 2  # which has no name
    assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "a.partial").unlink()
    (tmp_path / "a.partial").mkdir()
    (tmp_path / "a.partial" / "other.npz").write_text("mine")
    assert run(["reproduce", "cubes", "--data", "here", "--out", str(tmp_path / "a")]) == 2
    assert "settings are not there" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "a.partial").iterdir()] == ["other.npz"]


@pytest.mark.usefixtures("cubed")
def test_an_unfinished_run_of_other_versions_is_not_gone_on_with(tmp_path, capsys):
    with workspace(CUBES, CubesSettings(data="here"), str(tmp_path / "a")) as place:
        kept = json.loads((place / "settings.json").read_text())
    place.mkdir()
    (place / "cubes.npz").write_text("what was done")
    kept["versions"]["jax"] = "0.0.1"
    (place / "settings.json").write_text(json.dumps(kept))
    assert run(["reproduce", "cubes", "--data", "here", "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "with versions={'jax': '0.0.1'}, and this one has versions={'jax': " in said
    assert "flowsim'" not in said.split("versions", 1)[1]  # only what differs


@pytest.mark.usefixtures("cubed")
def test_two_runs_do_not_work_in_one_place(tmp_path, capsys):
    words = ["reproduce", "cubes", "--data", "here", "--out", str(tmp_path / "a")]
    with workspace(CUBES, CubesSettings(data="here"), str(tmp_path / "a")):
        for more in ([], ["--seeds", "4"]):
            assert run([*words, *more]) == 2
            assert capsys.readouterr().err.startswith(f"flowsim: --out {tmp_path / 'a'}: another run is at work in")
        assert [path.name for path in (tmp_path / "a.partial").iterdir()] == ["settings.json"]
    assert CALLS == []
    assert run(words) == 0


def test_only_a_resumable_experiment_takes_a_workspace(tmp_path):
    with pytest.raises(InvalidInput, match="squares keeps nothing there"):
        ex.perform(EXPERIMENT, workspace=tmp_path)


@pytest.mark.usefixtures("cubed")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["squares", "--data", "x"], ["--data", "squares", "'data'"]),
        (["squares", "--skip-bad"], ["--skip-bad", "squares"]),
        (["cubes", "--seeds", "2", "--set", "seeds=3"], ["--seeds", "--set seeds"]),
        (["cubes", "--dataset", "one", "--set", "datasets=two"], ["--dataset", "--set datasets"]),
        (["cubes", "--seeds", "many"], ["seeds", "'many'"]),
        (["cubes", "--out", "a"], ["--data DIR", "cubes.json"]),
        (["cubes", "--out", "no/such"], ["--out no/such", "does not exist"]),
        (["cubes", "--from", "nowhere.nc", "--preset", "paper"], ["--preset", "--from nowhere.nc"]),
        (["all", "--out", "x", "--data", "y"], ["--data", "one result"]),
    ],
)
def test_bad_options_of_real_texts_are_refused_in_one_sentence(words, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["reproduce", *words]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in told)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("cubed")
def test_options_of_real_texts_are_settings(capsys):
    words = [
        "--data",
        "a b",
        "--dataset",
        "one",
        "--dataset",
        "three",
        "--preset",
        "paper",
        "--seeds",
        "2",
        "--skip-bad",
    ]
    assert run(["reproduce", "cubes", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"] == {
        "data": "a b", "datasets": ["one", "three"], "preset": "paper", "seeds": 2, "skip_bad": True,
    }  # fmt: skip
