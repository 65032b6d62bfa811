"""The command line: help without heavy imports, exit codes, one sentence for each bad input, JSON."""

import base64
import contextlib
import dataclasses
import io
import itertools
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import mpmath
import numpy as np
import platformdirs
import pytest
import sympy as sp
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

import flowsim
from flowsim import _cache, cli
from flowsim.cli._agreement import agreement
from flowsim.cli._options import log_time_grid
from flowsim.cli._tables import attention_text, exp_text
from flowsim.results import output_folder
from tests.html_page import same_verdicts, self_contained

ROOT = pathlib.Path(__file__).parents[1]
HEAVY = ("jax", "sympy", "matplotlib", "xarray", "diffrax", "numpy")
COMMANDS = ("derive", "integrate", "train", "verify", "sweep", "ratio-for", "phase", "plot", "device-check")


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs one command in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)

    def run_command(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_command


def refused(result, *fragments):
    """The rules for bad input: exit code 2, nothing on standard output, one sentence that names what it must."""
    code, out, err = result
    assert code == 2, (code, out, err)
    assert out == ""
    assert err.startswith("flowsim: ")
    assert err.count("\n") == 1
    assert err.rstrip().endswith(".")
    assert "Traceback" not in err
    for fragment in fragments:
        assert fragment in err, (fragment, err)


# ---------------------------------------------------------------------------------------------- help and version


@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"], *([command, "--help"] for command in COMMANDS)])
def test_help_imports_nothing_heavy(arguments):
    program = (
        "import sys; from flowsim import cli; code = cli.run(sys.argv[1:]); "
        f"loaded = sorted(set({HEAVY!r}) & set(sys.modules)); assert not loaded, loaded; sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "flowsim" in done.stdout
    assert done.stderr == ""


def test_help_takes_a_third_of_importing_jax_and_diffrax_at_most():
    def seconds(*arguments):
        times = []
        for _ in range(2):
            begin = time.perf_counter()
            subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
            times.append(time.perf_counter() - begin)
        return min(times)

    assert seconds("-m", "flowsim", "--help") < seconds("-c", "import jax, diffrax") / 3


def test_version(run):
    assert run("--version") == (0, f"flowsim {flowsim.__version__}\n", "")


def test_every_command_shows_an_example(run):
    for command in COMMANDS:
        code, out, _ = run(command, "--help")
        assert code == 0
        assert "Example: flowsim " + command in " ".join(out.split())


# ---------------------------------------------------------------------------------------------- bad input

BAD = {
    # the command line itself
    "no such command": (["verfy"], ["verfy"]),
    "no such option": (["integrate", "--ration", "1"], ["--ration"]),
    "option without value": (["integrate", "--ratio"], ["--ratio"]),
    "stray argument": (["integrate", "5"], ["5"]),
    # ratios
    "ratio not a number": (["integrate", "--ratio", "abc"], ["--ratio", "'abc'", "number"]),
    "ratio nan": (["integrate", "--ratio", "nan"], ["--ratio nan", "finite"]),
    "ratio infinite": (["verify", "--ratio", "inf"], ["--ratio inf", "finite"]),
    "ratio negative": (["train", "--ratio", "-1"], ["--ratio -1", "at least 0"]),
    "ratio twice": (["verify", "--ratio", "1,2", "--ratio", "1.0"], ["--ratio 1 ", "twice"]),
    "learning rate twice": (["train", "--lr", "0.1,0.1"], ["--lr 0.1 ", "twice"]),
    "one of many ratios": (["verify", "--ratio", "1", "--ratio", "-2"], ["--ratio -2"]),
    "ratio list with a hole": (["integrate", "--ratio", "1,,2"], ["--ratio ''"]),
    "sweep from zero": (["sweep", "--ratio-min", "0"], ["--ratio-min 0", "above 0"]),
    "sweep backwards": (["sweep", "--ratio-min", "10", "--ratio-max", "1"], ["--ratio-min 10", "--ratio-max 1"]),
    "sweep of half a ratio": (["sweep", "--ratios", "2.5"], ["--ratios 2.5", "whole"]),
    # learning rate and steps
    "lr negative": (["train", "--lr", "-0.1"], ["--lr -0.1", "above 0"]),
    "lr zero": (["train", "--lr", "0"], ["--lr 0", "above 0"]),
    "lr nan": (["train", "--lr", "nan"], ["--lr nan", "finite"]),
    "lr infinite": (["train", "--lr", "inf"], ["--lr inf", "finite"]),
    "lr not a number": (["train", "--lr", "fast"], ["--lr", "'fast'", "number"]),
    "steps not whole": (["train", "--steps", "1.5"], ["--steps 1.5", "whole"]),
    "no steps": (["train", "--steps", "0"], ["--steps 0", "at least 1"]),
    # times
    "time negative": (["integrate", "--time", "-1"], ["--time -1", "at least 0"]),
    "time nan": (["integrate", "--time", "nan"], ["--time nan", "finite"]),
    "time infinite": (["integrate", "--time", "1e400"], ["--time 1e400", "finite"]),
    "time not a number": (["integrate", "--time", "soon"], ["--time", "'soon'", "number"]),
    "times unsorted": (["integrate", "--time", "100", "--time", "1"], ["--time 1 ", "--time 100", "increasing"]),
    "times twice": (["integrate", "--time", "5", "--time", "5"], ["--time 5", "twice"]),
    "two kinds of times": (["integrate", "--time", "5", "--t-max", "9"], ["--time", "--t-max"]),
    "two horizons": (["integrate", "--t-max", "5", "--log-t-max", "9"], ["--t-max 5", "--log-t-max"]),
    "horizon before the grid": (["integrate", "--t-max", "0.5"], ["--t-min 1"]),
    "horizon zero": (["integrate", "--t-max", "0"], ["--t-max 0", "above 0"]),
    "horizon nan": (["integrate", "--log-t-max", "nan"], ["--log-t-max nan", "finite"]),
    "one point": (["integrate", "--points", "1"], ["--points 1", "at least 2"]),
    # start
    "start not finite": (["integrate", "--margin0", "inf"], ["--margin0 inf", "finite"]),
    "start not a number": (["integrate", "--score-gap0", "x"], ["--score-gap0", "'x'"]),
    "imbalance not a number": (["verify", "--imbalance-qk", "much"], ["--imbalance-qk", "'much'"]),
    "imbalance of a matrix": (["integrate", "--imbalance-ov", "1"], ["imbalance_ov=1", "CACO is collapsed", "leave"]),
    "factors that are zero": (
        ["integrate", "--parameterization", "CAFO", "--margin0", "0"],
        ["margin0=0", "never move"],
    ),
    # interventions
    "decay negative": (["integrate", "--weight-decay-qk", "-1"], ["--weight-decay-qk -1", "at least 0"]),
    "decay not finite": (["integrate", "--weight-decay-ov", "inf"], ["--weight-decay-ov inf", "finite"]),
    "growing until never": (["integrate", "--growing-until", "0"], ["--growing-until 0", "above 0"]),
    "normalize what": (["integrate", "--normalize", "vo"], ["--normalize vo", "qk, ov, both"]),
    "intervention in closed form": (
        ["integrate", "--method", "exact", "--normalize", "qk"],
        ["--normalize", "--method ode"],
    ),
    # inverse design
    "no attention": (["ratio-for", "--margin", "5"], ["--attention", "missing"]),
    "attention of 1": (["ratio-for", "--attention", "1", "--margin", "5"], ["--attention 1", "below 1"]),
    "attention nowhere": (["ratio-for", "--attention", "0.9"], ["--margin, --loss, --time", "none of them"]),
    "attention at two places": (
        ["ratio-for", "--attention", "0.9", "--margin", "5", "--loss", "1"],
        ["--margin and --loss"],
    ),
    "attention below the start": (
        ["ratio-for", "--attention", "0.4", "--margin", "5"],
        ["attention=0.4", "no ratio", "above that of the start"],
    ),
    "attention without closed form": (
        ["ratio-for", "--attention", "0.9", "--margin", "5", "--binomial", "5,0.5"],
        ["compositions"],
    ),
    # phase diagram
    "phases backwards": (["phase", "--log-t-min", "10", "--log-t-max", "1"], ["--log-t-min 10", "--log-t-max 1"]),
    "phases from zero": (["phase", "--ratio-min", "0"], ["--ratio-min 0", "above 0"]),
    "phases of nothing": (["phase", "--overwrite"], ["--overwrite", "--out"]),
    # task
    "one class": (["derive", "--classes", "1"], ["--classes 1", "at least 2"]),
    "half a class": (["derive", "--classes", "2.5"], ["--classes 2.5", "whole"]),
    "no distinct types": (["derive", "--distinct", "0"], ["--distinct 0", "at least 1"]),
    "types not a number": (["derive", "--common", "many"], ["--common", "'many'", "number"]),
    "empty context": (["derive", "--context", ""], ["--context ''"]),
    "context of zeros": (["derive", "--context", "0,0"], ["--context 0,0", "no positions"]),
    "context negative": (["derive", "--context", "32,-1"], ["--context -1", "at least 0"]),
    "context too short": (["derive", "--context", "32"], ["--context 32", "2 groups", "distinct, common"]),
    "context not a number": (["derive", "--context", "32,x"], ["--context", "'x'", "number"]),
    "context for three groups": (["derive", "--null", "--common", "3"], ["--context 32,31", "distinct, common, null"]),
    "binomial too short": (["derive", "--binomial", "63"], ["--binomial 63", "63,0.5"]),
    "binomial probability": (["derive", "--binomial", "63,1.5"], ["--binomial 63,1.5", "[0, 1]"]),
    "binomial probability nan": (["derive", "--binomial", "63,nan"], ["--binomial", "nan"]),
    "binomial length": (["derive", "--binomial", "0,0.5"], ["--binomial length 0", "at least 1"]),
    "two contexts": (["derive", "--binomial", "9,0.5", "--context", "1,2"], ["--binomial 9,0.5", "--context 1,2"]),
    "unknown query": (["derive", "--query", "none"], ["--query none", "per-class", "shared"]),
    "outputs negative": (["derive", "--other-outputs", "-1"], ["--other-outputs -1", "at least 0"]),
    "task and fields": (["derive", "--task", "t.toml", "--classes", "3"], ["--task t.toml", "--classes"]),
    "task and flag": (["derive", "--task", "t.toml", "--null"], ["--task t.toml", "--null"]),
    "task file missing": (["derive", "--task", "missing.toml"], ["missing.toml"]),
    # words
    "unknown parameterization": (["derive", "--parameterization", "CACA"], ["parameterization", "'CACA'", "CACO"]),
    "unknown method": (["integrate", "--method", "magic"], ["--method magic", "ode", "exact"]),
    "unknown kind of plot": (["plot", "a.nc", "--kind", "pie"], ["--kind pie", "growth-constants"]),
    # output
    "folder missing": (["integrate", "--out", "nowhere/x.nc"], ["--out nowhere/x.nc", "create it first"]),
    "wrong suffix": (["integrate", "--out", "x.csv"], ["--out x.csv", ".nc"]),
    "figure suffix": (["plot", "a.nc", "--out", "x.gif"], ["--out x.gif", ".png"]),
    "figure without name": (["plot", "a.nc"], ["--out"]),
    "parent of the results missing": (["verify", "--out", "nowhere/results"], ["nowhere", "create it first"]),
    "overwrite of nothing": (["integrate", "--overwrite"], ["--overwrite", "--out"]),
    # trajectory files
    "trajectory missing": (["verify", "missing.nc"], ["missing.nc", "does not exist"]),
    "trajectory to plot missing": (["plot", "missing.nc", "--out", "x.png"], ["missing.nc", "does not exist"]),
    "trajectory and task": (["verify", "x.nc", "--classes", "3"], ["x.nc", "--classes"]),
    "trajectory and ratio": (["verify", "x.nc", "--ratio", "3"], ["x.nc", "--ratio"]),
    "trajectory and start": (["verify", "x.nc", "--margin0", "3"], ["x.nc", "--margin0"]),
    "trajectory and zero start": (["verify", "x.nc", "--margin0", "0"], ["x.nc", "--margin0"]),
    "trajectory and parameterization": (
        ["verify", "x.nc", "--parameterization", "all"],
        ["x.nc", "--parameterization"],
    ),
    "seeds without an interval": (["verify", "--seeds", "3"], ["--seeds 3", "at least 5"]),
    "trajectory and seeds": (["verify", "x.nc", "--seeds", "8"], ["x.nc", "--seeds"]),
    "trajectory and steps": (["verify", "x.nc", "--steps", "3"], ["x.nc", "--steps"]),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_leaves_nothing(run, case):
    arguments, fragments = BAD[case]
    refused(run(*arguments), *fragments)
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("classes = ", "not valid TOML"),
        ("classes = 4", "context"),
        ("clases = 4\n[context]\nkind = 'fixed'", "clases"),
        ("classes = 4\ndistinct = 2\n[context]\nkind = 'poisson'", "poisson"),
        (
            "classes = 3\ndistinct = 2\n[context]\nkind = 'mixture'\n"
            "compositions = [{ probability = 0.5, counts = [3] }, { probability = 0.4, counts = [2] }]",
            "sum to 0.9",
        ),
        (
            "classes = 3\ndistinct = 2\n[context]\nkind = 'mixture'\n"
            "compositions = [{ probability = 1.5, counts = [3] }, { probability = -0.5, counts = [2] }]",
            "1.5",
        ),
        ("classes = 3\ndistinct = 2\n[context]\nkind = 'fixed'\ncounts = [0]", "no positions"),
        ("classes = 3\n[[groups]]\nname = 'a'\nrole = 'odd'\n[context]\nkind = 'fixed'\ncounts = [1]", "odd"),
    ],
)
def test_bad_task_file(run, text, fragment):
    pathlib.Path("task.toml").write_text(text)
    refused(run("derive", "--task", "task.toml"), "task.toml", fragment)


def test_task_file_that_is_no_text(run):
    pathlib.Path("task.toml").write_bytes(b"\xff\xfe\x00binary")
    refused(run("derive", "--task", "task.toml"), "task.toml", "not valid TOML")


@pytest.mark.parametrize("command", [["verify", "x.nc"], ["plot", "x.nc", "--out", "x.png"]])
@pytest.mark.parametrize("content", [b"", b"\x89HDF\r\n\x1a\n" + b"\0" * 100, b"time,margin\n1,2\n"])
def test_trajectory_file_that_is_truncated_or_foreign(run, command, content):
    pathlib.Path("x.nc").write_bytes(content)
    refused(run(*command), "x.nc")
    assert os.listdir() == ["x.nc"]


@pytest.mark.parametrize("command", [["integrate"], ["sweep"], ["train"]])
def test_file_that_exists_is_kept(run, command):
    pathlib.Path("x.nc").write_text("mine")
    refused(run(*command, "--out", "x.nc"), "x.nc", "--overwrite")
    assert pathlib.Path("x.nc").read_text() == "mine"


def test_folder_of_others_is_kept(run):
    pathlib.Path("results").mkdir()
    pathlib.Path("results", "thesis.txt").write_text("mine")
    refused(run("verify", "--out", "results", "--overwrite"), "results", "not made by flowsim")
    assert pathlib.Path("results", "thesis.txt").read_text() == "mine"


# ---------------------------------------------------------------------------------------------- what commands do


def parsed(result):
    """The one JSON object on standard output, strictly read."""
    code, out, err = result

    def refuse(word):
        raise AssertionError(f"{word} is no JSON")

    assert err == "", err
    return code, json.loads(out, parse_constant=refuse)


def test_derive_prints_equations_and_what_is_conserved(run):
    code, out, err = run("derive")
    assert (code, err) == (0, "")
    for word in ("4 classes", "dw/dt", "dtheta/dt", "conserved", "closed form", "rho ="):
        assert word in out


def test_derive_says_why_there_is_no_closed_form(run):
    for options, reason in (
        (["--binomial", "5,0.5"], "6 compositions"),
        (["--other-outputs", "50"], "other_outputs"),
        (["--attend-query"], "attend_query"),
        (["--null", "--common", "3", "--context", "3,2,1"], "one common or null group"),
        (["--context", "3,0"], "0 positions"),
    ):
        _, out, _ = run("derive", *options)
        assert reason in " ".join(out.split("No closed form:")[1].split())


def test_orbit_is_not_called_conserved_in_a_mixture(run):
    assert "the orbit" in run("derive")[1]
    assert "the orbit" not in run("derive", "--binomial", "5,0.5")[1]


def test_derive_as_json_latex_and_into_a_file(run):
    code, data = parsed(run("derive", "--json"))
    assert code == 0
    assert data["task"]["classes"] == 4
    assert any(equation.startswith("dw/dt") for equation in data["equations"])
    assert data["no_closed_form_because"] is None
    assert data["closed_form"]
    _, latex, _ = run("derive", "--latex")
    assert latex.startswith(r"\begin{aligned}")
    assert run("derive", "--latex", "--out", "flow.tex") == (0, "wrote flow.tex\n", "")
    assert pathlib.Path("flow.tex").read_text() == latex
    refused(run("derive", "--latex", "--json"), "--latex", "--json")


def test_task_from_a_file_equals_task_from_fields(run):
    task = flowsim.Task(
        classes=3, distinct=5, null=True, context=flowsim.FixedContext(distinct=4, null=6), query="shared"
    )
    task.to_toml("task.toml")
    fields = ["--classes", "3", "--distinct", "5", "--null", "--context", "4,6", "--query", "shared"]
    by_file = parsed(run("derive", "--task", "task.toml", "--json"))
    assert by_file == parsed(run("derive", *fields, "--json"))
    assert flowsim.Task.from_dict(by_file[1]["task"]) == task


@pytest.mark.parametrize("method", ["ode", "exact"])
def test_integrate_prints_known_numbers(run, method):
    arguments = ["integrate", "--method", method, "--ratio", "5", "--time", "1,100", "--time", "1000"]
    code, data = parsed(run(*arguments, "--json"))
    assert code == 0
    assert data["coords"]["ratio"] == [5.0]
    assert data["status"] == ["OK"]
    # mpmath's numbers for this task, as published with the theory
    assert data["margin"][0] == pytest.approx([0.0126887863760, 1.4027299307, 4.4873384035], rel=1e-8)
    assert data["score_gap"][0] == pytest.approx([0.00029707069, 1.8494678586, 4.2489929575], rel=1e-7)
    _, table, _ = run(*arguments)
    for word in ("1.4027299", "4.2489930"[:8], "0.986356"):
        assert word in table


def test_numbers_that_are_not_finite_are_null_in_json(run):
    code, data = parsed(run("integrate", "--time", "0", "--time", "1", "--json"))
    assert code == 0
    assert data["log_time"] == [None, 0.0]
    assert data["time"] == [0.0, 1.0]
    _, data = parsed(run("integrate", "--log-t-max", "1000", "--points", "2", "--json"))
    assert data["time"] == [1.0, None]
    assert data["log_time"] == [0.0, 1000.0]


def test_horizons_beyond_float64_are_printed(run):
    _, out, _ = run("integrate", "--log-t-max", "1000", "--points", "2")
    assert "1.970e+434" in out  # e^1000 = 1.970e434
    assert "shown" not in out
    assert "inf" not in out


def test_file_is_written_kept_and_replaced(run):
    arguments = ["integrate", "--ratio", "1,2", "--time", "1,2", "--out", "x.nc"]
    code, out, _ = run(*arguments)
    assert code == 0
    assert "wrote x.nc" in out
    saved = flowsim.Trajectory.load("x.nc")
    assert list(saved.coords["ratio"]) == [1.0, 2.0]
    refused(run(*arguments), "x.nc", "--overwrite")
    assert run(*arguments, "--overwrite")[0] == 0
    assert os.listdir() == ["x.nc"]


def test_diverged_lane_sets_exit_code_1_and_the_others_are_kept(run):
    code, out, err = run(
        "train", "--ratio", "1", "--ratio", "1e200", "--lr", "1e200", "--steps", "5", "--json", "--out", "x.nc"
    )
    assert code == 1
    assert err == "flowsim: ratio 1e+200: training diverged at step 1; lower lr (or the ratio).\n"
    data = json.loads(out)
    assert data["status"] == ["OK", "DIVERGED"]
    assert None not in data["margin"][0]
    assert set(data["margin"][1]) == {None}
    assert pathlib.Path("x.nc").exists()


def test_sweep_covers_the_ratios_and_is_saved(run):
    arguments = ["--ratio-min", "0.01", "--ratio-max", "100", "--ratios", "5", "--time", "10,1000", "--out", "s.nc"]
    code, out, _ = run("sweep", *arguments)
    assert code == 0
    assert "t = 1000" in out
    saved = flowsim.Trajectory.load("s.nc")
    assert list(saved.coords["ratio"]) == pytest.approx([0.01, 0.1, 1, 10, 100])
    assert saved.margin.shape == (5, 2)


def test_closed_form_that_is_missing_is_refused_with_its_condition(run):
    refused(run("integrate", "--method", "exact", "--other-outputs", "5"), "other_outputs")
    refused(run("sweep", "--binomial", "5,0.5"), "compositions", "--method ode")


# ---------------------------------------------------------------------------------------- all four parameterizations


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("CACO", ["odds log^2 t ", "y = l**2*rho/2", "rho = r*(C + D)*(K - 1)/(D*K)", "score gap log^2 t, early"]),
        ("FACO", ["odds log^2 t log log t ", "y = Lambda*l**2*phi", "cosh", "P_t_c**2 + P_t_d**2 - Q_t**2"]),
        ("CAFO", ["odds log t ", "y = l*rho", "(2*sqrt(C)*D*K)", "P_S**2 - Q_S_d**2", "score gap log t, early"]),
        ("FAFO", ["odds log t log log t ", "y = Lambda*l*phi", "Lambda tends to theta", "dtau_k/dt", "Integral"]),
    ],
)
def test_derive_prints_clocks_orbit_and_laws_of_all_four(run, name, words):
    code, out, err = run("derive", "--parameterization", name)
    assert (code, err) == (0, "")
    for word in (*words, f"{name} flow", "conserved", "closed form", "dtau_v/dt", "margin log t "):
        assert word in out, word
    _, latex, _ = run("derive", "--parameterization", name, "--latex")
    for word in ("% clocks", "% closed form", "% growth laws", r"\dot{\tau_{v}}"):
        assert word in latex


@pytest.mark.parametrize("shape", [[], ["--query", "shared"], ["--null", "--context", "5,7"]])
@pytest.mark.parametrize("name", ["CACO", "FACO", "CAFO", "FAFO"])
def test_printed_laws_have_the_constants_that_are_judged(run, name, shape):
    """The printed rho or phi, with the task's numbers, is the constant that `verify` predicts for the odds."""
    options = ["--parameterization", name, "--classes", "3", "--distinct", "5", *shape]
    _, data = parsed(run("derive", *options, "--json"))
    laws = data["growth_laws"]
    (odds,) = (law for law in laws["laws"] if law["observable"] == "odds")
    texts = dict(text.split(" = ", 1) for text in laws["definitions"])
    symbol = "phi" if name[0] == "F" else "rho"
    task = flowsim.Task.from_dict(data["task"])
    background = next(group for group in task.groups if group.role != "distinct")
    values = {"K": 3, "C": 5, "D": background.types or 1, "r": 0.7}
    printed = float(sp.sympify(texts[symbol], locals={key: sp.Symbol(key) for key in values}).subs(values))
    # what is predicted depends on task and ratio alone, whatever the numbers are that it is compared with
    some = flowsim.Trajectory.from_arrays(
        margin=[1.0, 2.0], log_odds=[1.0, 2.0], log_times=[1.0, 2.0], task=task, ratio=0.7, parameterization=name
    )
    (row,) = (r for r in flowsim.verify(some).rows if r.kind == "exact-law" and r.observable == "odds")
    half = 0.5 if name == "CACO" else 1.0
    assert ("l**2*rho/2" in odds["leading"]) == (name == "CACO")
    assert row.law == odds["law"]
    assert row.predicted_constant == pytest.approx(half * printed, rel=1e-12)


def test_factorized_flow_and_closed_form_agree_on_the_command_line(run):
    arguments = [
        "integrate",
        "--parameterization",
        "FAFO",
        "--ratio",
        "2",
        "--time",
        "1,1000",
        "--imbalance-qk",
        "-0.3",
    ]
    code, ode = parsed(run(*arguments, "--json"))
    assert code == 0
    _, exact = parsed(run(*arguments, "--method", "exact", "--json"))
    assert ode["settings"]["imbalance_qk"] == exact["settings"]["imbalance_qk"] == -0.3
    assert ode["settings"]["margin0"] == 0.01  # the default of a factorized circuit
    assert ode["margin"][0] == pytest.approx(exact["margin"][0], rel=1e-8)
    assert ode["log_odds"][0] == pytest.approx(exact["log_odds"][0], rel=1e-8)
    assert max(ode["extra"]["imbalance_violation"][0]) < 1e-10
    _, out, _ = run(*arguments)
    assert "largest change of P^T P - Q Q^T" in out


def test_interventions_reach_the_solver(run):
    arguments = ["--weight-decay-qk", "0.01", "--weight-decay-ov", "0.02", "--normalize", "ov", "--growing-until", "50"]
    code, data = parsed(run("integrate", "--ratio", "3", "--time", "1,10", *arguments, "--json"))
    assert code == 0
    assert data["settings"]["schedule"] == {"kind": "growing", "until": 50.0, "begin": 0.0, "power": 1.0}
    assert (data["settings"]["weight_decay_qk"], data["settings"]["weight_decay_ov"]) == (0.01, 0.02)
    assert data["settings"]["normalize"] == "ov"


def test_ratio_for_gives_the_ratio_that_reaches_the_target(run):
    arguments = ["ratio-for", "--attention", "0.8,0.9", "--loss", "0.05", "--parameterization", "CAFO"]
    code, data = parsed(run(*arguments, "--json", "--out", "ratios.json"))
    assert code == 0
    assert json.loads(pathlib.Path("ratios.json").read_text()) == data
    task = flowsim.Task.from_dict(data["task"])
    ratios = [target["ratio"]["CAFO"] for target in data["targets"]]
    reached = flowsim.exact(task, "CAFO", ratio=ratios, losses=[0.05])
    assert np.asarray(reached.attention)[:, 0] == pytest.approx([0.8, 0.9], abs=1e-9)
    _, out, _ = run(*arguments)
    for word in ("CAFO", "0.05", f"{ratios[0]:.10g}", f"{ratios[1]:.10g}"):
        assert word in out


@pytest.mark.slow
def test_ratio_for_takes_all_four_and_every_kind_of_target(run):
    # every pair of parameterization and target is solved in the tests of ratio_for itself
    for target, names in ((["--margin", "5"], "all"), (["--time", "1e4"], "CACO")):
        _, data = parsed(run("ratio-for", "--attention", "0.9", *target, "--parameterization", names, "--json"))
        assert len(data["targets"][0]["ratio"]) == (4 if names == "all" else 1)
        task = flowsim.Task.from_dict(data["task"])
        grid = {target[0][2:] + "s": [float(target[1])]}
        for name, ratio in data["targets"][0]["ratio"].items():
            reached = flowsim.exact(task, name, ratio=ratio, **grid)
            assert float(reached.attention[0]) == pytest.approx(0.9, abs=1e-9)


def test_phase_diagram_as_data_and_figure(run):
    grid = ["--ratio-min", "1e-6", "--ratio-max", "10", "--ratios", "9", "--points", "12"]
    code, plain = parsed(run("phase", "--parameterization", "CAFO", *grid, "--out", "phase", "--json"))
    assert code == 0
    assert sorted(os.listdir("phase")) == [
        "flowsim.json", "phase.json", "phase.nc", "phase_diagram.png", "phase_diagram.svg"
    ]  # fmt: skip
    assert json.loads(pathlib.Path("phase", "phase.json").read_text()) == plain
    assert plain["diagrams"]["CAFO"]["names_of_law"] == ["neither", "log t", "log log t"]
    with xr.open_dataset("phase/phase.nc", engine="h5netcdf") as data:
        assert data["law"].dims == ("parameterization", "ratio", "log_time")
        law, crossing = data["law"].values[0], data["crossing"].values[0]
        assert (np.asarray(plain["ratios"]) == data["ratio"].values).all()
    assert law.tolist() == plain["diagrams"]["CAFO"]["law"]
    assert set(np.unique(law)) == {0, 1, 2}
    for row, at in zip(law, crossing, strict=True):  # the early law on this side of the crossing, the late one beyond
        times = np.asarray(plain["log_times"])
        assert (times[row == 1] < at).all()
        assert (times[row == 2] > at).all()
    assert (np.diff(crossing) < 0).all()


@pytest.mark.slow
def test_the_four_stand_side_by_side(run):
    options = ["--ratio", "0.1,1", "--seeds", "0", "--log-t-max", "1e6", "--points", "150"]
    options += ["--steps", "500", "--imbalance-ov", "0.5"]
    code, out, err = run("verify", "--parameterization", "all", *options, "--out", "results")
    assert (code, err) == (0, "")
    for word in ("CACO", "FACO", "CAFO", "FAFO", "log t log log t", "flowsim.descend", "four_laws.png"):
        assert word in out
    names = {
        "report.html",
        "four_laws.png",
        "four_laws.svg",
        "verdicts.json",
        "flowsim.json",
        "CACO",
        "FACO",
        "CAFO",
        "FAFO",
    }
    assert set(os.listdir("results")) == names
    data = json.loads(pathlib.Path("results", "verdicts.json").read_text())
    assert data["ok"] is True
    for name, item in data["parameterizations"].items():
        finite = "training" if name == "CACO" else "descent"
        assert item["start"].get("imbalance_ov") == (0.5 if name[2] == "F" else None)
        assert {"exact.nc", "ode.nc", f"{finite}.nc", "growth_constants.png"} <= set(os.listdir(f"results/{name}"))
        for row in item["agreement"]["ode_against_exact"]:
            assert max(row.values()) < 1e-8
    files = [f"results/{name}/exact.nc" for name in data["parameterizations"]]
    refused(run("plot", *files, "--kind", "four-laws", "--out", "x.png"), "comes 2 times")
    refused(run("plot", *files, "--kind", "four-laws", "--ratio", "7", "--out", "x.png"), "--ratio 7", "0.1, 1")
    assert run("plot", *files, "--kind", "four-laws", "--ratio", "1", "--out", "x.png") == (0, "wrote x.png\n", "")


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The main job, made small: its folder, and what it printed."""
    folder = tmp_path_factory.mktemp("main_job") / "results"
    options = ["--ratio", "1e-5,1", "--log-t-max", "1e5", "--points", "150", "--steps", "2000", "--seeds", "5"]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.run(["verify", *options, "--out", str(folder)])
    assert (code, err.getvalue()) == (0, "")
    return folder, out.getvalue()


@pytest.mark.slow
def test_main_job_prints_equations_agreement_and_verdicts(results):
    _, out = results
    for word in ("dw/dt", "closed form", "against the closed form", "trained matrices", "asymmetry", "paper-claim"):
        assert word in out
    assert re.search(r"score gap +log\^2 t, early +\S+ +1\.43\d+e-5 +1\.43\d+e-5", out)  # seen at the small ratio
    assert "flowsim.json" in out
    assert re.search(r"ratio 1: paper-claim score gap log\^2 t fails", out)


@pytest.mark.slow
def test_main_job_writes_trajectories_verdicts_and_figures(results):
    folder, _ = results
    names = {item.name for item in folder.iterdir()}
    figures = {"theory_vs_simulation", "growth_constants", "score_gap_regimes", "error_budget"}
    assert names == {
        *(
            "report.html",
            "exact.nc",
            "ode.nc",
            "training.nc",
            "verdicts.json",
            "verdicts.txt",
            "equations.tex",
            "task.toml",
        ),
        *(name + suffix for name in figures for suffix in (".png", ".svg")),
        "flowsim.json",
    }
    for name in figures:
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{name}.svg").read_text()
    assert flowsim.Task.from_toml(folder / "task.toml") == flowsim.Trajectory.load(folder / "exact.nc").task
    assert set(json.loads((folder / "flowsim.json").read_text())["files"]) == names - {"flowsim.json"}


@pytest.mark.slow
def test_main_jobs_verdicts_and_agreement_are_those_of_the_theory(results):
    data = json.loads((results[0] / "verdicts.json").read_text())
    assert data["ok"] is True
    for row in data["agreement"]["ode_against_exact"]:
        assert max(row.values()) < 1e-8
    for row in data["agreement"]["training_against_theory"]:
        assert 1e-12 < max(row.values()) < 1e-2
    rows = {(r["ratio"], r["observable"], r["law"], r["kind"]): r for r in data["verdicts"]["exact"]["rows"]}
    assert rows[1.0, "odds", "log^2 t", "exact-law"]["verdict"] == "holds"
    assert rows[1.0, "odds", "log^2 t", "exact-law"]["predicted_constant"] == pytest.approx(0.75)  # rho/2
    assert rows[1.0, "score_gap", "log^2 t", "paper-claim"]["verdict"] == "fails"


@pytest.mark.slow
def test_main_jobs_page_holds_what_the_files_hold(results):
    folder, out = results
    data = json.loads((folder / "verdicts.json").read_text())
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = self_contained(text)
    assert same_verdicts(page, data["verdicts"]["exact"]["rows"])
    figures = sorted(base64.b64decode(image["src"].partition(",")[2]) for image in page.images)
    assert figures == sorted(item.read_bytes() for item in folder.glob("*.svg"))
    assert page.math > 4
    assert "flowsim verify --ratio 1e-5,1 --log-t-max 1e5 --points 150 --steps 2000 --seeds 5 --out " in text
    words = {"slopes", "budget", "figures", "agreement", "equations", "flow", "closed-form", "growth-laws", "settings"}
    assert words <= set(page.ids)
    assert data["seeds"] == {"seeds": 5, "lr": 0.2, "steps": 2000, "batch": 32}
    trained = {(row["ratio"], row["observable"], row["law"], row["regime"]): row for row in data["trained_slopes"]}
    assert {(1.0, "margin", "log t", "saturated"), (1e-5, "margin", "log t", "before saturation")} <= set(trained)
    cells = [cells["trained slope (5 seeds)"] for cells in page.verdict_rows()]
    for row, (shown, value) in zip(data["verdicts"]["exact"]["rows"], cells, strict=True):
        found = trained.get((row["ratio"], row["observable"], row["law"], row["regime"]))
        assert (shown == "-") == (found is None)
        assert found is None or (float(value) == found["slope"]["mean"] and shown.endswith("]"))
    for row in trained.values():
        slope = row["slope"]
        assert slope["low"] < slope["mean"] < slope["high"]
        assert abs(slope["mean"] / slope["flow"] - 1) < 0.05  # early: the seeds have not left the flow
        assert row["window"]["log_time_end"] == pytest.approx(math.log(400))
    assert "trained slopes: mean over 5 seeds" in out
    assert "Error budget of CACO training" in out
    for observable, parts in data["error_budget"]["parts"].items():
        total = data["error_budget"]["total"][observable][-1]
        assert total <= sum(values[-1] for values in parts.values()) * 1.0001
        assert f"{total:.2e}" in text


@pytest.mark.slow
def test_saved_trajectory_is_judged_like_the_run_and_drawn(results, run):
    exact = str(results[0] / "exact.nc")
    code, data = parsed(run("verify", exact, "--json"))
    assert code == 0
    assert data == json.loads((results[0] / "verdicts.json").read_text())["verdicts"]["exact"]
    assert run("verify", exact, "--out", "judged")[0] == 0
    assert same_verdicts(self_contained(pathlib.Path("judged", "report.html").read_text()), data["rows"])
    assert sorted(os.listdir("judged")) == ["flowsim.json", "report.html", "verdicts.json", "verdicts.txt"]
    for kind in ("theory-vs-simulation", "growth-constants", "score-gap-regimes"):
        assert run("plot", exact, "--kind", kind, "--out", f"{kind}.pdf") == (0, f"wrote {kind}.pdf\n", "")
        assert pathlib.Path(f"{kind}.pdf").read_bytes().startswith(b"%PDF")
    assert run("plot", exact, str(results[0] / "training.nc"), "--out", "two.svg")[0] == 0
    refused(run("plot", exact, exact, "--kind", "growth-constants", "--out", "x.png"), "growth-constants", "one")
    refused(run("plot", exact, exact, exact, "--out", "x.png"), "theory-vs-simulation", "one trajectory or two")
    refused(run("plot", exact, "--out", "two.svg"), "two.svg", "--overwrite")


@pytest.mark.slow
def test_law_of_the_exact_flow_that_fails_sets_exit_code_1(results, run):
    exact = flowsim.Trajectory.load(results[0] / "exact.nc").lane(ratio=1)
    forged = flowsim.Trajectory.from_arrays(
        margin=1.05 * np.asarray(exact.margin), log_times=np.asarray(exact.log_time), task=exact.task, ratio=1.0
    )
    forged.save("forged.nc")
    code, _, err = run("verify", "forged.nc")
    assert code == 1
    assert err.startswith("flowsim: ratio 1: exact-law margin log t fails: constant 1.05")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_results_are_replaced_only_with_overwrite(results, run):
    shutil.copytree(results[0], "results")
    before = pathlib.Path("results", "verdicts.json").read_bytes()
    shutil.copy("results/exact.nc", "kept.nc")
    refused(run("verify", "kept.nc", "--out", "results"), "results", "--overwrite")
    refused(run("verify", "results/exact.nc", "--out", "results", "--overwrite"), "results/exact.nc", "--out results")
    assert pathlib.Path("results", "verdicts.json").read_bytes() == before
    assert run("verify", "kept.nc", "--out", "results", "--overwrite")[0] == 0
    assert sorted(os.listdir("results")) == ["flowsim.json", "report.html", "verdicts.json", "verdicts.txt"]
    assert sorted(os.listdir()) == ["kept.nc", "results"]


@pytest.mark.slow
def test_task_without_closed_form_is_verified_by_its_odes(run):
    options = ["--ratio", "1", "--other-outputs", "5", "--steps", "50", "--log-t-max", "2e4", "--points", "20"]
    code, out, err = run("verify", *options, "--out", "results")
    assert (code, err) == (0, "")
    assert "No closed form" in out
    assert "only a closed form would go on to the ln t = 2e+04 asked for" in out
    assert "no figure growth_constants" in out
    assert "ode.nc" in os.listdir("results")
    assert "exact.nc" not in os.listdir("results")


# ---------------------------------------------------------------------------------------------- small parts


@given(first=st.floats(-50, 1e3), length=st.floats(1e-3, 1e6), points=st.integers(2, 500))
def test_time_grid_is_increasing_and_ends_where_it_should(first, length, points):
    grid = log_time_grid(first, first + length, points)
    assert len(grid) == points
    assert (grid[0], grid[-1]) == (first, first + length)
    assert all(a < b for a, b in itertools.pairwise(grid))


@pytest.mark.parametrize("logarithm", [-1e6, -750.3, -1.5, 0.0, 3.7, 689.0, 690.7755278982137, 712.8, 1e6])
def test_exponentials_beyond_float64_are_printed_right(logarithm):
    with mpmath.workdps(30):
        exact = mpmath.exp(mpmath.mpf(logarithm))
        assert abs(mpmath.mpf(exp_text(logarithm)) / exact - 1) < 1e-3
    assert not exp_text(logarithm).startswith("10.")


@pytest.mark.parametrize(
    ("log_odds", "text"), [(-50.0, "1.92875e-22"), (-1e4, "1.13548e-4343"), (0.0, "0.500000"), (50.0, "1 - 1.9e-22")]
)
def test_attention_is_printed_with_digits_at_both_ends(log_odds, text):
    assert attention_text(log_odds) == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["integrate", "--points", "150", "--ratio", "1,2"], "10 of 150 times shown;"),  # the main job's shape
        (["sweep", "--ratios", "40"], "30 of 40 ratios shown;"),
        (["sweep", "--ratios", "40", "--time", "1,2,3,4"], "3 of 4 times and 30 of 40 ratios shown;"),
    ],
)
def test_thinned_tables_say_so(run, arguments, words):
    _, out, _ = run(*arguments, "--method", "exact")
    assert words in out


@pytest.mark.slow
def test_no_color_on_a_terminal_means_no_escape_codes():
    for name, plain in (("1", True), ("", False)):
        ours, theirs = os.openpty()
        environ = {**os.environ, "NO_COLOR": name, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
        for arguments in (["sweep", "--help"], ["sweep", "--time", "1"]) if plain else (["sweep", "--help"],):
            subprocess.run(
                [sys.executable, "-m", "flowsim", *arguments],
                stdin=theirs, stdout=theirs, stderr=theirs, env=environ, check=True, timeout=60,
            )  # fmt: skip
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # what a terminal without a writer answers when it is read to the end
            while True:
                text += os.read(ours, 65536)
        os.close(ours)
        assert (b"\x1b" not in text) == plain
        assert b"ratio" in text


def test_agreement_sees_a_planted_difference():
    log_time = np.linspace(1.0, 20.0, 40)
    arrays = {"margin": log_time, "log_odds": np.log(log_time), "score_gap": 1e-9 * log_time, "log_times": log_time}
    true = flowsim.Trajectory.from_arrays(**arrays)
    assert max(agreement(true, true, small_gaps=True)[0]) == 0
    for name, error in (("margin", 1e-6), ("log_odds", 1e-6), ("score_gap", 1e-15)):
        spoiled = arrays[name] + error * (np.arange(40) == 20)
        other = flowsim.Trajectory.from_arrays(**{**arrays, name: spoiled})
        found = agreement(true, other, small_gaps=True)[0]
        scale = arrays[name][20] if name == "score_gap" else max(1, arrays[name][20])
        assert getattr(found, name) == pytest.approx(error / scale, rel=1e-5)
    # a reference that overflowed says nothing, and warns of nothing; a solver that overflows is infinitely far off
    beyond = dataclasses.replace(true, margin=true.margin.at[20:].set(math.inf))
    assert agreement(beyond, true, small_gaps=True)[0].margin == 0
    assert agreement(true, beyond, small_gaps=True)[0].margin == math.inf
    # what rounding the clock explains is no difference
    rounded = {**arrays, "margin": log_time + 3 * np.spacing(log_time)}
    assert agreement(true, flowsim.Trajectory.from_arrays(**rounded), small_gaps=True)[0].margin == 0


def test_cache_is_in_the_users_folder_unless_the_user_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path / "cache"))
    environ: dict[str, str] = {}
    _cache.enable(environ)
    assert environ["JAX_COMPILATION_CACHE_DIR"] == str(tmp_path / "cache" / "jax")
    assert (tmp_path / "cache" / "jax").is_dir()
    for mine in ({"JAX_COMPILATION_CACHE_DIR": "mine"}, {"JAX_ENABLE_COMPILATION_CACHE": "false"}):
        environ = dict(mine)
        _cache.enable(environ)
        assert environ == mine
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda *_, **__: str(tmp_path / "file"))
    environ = {}
    _cache.enable(environ)  # no folder can be made there: no cache, no complaint
    assert environ == {}


def test_importing_flowsim_does_not_switch_the_cache_on(tmp_path):
    program = "import flowsim as fs, jax; fs.Task; fs.Trajectory; assert jax.config.jax_compilation_cache_dir is None"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environ |= {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environ, check=True)
    assert os.listdir(tmp_path) == []


# ---------------------------------------------------------------------------------------------- signals and pipes


# A shell that starts the tests in the background lets them ignore Ctrl-C, and their children inherit that.
LISTENING = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.executable, [sys.executable, '-m', 'flowsim', *sys.argv[1:]])"
)


def start(*arguments, cwd):
    return subprocess.Popen(
        [sys.executable, "-c", LISTENING, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process, by=signal.SIGINT):
    """Sends a signal, Ctrl-C's unless told otherwise, to a process and checks what it says."""
    process.send_signal(by)
    try:
        out, err = process.communicate(timeout=120)  # a machine that does much else is slow to answer
    finally:
        process.kill()
    assert process.returncode == 130
    assert err == "flowsim: interrupted; nothing half-written was left behind.\n"
    assert out == ""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_leaves_nothing_half_written(tmp_path, by):
    with start("verify", "--out", "results", cwd=tmp_path) as process:
        deadline = time.monotonic() + 60
        while not os.listdir(tmp_path):  # the temporary folder says that the work has begun
            assert time.monotonic() < deadline
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        time.sleep(1)
        interrupted(process, by)
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_interrupted_training_keeps_what_is_done(tmp_path):
    # far more steps than can be done: without the interrupt this runs for days
    with start("train", "--steps", "1e12", "--out", "x.nc", cwd=tmp_path) as process:
        time.sleep(25)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "method training" in out
    assert err == (
        "flowsim: ratio 1: interrupted before the last step; what was recorded until then is there.\n"
        "flowsim: interrupted; nothing half-written was left behind.\n"
    )
    kept = flowsim.Trajectory.load(tmp_path / "x.nc")
    assert np.isfinite(kept.margin).all()
    assert 10 < kept.n_time < 200


@pytest.mark.slow
def test_train_with_everything_and_again_from_its_checkpoint(run):
    arguments = (
        *("train", "--parameterization", "FAFO", "--classes", "2", "--distinct", "1", "--common", "2"),
        *("--context", "2,3", "--ratio", "2", "--lr", "0.01", "--steps", "30", "--points", "5", "--seeds", "2"),
        *("--init", "uniform,0.2", "--population", "sampled-identities", "--examples", "8", "--batch", "4"),
        *("--test", "6", "--optimizer", "adam", "--weight-decay-ov", "0.1", "--score-scale", "1/sqrt(d)"),
        *("--hidden-qk", "3", "--embedding", "5", "--json", "--checkpoint", "c.npz"),
    )
    code, out, err = run(*arguments)
    assert (code, err) == (0, "")
    first = json.loads(out)
    assert first["axes"] == ["ratio", "seed"]
    assert first["settings"]["start"] == {"scale": 0.2, "kind": "uniform"}
    assert np.shape(first["margin"]) == (1, 2, 5)
    refused(run(*arguments), "checkpoint='c.npz' exists", "resume=True")
    assert json.loads(run(*arguments, "--resume")[1]) == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--init", "normal,1"], ["--init normal,1", "gaussian"]),
        (["--init", "gaussian"], ["--init scale"]),
        (["--resume"], ["--resume", "--checkpoint"]),
        (["--batch", "0"], ["--batch 0"]),
        (["--init", "gaussian,1", "--margin0", "1"], ["RandomStart", "margin0=1"]),
    ],
)
def test_train_refuses(run, arguments, words):
    refused(run("train", "--steps", "2", *arguments), *words)


@pytest.mark.slow
def test_closed_pipe_gives_no_traceback_and_the_file_is_written(tmp_path):
    with start("integrate", "--time", "1,2", "--out", "x.nc", cwd=tmp_path) as process:
        assert process.stdout is not None
        process.stdout.close()  # the reader is gone before anything is printed
        assert process.stderr is not None
        err = process.stderr.read()
        code = process.wait(timeout=60)
    assert (code, err) == (0, "")
    assert os.listdir(tmp_path) == ["x.nc"]


# ------------------------------------------------------------------------------- what would destroy or mislead


@pytest.fixture
def saved(tmp_path):
    """A folder of results that holds a theory and a training of the same task, and a training of another."""
    folder = tmp_path / "results"
    with output_folder(folder, record={"command": "verify"}) as inside:
        task = flowsim.Task(classes=3, distinct=2, common=2, context=flowsim.FixedContext(distinct=3, common=3))
        other = flowsim.Task(classes=4, distinct=2, common=2, context=flowsim.FixedContext(distinct=3, common=3))
        flowsim.exact(task, ratio=1.0, times=[1, 2, 4]).save(inside / "exact.nc")
        training = flowsim.train(task, ratio=1.0, lr=1.0, steps=4)
        training.save(inside / "training.nc")
        dataclasses.replace(training, task=other).save(inside / "other.nc")
    return folder


def test_a_run_never_replaces_the_folder_that_holds_its_input(run, saved):
    before = sorted(item.name for item in saved.iterdir())
    refused(run("verify", saved / "exact.nc", "--out", saved, "--overwrite"), "--out", "exact.nc")
    (saved.parent / "link").symlink_to(saved)
    refused(run("verify", saved / "exact.nc", "--out", saved.parent / "link", "--overwrite"), "--out")
    assert sorted(item.name for item in saved.iterdir()) == before


def test_a_folder_is_not_a_trajectory_and_its_files_are_named(run, saved):
    refused(run("verify", saved), "is a folder", "give one of its files: exact.nc, other.nc, training.nc")
    refused(run("verify", "."), "is a folder")


def test_plot_draws_one_task_and_theory_as_theory(run, saved):
    refused(run("plot", saved / "exact.nc", saved / "other.nc", "--out", "x.png"), "different tasks")
    refused(run("plot", saved / "training.nc", saved / "exact.nc", "--out", "x.png"), "theory first")
    assert run("plot", saved / "exact.nc", saved / "training.nc", "--out", "x.png")[0] == 0


def test_training_that_no_memory_holds_is_refused_before_it_allocates(run):
    refused(run("train", "--classes", "100000", "--distinct", "100000", "--steps", "5"), "classes=100000", "GiB")
