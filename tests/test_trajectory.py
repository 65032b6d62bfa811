import jax
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim as fs
from flowsim.trajectory import OBSERVABLES, Settings, Trajectory


def some_trajectory(task, ratios=(0.1, 1.0, 10.0)):
    rng = np.random.default_rng(0)
    shape = (len(ratios), 5)
    arrays = {name: jnp.asarray(rng.normal(size=shape)) for name in OBSERVABLES}
    return Trajectory(
        log_time=jnp.asarray([-np.inf, -1.0, 0.0, 700.0, 1e4]),
        status=jnp.asarray([0, 1, 4]),
        n_steps=jnp.asarray([10, 20, 30]),
        margins=jnp.asarray(rng.normal(size=(*shape, 1))),
        log_attentions=jnp.asarray(rng.normal(size=(*shape, 2))),
        extra={"asymmetry": jnp.asarray(rng.normal(size=shape))},
        axes=("ratio",),
        coords={"ratio": jnp.asarray(ratios), "lr": 0.1},
        task=task,
        method="ode",
        settings={"tol": 1e-8, "nested": {"values": [1, 2.5, None, "text"]}},
        **arrays,
    )


def test_saved_file_reproduces_itself(tmp_path, reference_task):
    trajectory = some_trajectory(reference_task)
    trajectory.save(tmp_path / "x.nc")
    loaded = Trajectory.load(tmp_path / "x.nc")
    assert loaded.task == reference_task
    assert loaded.settings == trajectory.settings
    assert (loaded.axes, loaded.method, loaded.parameterization) == (("ratio",), "ode", "CACO")
    assert float(loaded.coords["lr"]) == 0.1
    for a, b in zip(jax.tree.leaves(trajectory), jax.tree.leaves(loaded), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    dataset = loaded.to_xarray()
    assert dataset["margin"].dims == ("ratio", "time")
    assert '"jax"' in dataset.attrs["versions"]


def test_lane_and_squeeze_keep_the_value_that_was_picked(reference_task):
    trajectory = some_trajectory(reference_task)
    lane = trajectory.lane(ratio=1)
    assert lane.axes == ()
    assert float(lane.coords["ratio"]) == 1.0
    np.testing.assert_array_equal(lane.margin, trajectory.margin[1])
    np.testing.assert_array_equal(lane.extra["asymmetry"], trajectory.extra["asymmetry"][1])
    assert int(lane.status) == 1
    with pytest.raises(fs.InvalidInput, match="length 3"):
        trajectory.squeeze("ratio")
    with pytest.raises(fs.InvalidInput, match="out of range"):
        trajectory.lane(ratio=3)
    with pytest.raises(fs.InvalidInput, match="'lr'"):
        trajectory.lane(lr=0)


def test_derived_quantities(reference_task):
    trajectory = some_trajectory(reference_task)
    np.testing.assert_allclose(trajectory.attention, trajectory.odds / (1 + trajectory.odds), rtol=1e-15)
    assert trajectory.time[0] == 0
    assert jnp.isinf(trajectory.time[-1])
    np.testing.assert_array_equal(trajectory.ok, [True, True, False])


def test_passes_through_jit_and_is_hashable_there(reference_task):
    trajectory = some_trajectory(reference_task)
    doubled = jax.jit(lambda t: 2 * t.margin)(trajectory)
    np.testing.assert_array_equal(doubled, 2 * trajectory.margin)
    assert hash(Settings({"a": [1, {"b": 2}]})) == hash(Settings({"a": (1, {"b": 2})}))


@pytest.mark.parametrize("keep", [0, 100, 3000])
def test_truncated_file_is_named(tmp_path, reference_task, keep):
    path = tmp_path / "x.nc"
    some_trajectory(reference_task).save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(fs.FileProblem, match=r"x\.nc.*(truncated|cannot be used)"):
        Trajectory.load(path)


def test_foreign_missing_and_existing_files(tmp_path, reference_task):
    import xarray as xr

    xr.Dataset({"a": ("t", [1.0])}).to_netcdf(tmp_path / "foreign.nc", engine="h5netcdf")
    with pytest.raises(fs.FileProblem, match="not written by this flowsim"):
        Trajectory.load(tmp_path / "foreign.nc")
    with pytest.raises(fs.FileProblem, match="does not exist"):
        Trajectory.load(tmp_path / "none.nc")
    trajectory = some_trajectory(reference_task)
    trajectory.save(tmp_path / "x.nc")
    with pytest.raises(fs.FileProblem, match="overwrite=True"):
        trajectory.save(tmp_path / "x.nc")
    trajectory.save(tmp_path / "x.nc", overwrite=True)
    with pytest.raises(fs.FileProblem, match="folder"):
        trajectory.save(tmp_path / "none" / "x.nc")
    with pytest.raises(fs.FileProblem, match=r"\.nc"):
        trajectory.save(tmp_path / "x.csv")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["foreign.nc", "x.nc"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, reference_task, monkeypatch):
    import xarray as xr

    path = tmp_path / "x.nc"
    trajectory = some_trajectory(reference_task)
    trajectory.save(path)
    before = path.read_bytes()

    def fail(_dataset, target, **_options):
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(xr.Dataset, "to_netcdf", fail)
    with pytest.raises(KeyboardInterrupt):
        trajectory.save(path, overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_from_arrays_takes_ones_own_logs(reference_task):
    times = np.array([1.0, 10.0, 100.0])
    one = Trajectory.from_arrays(margin=[0.1, 0.2, 0.3], times=times, task=reference_task, ratio=2.0)
    assert one.lanes == ()
    assert jnp.isnan(one.log_odds).all()
    many = Trajectory.from_arrays(
        margin=np.ones((2, 3)), score_gap=np.ones((2, 3)), times=times, ratio=[1, 2], score_gap0=0.25
    )
    assert many.lanes == (2,)
    np.testing.assert_array_equal(many.score_gap_change, 0.75 * np.ones((2, 3)))


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        ({"margin": [1, 2], "times": [1, 2, 3]}, "margin has shape"),
        ({"margin": [1, 2, np.inf], "times": [1, 2, 3]}, "index 2"),
        ({"margin": ["a", "b", "c"], "times": [1, 2, 3]}, "margin="),
        ({"margin": [1, 2, 3], "times": [1, 3, 2]}, "times[2]=2 breaks the order"),
        ({"margin": [1, 2, 3], "times": [1, 1, 2]}, "repeats"),
        ({"margin": [1, 2, 3], "times": [-1, 1, 2]}, "negative"),
        ({"margin": [1, 2, 3], "times": [1, np.nan, 2]}, "NaN"),
        ({"margin": [1, 2, 3], "times": [1, 2, np.inf]}, "infinite"),
        ({"margin": [1, 2, 3]}, "exactly one"),
        ({"margin": [1, 2, 3], "times": [1, 2, 3], "log_times": [1, 2, 3]}, "both"),
        ({"margin": [1, 2, 3], "times": [1, 2, 3], "ratio": -1}, "ratio=-1"),
        ({"margin": [1, 2, 3], "times": [1, 2, 3], "parameterization": "caco"}, "did you mean 'CACO'"),
        ({"margin": [1, 2, 3], "times": [1, 2, 3], "task": 3}, "task=3"),
        ({"margin": [1, 2, 3], "times": True}, "times=True"),
        ({"margin": None, "times": [1, 2, 3]}, "margin=None"),
        ({"margin": [1, 2, 3], "times": [0, 1, 2]}, "margin0=0 is not the margin recorded"),
        ({"margin": [1, 2, 3], "times": [1, 2, 10**400]}, "times="),
        ({"margin": [1, 2, 3], "times": [1, 2, 3], "ratio": 10**400}, "ratio="),
        ({"margin": [1, 2, 3], "times": [1, 2, 3], "margin0": 10**400}, "margin0="),
        ({"margin": [1, 2, 3], "times": [[1, 2], [3, 4]]}, "shape (2, 2)"),
    ],
)
def test_bad_logs_are_refused_in_one_sentence(arguments, fragment):
    with pytest.raises(fs.InvalidInput) as caught:
        Trajectory.from_arrays(**arguments)
    assert fragment in str(caught.value)
    assert "\n" not in str(caught.value)
