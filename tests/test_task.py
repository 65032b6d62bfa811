import math
import pathlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowsim as fs
from flowsim.task import Structure


def test_paper_task_in_short_form(reference_task):
    task = reference_task
    assert [(g.name, g.role, g.types) for g in task.groups] == [("distinct", "distinct", 10), ("common", "common", 10)]
    assert task.compositions == ((1.0, (32.0, 31.0)),)
    assert task.structure == Structure(("distinct", "common"), "per-class", None, False)
    assert "4 classes" in str(task)


@pytest.mark.parametrize(("query", "role"), [("per-class", "distinct"), ("shared", "common")])
def test_attended_query_is_a_group_of_one_type_counted_once(query, role):
    task = fs.Task(3, 2, 5, context=fs.FixedContext(distinct=4, common=6), query=query, attend_query=True)
    assert task.all_groups[-1] == fs.Group("query", role, 1)
    assert task.compositions == ((1.0, (4.0, 6.0, 1.0)),)
    assert task.structure.query_group == 2


def test_binomial_law_matches_scipy():
    from scipy import stats

    for length, gamma in [(8, 0.5), (63, 0.2), (1500, 0.3)]:
        task = fs.Task(2, 3, 3, context=fs.BinomialContext(length=length, gamma=gamma))
        for probability, counts in task.compositions:
            assert counts[0] + counts[1] == length
            # lgamma near 1500! has an absolute error of about 1e4 ulp(1) = 2e-12, which exponentiation makes relative
            assert math.isclose(probability, float(stats.binom.pmf(counts[0], length, gamma)), rel_tol=1e-11)
        assert math.isclose(math.fsum(p for p, _ in task.compositions), 1, rel_tol=1e-15)


@pytest.mark.parametrize(("gamma", "counts"), [(0.0, (0.0, 5.0)), (1.0, (5.0, 0.0))])
def test_degenerate_binomial_has_one_composition(gamma, counts):
    task = fs.Task(2, 3, 3, context=fs.BinomialContext(length=5, gamma=gamma))
    assert task.compositions == ((1.0, counts),)


def test_binomial_follows_group_roles_not_their_order():
    groups = [fs.Group("filler", "null"), fs.Group("topic", "distinct", 4)]
    task = fs.Task(3, groups=groups, context=fs.BinomialContext(length=1, gamma=0.25))
    assert {counts: p for p, counts in task.compositions} == {(1.0, 0.0): 0.75, (0.0, 1.0): 0.25}


counts_ = st.lists(st.floats(0, 50).map(lambda x: round(x, 3)), min_size=3, max_size=3)


@st.composite
def tasks(draw):
    groups = [
        fs.Group("a", "distinct", draw(st.integers(1, 9))),
        fs.Group('b "quoted" ü', draw(st.sampled_from(["distinct", "common"])), draw(st.integers(1, 9))),
        fs.Group("c\n", "null"),
    ]
    weights = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    items = [(w / sum(weights), [1.0 + draw(st.integers(0, 3)), *draw(counts_)[1:]]) for w in weights]
    context = draw(
        st.sampled_from([fs.MixtureContext(items), fs.FixedContext(counts=items[0][1])]),
    )
    return fs.Task(
        draw(st.integers(2, 9)),
        groups=groups,
        context=context,
        query=draw(st.sampled_from(["per-class", "shared"])),
        attend_query=draw(st.booleans()),
        other_outputs=draw(st.integers(0, 99)),
    )


@given(tasks())
def test_task_survives_toml_dict_repr_and_hash(tmp_path_factory, task):
    path = tmp_path_factory.mktemp("task") / "task.toml"
    task.to_toml(path)
    assert fs.Task.from_toml(path) == task
    assert fs.Task.from_dict(task.to_dict()) == task
    assert hash(fs.Task.from_toml(path)) == hash(task)
    names = {name: getattr(fs, name) for name in ("Task", "Group", "FixedContext", "MixtureContext")}
    assert eval(repr(task), names) == task


def test_short_form_toml(tmp_path):
    path = tmp_path / "task.toml"
    path.write_text('classes = 4\ndistinct = 10\ncommon = 10\n[context]\nkind = "fixed"\ndistinct = 32\ncommon = 31\n')
    assert fs.Task.from_toml(path).compositions == ((1.0, (32.0, 31.0)),)


def fixed(**counts):
    return fs.FixedContext(**counts)


BAD = {
    "K=1": (lambda: fs.Task(1, 2, context=fixed(distinct=1)), "classes=1"),
    "K real": (lambda: fs.Task(2.5, 2, context=fixed(distinct=1)), "classes=2.5"),
    "K text": (lambda: fs.Task("4", 2, context=fixed(distinct=1)), "classes='4'"),
    "no distinct": (lambda: fs.Task(2, common=3, context=fixed(common=1)), "no distinct group"),
    "no context": (lambda: fs.FixedContext(), "empty"),
    "zero context": (lambda: fixed(distinct=0, common=0), "no positions"),
    "negative count": (lambda: fixed(distinct=-1), "negative"),
    "nan count": (lambda: fixed(distinct=math.nan), "finite"),
    "no such group": (lambda: fs.Task(2, 2, context=fixed(distinct=1, null=1)), "null=True"),
    "group not counted": (lambda: fs.Task(2, 2, 3, context=fixed(distinct=1)), "no count for the common group"),
    "both forms": (lambda: fs.FixedContext(distinct=1, counts=(1,)), "one form"),
    "counts short": (lambda: fs.Task(2, 2, 3, context=fs.FixedContext(counts=(1,))), "1 entries"),
    "empty mixture": (lambda: fs.MixtureContext([]), "empty"),
    "mixture sum": (lambda: fs.MixtureContext([(0.3, (1, 1)), (0.3, (1, 2))]), "sum to 0.6"),
    "mixture range": (lambda: fs.MixtureContext([(1.5, (1, 1)), (-0.5, (1, 2))]), "[0, 1]"),
    "mixture zero weight": (lambda: fs.MixtureContext([(1.0, (0, 0))]), "no positions"),
    "mixture no pairs": (lambda: fs.MixtureContext([3]), "pairs"),
    "gamma": (lambda: fs.BinomialContext(8, 1.2), "gamma=1.2"),
    "length": (lambda: fs.BinomialContext(0, 0.2), "length=0"),
    "binomial groups": (
        lambda: fs.Task(2, 1, 1, null=True, context=fs.BinomialContext(8, 0.2)),
        "one distinct and one background",
    ),
    "role": (lambda: fs.Group("a", "rare", 2), "role='rare'"),
    "name twice": (
        lambda: fs.Task(2, groups=[fs.Group("a", "distinct"), fs.Group("a", "common")], context=fixed(counts=(1, 1))),
        "'a' twice",
    ),
    "reserved name": (
        lambda: fs.Task(2, groups=[fs.Group("query", "distinct")], context=fixed(counts=(1,))),
        "reserved",
    ),
    "query": (lambda: fs.Task(2, 2, context=fixed(distinct=1), query="both"), "query='both'"),
    "attend": (lambda: fs.Task(2, 2, context=fixed(distinct=1), attend_query=1), "attend_query=1"),
    "outputs": (lambda: fs.Task(2, 2, context=fixed(distinct=1), other_outputs=-1), "other_outputs=-1"),
    "context type": (lambda: fs.Task(2, 2, context=(1, 2)), "context=(1, 2)"),
    "groups twice": (
        lambda: fs.Task(2, 2, groups=[fs.Group("a", "distinct")], context=fixed(distinct=1)),
        "one form only",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_task_is_refused_in_one_sentence(name):
    build, fragment = BAD[name]
    with pytest.raises(fs.InvalidInput) as caught:
        build()
    message = str(caught.value)
    assert fragment in message
    assert "\n" not in message
    assert message.endswith(".")


TOML_BAD = {
    "not toml": ("classes = = 4", "not valid TOML"),
    "unknown key": ('classes = 4\nclases = 4\n[context]\nkind="fixed"\ndistinct=1', "'clases'"),
    "no context": ("classes = 4\ndistinct = 3", "'context'"),
    "unknown kind": ('classes = 4\ndistinct = 3\n[context]\nkind = "zipf"', "'zipf'"),
    "group not a table": ('classes = 4\ngroups = [1]\n[context]\nkind = "fixed"\ncounts = [1]', "groups entry 1"),
    "binary": ("\x00\x01", "not valid TOML"),
}


@pytest.mark.parametrize("name", TOML_BAD)
def test_bad_toml_is_refused_in_one_sentence(tmp_path, name):
    text, fragment = TOML_BAD[name]
    path = tmp_path / "task.toml"
    path.write_text(text)
    with pytest.raises(fs.InvalidInput) as caught:
        fs.Task.from_toml(path)
    assert fragment in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_toml_and_missing_folder(tmp_path, reference_task):
    with pytest.raises(fs.FileProblem, match="cannot be read"):
        fs.Task.from_toml(tmp_path / "none.toml")
    with pytest.raises(fs.FileProblem, match="does not exist"):
        reference_task.to_toml(tmp_path / "none" / "task.toml")
    assert list(tmp_path.iterdir()) == []


def test_tasks_need_neither_jax_nor_sympy():
    code = (
        "import sys, flowsim as fs;"
        "fs.Task(classes=4, distinct=10, common=10, context=fs.FixedContext(distinct=32, common=31)).to_toml();"
        "sys.exit(', '.join({'jax', 'sympy', 'numpy', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    root = pathlib.Path(fs.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr


def test_the_example_task_file_is_the_one_in_the_readme_and_is_read():
    root = pathlib.Path(__file__).parents[1]
    text = (root / "examples" / "task.toml").read_text()
    assert f"```toml\n{text}```" in (root / "README.md").read_text()
    task = fs.Task.from_toml(root / "examples" / "task.toml")
    assert [group.types for group in task.groups] == [4, 5]
    assert [c.counts for c in task.compositions] == [(8, 10, 1), (12, 5, 1)]
