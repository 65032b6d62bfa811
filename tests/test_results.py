"""Output folders: whole or not at all, and only flowsim's own are replaced."""

import json
import os
import stat

import pytest

from flowsim import results
from flowsim.errors import FileProblem


def make(path, text="new", **arguments):
    with results.output_folder(path, **arguments) as folder:
        (folder / "a.txt").write_text(text)
        (folder / "figures").mkdir()
        (folder / "figures" / "b.txt").write_text(text)


def test_folder_is_made_with_a_manifest(tmp_path):
    make(tmp_path / "out", record={"command": "verify"})
    manifest = json.loads((tmp_path / "out" / "flowsim.json").read_text())
    assert manifest == {"made_by": "flowsim", "command": "verify", "files": ["a.txt", "figures/b.txt"]}
    assert os.listdir(tmp_path) == ["out"]


def test_folder_can_be_read_by_others_as_the_umask_says(tmp_path):
    before = os.umask(0o022)
    try:
        make(tmp_path / "out")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


def test_what_another_run_has_made_meanwhile_is_not_replaced(tmp_path):
    def while_another_run_ends():
        with results.output_folder(tmp_path / "out"):
            make(tmp_path / "out", "theirs")

    with pytest.raises(FileProblem, match="made meanwhile by another run"):
        while_another_run_ends()
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / "a.txt").read_text() == "theirs"


def test_existing_folder_needs_overwrite_and_is_then_replaced_whole(tmp_path):
    make(tmp_path / "out", "old")
    (tmp_path / "out" / "a.txt").rename(tmp_path / "out" / "figures" / "b.txt")
    with pytest.raises(FileProblem, match="--overwrite"):
        make(tmp_path / "out")
    assert (tmp_path / "out" / "figures" / "b.txt").read_text() == "old"
    make(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a.txt").read_text() == "new"
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "manifest", [None, "not json", "[]", '{"made_by": "flowsim"}', '{"made_by": "x", "files": []}']
)
def test_folder_of_others_is_never_replaced(tmp_path, manifest, monkeypatch):
    monkeypatch.setattr(results, "_files", lambda _: pytest.fail("a folder of others may be a whole disk"))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    if manifest is not None:
        (tmp_path / "out" / "flowsim.json").write_text(manifest)
    with pytest.raises(FileProblem, match="was not made by flowsim"):
        make(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.txt").read_text() == "mine"


def test_folder_with_a_users_file_among_flowsims_is_kept(tmp_path):
    make(tmp_path / "out", "old")
    (tmp_path / "out" / "figures" / "notes.txt").write_text("mine")
    with pytest.raises(FileProblem, match=r"'figures/notes\.txt', which flowsim did not write"):
        make(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a.txt").read_text() == "old"


def test_link_is_followed_and_kept(tmp_path):
    (tmp_path / "disk").mkdir()
    make(tmp_path / "disk" / "real")
    (tmp_path / "out").symlink_to(tmp_path / "disk" / "real")
    make(tmp_path / "out", "newer", overwrite=True)
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "disk" / "real" / "a.txt").read_text() == "newer"


def test_empty_folder_is_used_with_overwrite_only(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(FileProblem, match="exists"):
        make(tmp_path / "out")
    make(tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "a.txt").exists()


def test_missing_parent_and_file_in_the_way(tmp_path):
    with pytest.raises(FileProblem, match="create it first"):
        make(tmp_path / "missing" / "out")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileProblem, match="is a file"):
        make(tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("existing", [False, True])
def test_failure_leaves_everything_as_it_was(tmp_path, error, existing):
    if existing:
        make(tmp_path / "out", "old")

    def fail():
        with results.output_folder(tmp_path / "out", overwrite=True) as folder:
            (folder / "a.txt").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert os.listdir(tmp_path) == (["out"] if existing else [])
    if existing:
        assert (tmp_path / "out" / "a.txt").read_text() == "old"


@pytest.mark.parametrize("interrupted_call", [1, 2])
@pytest.mark.parametrize("done", [False, True])
def test_interrupt_during_the_swap_loses_neither_folder(tmp_path, monkeypatch, interrupted_call, done):
    make(tmp_path / "out", "old")
    rename, calls = os.rename, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) != interrupted_call:
            return rename(*arguments)
        if done:  # the interrupt arrives just after the system call
            rename(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path / "out", overwrite=True)
    assert os.listdir(tmp_path) == ["out"]
    expected = "new" if (interrupted_call, done) == (2, True) else "old"
    assert (tmp_path / "out" / "a.txt").read_text() == expected
    assert (tmp_path / "out" / "figures" / "b.txt").read_text() == expected
