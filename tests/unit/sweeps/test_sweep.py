"""What a sweep decides without a host: which configurations, what they are worth, and what is written and said."""

from __future__ import annotations

import collections
import errno
import itertools
import json
import os
import random
import subprocess
import sys
import threading
import time
import types

import pytest
from IPython.core.formatters import DisplayFormatter

from clusterfn import ClusterfnError, ConfigError
from clusterfn.config.options import parse_options
from clusterfn.sweeps import journal as journals
from clusterfn.sweeps import scoring, space
from clusterfn.sweeps.fingerprint import Unstable, fingerprint
from clusterfn.sweeps.journal import Kept, Store, SweepJournal, forget_old_values, values_beside
from clusterfn.sweeps.report import SweepResult, Trial
from clusterfn.sweeps.run import ResultStore

RETRIEVAL = {
    "embedder": ["e5", "bge", "gte", "minilm", "splade"],
    "index": ["flat", "ivf", "hnsw"],
    "pipeline": ["reranker_only", "reranker_then_splade", "vector_only"],
    "k": [1, 5, 10],
}


def names(chosen):
    return [each.name for each in chosen]


# which configurations


def test_a_grid_is_the_product_in_the_order_written():
    chosen = space.choose(space.read(RETRIEVAL), "grid", None, 0)

    assert len(chosen) == 135
    assert [tuple(each.values.values()) for each in chosen] == list(itertools.product(*RETRIEVAL.values()))
    assert names(chosen)[::67] == ["GRID_0000", "GRID_0067", "GRID_0134"]


@pytest.mark.parametrize("seed", [0, 1, 2026])
def test_a_capped_sample_has_exactly_that_many_in_grid_order_and_the_same_for_the_same_seed(seed):
    grid = space.read(RETRIEVAL)

    chosen = space.choose(grid, "grid", 3, seed)

    assert names(chosen) == names(space.choose(space.read(RETRIEVAL), "grid", 3, seed))
    assert names(chosen) == [f"GRID_{index:04d}" for index in sorted(random.Random(seed).sample(range(135), 3))]
    assert [each.values for each in chosen] == [grid.at(int(each.name[5:])) for each in chosen]


@pytest.mark.parametrize("sampler", ["grid", "random"])
def test_a_grid_of_any_size_is_never_built(sampler, keys=30):
    grid = space.read({f"key{number}": range(10) for number in range(keys)})

    chosen = space.choose(grid, sampler, 4, 7)

    assert grid.size == 10**keys and len(set(names(chosen))) == 4
    assert all(len(each.name) == 5 + keys for each in chosen)


def test_random_sampling_takes_the_order_of_the_draws_and_functions_that_draw():
    lists = space.choose(space.read(RETRIEVAL), "random", 5, 3)
    drawn = space.choose(space.read({"lr": lambda chance: chance.uniform(1, 2), "m": ["ab"]}), "random", 3, 3)

    assert names(lists) == [f"GRID_{index:04d}" for index in random.Random(3).sample(range(135), 5)]
    assert names(drawn) == ["RANDOM_0000", "RANDOM_0001", "RANDOM_0002"]
    assert all(1 <= each.values["lr"] <= 2 and each.values["m"] == "ab" for each in drawn)


def test_a_list_of_dicts_is_taken_as_it_is():
    chosen = space.choose(space.read([{"lr": 1}, {"lr": 2, "m": "a"}]), "grid", None, 0)

    assert [(each.name, each.values) for each in chosen] == [
        ("GRID_0000", {"lr": 1}),
        ("GRID_0001", {"lr": 2, "m": "a"}),
    ]


# what results are worth


@pytest.mark.parametrize(
    ("by", "value", "score"),
    [
        (None, 0.5, 0.5),
        (None, {"score": 2}, 2.0),
        ("loss", {"loss": 0.1, "score": 3}, 0.1),
        (lambda value: value[-1], [1, 7], 7.0),
        (None, float("inf"), float("inf")),
    ],
)
def test_a_score_is_a_number_a_key_or_what_a_function_says(by, value, score):
    assert scoring.Scoring(by).of(value) == score


@pytest.mark.parametrize(
    ("by", "value", "says"),
    [
        (None, float("nan"), "the score is nan"),
        (None, {"loss": 1, "acc": 2}, r"no 'score' among \['acc', 'loss'\]"),
        ("loss", {"loss": None}, "'loss' is None"),
        (None, None, "it is None"),
        (None, True, "it is True"),
        (None, "0.5", "it is '0.5'"),
        (lambda value: None, 3, "score= returned no number for 3"),
    ],
)
def test_a_result_without_a_score_says_why(by, value, says):
    with pytest.raises(ValueError, match=says):
        scoring.Scoring(by).of(value)


def test_ranking_keeps_the_order_of_equals():
    scores = [("a", 1.0), ("b", 3.0), ("c", 3.0), ("d", 2.0)]

    assert scoring.ranked(scores, minimize=False) == ["b", "c", "d", "a"]
    assert scoring.ranked(scores, minimize=True) == ["a", "d", "b", "c"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"score": 1, "scores": [1, 2.5]}, (1.0, 2.5)), ([1, 2], (1.0, 2.0)), ([1], ()), ("ab", ()), (3, ()),
        ({"scores": [1, "x"]}, ()),
    ],
)  # fmt: skip
def test_the_scores_of_a_result_are_found(value, found):
    assert scoring.sequence(value) == found


# what is said, in the words and with the numbers of the reports


def report():
    trials = [
        Trial("GRID_0007", {"pipeline": "vector_only"}, 0.439, 0.439, seconds=44.0, scores=(0.4, 0.478)),
        Trial("GRID_0029", {"pipeline": "reranker_then_splade"}, 0.610, 0.610, seconds=43.8, scores=(0.6, 0.62)),
        Trial("GRID_0071", {"pipeline": "reranker_only"}, 0.651, 0.651, seconds=45.2, scores=(0.6, 0.702)),
    ]
    return SweepResult(trials, False, "sweep.jsonl", 1, group_by="pipeline")


def test_a_cell_shows_a_sweep_as_a_table_of_its_ranking_with_escaped_words():
    trials = [Trial(f"GRID_000{n}", {"lr": n / 10, "opt": "<b>"}, score=n / 10, seconds=1.5) for n in (1, 3, 2)]
    trials.append(Trial("GRID_0004", {"lr": 9.0}, error=ValueError("<b>")))

    result = SweepResult(trials, minimize=False, journal="/j/g.jsonl", seed=None)
    shown, _ = DisplayFormatter().format(result)

    assert [line.split()[:3] for line in shown["text/plain"].splitlines()[4:]] == [
        ["1", "GRID_0003", "0.300"], ["2", "GRID_0002", "0.200"], ["3", "GRID_0001", "0.100"]
    ]  # fmt: skip
    html = shown["text/html"]
    assert html.count("<tr>") == 4 and "3 of 4 configurations" in html and "ValueError: &lt;b&gt;" in html


def test_the_report_names_at_most_five_causes_with_their_configurations():
    causes = ["a"] * 12 + ["b", "c", "d", "d", "e", "f", "g"]
    trials = [Trial(f"G{n:02d}", {}, error=ValueError(each)) for n, each in enumerate(causes)]

    assert str(SweepResult(trials, False, "sweep.jsonl", 1)).splitlines()[1:] == [
        "✗ 12 x ValueError: a (G00, G01, G02, G03, G04, G05, G06, G07, …)",
        "✗ 2 x ValueError: d (G14, G15)",
        "✗ G12 ValueError: b",
        "✗ G13 ValueError: c",
        "✗ G16 ValueError: e",
        "✗ and 2 other causes",
    ]


# the journal


def test_each_line_of_a_journal_is_there_when_it_is_opened_again(tmp_path):
    path = tmp_path / "sub" / "sweep.jsonl"
    with SweepJournal(path) as journal:
        journal.add("begin", seed=1)
        journal.add("ended", name="GRID_0000", config={"model": threading.Lock, "ü": "\ud800"})

    with SweepJournal(path) as again:
        assert [each["event"] for each in again.records] == ["begin", "ended"]


@pytest.mark.parametrize("torn", [b'{"event": "ended", "name": "GR', b'{"event": "ended"', b"\x00\x00\xff"])
def test_a_torn_last_line_is_survived_and_what_follows_is_whole(tmp_path, torn):
    path = tmp_path / "sweep.jsonl"
    with SweepJournal(path) as journal:
        journal.add("begin", seed=1)
    path.write_bytes(path.read_bytes() + torn)

    with SweepJournal(path) as journal:
        journal.add("end")
    with SweepJournal(path) as journal:
        assert [each["event"] for each in journal.records] == ["begin", "end"]


@pytest.mark.skipif(sys.platform == "win32", reason="it locks in another way")
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_keeps_no_sweep_from_its_journal(tmp_path, monkeypatch, capsys, number):
    import fcntl

    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with SweepJournal(tmp_path / "sweep.jsonl") as journal:
        journal.add("begin", x=1)

    assert "without locks: run only one program at a time" in capsys.readouterr().err
    assert (tmp_path / "sweep.jsonl").read_text().startswith('{"event": "begin"')


@pytest.mark.parametrize("torn", [b'{"event": "beg', b'{"event": "begin", "format'])
def test_a_journal_torn_in_its_very_first_line_begins_again(tmp_path, torn):
    (tmp_path / "sweep.jsonl").write_bytes(torn)

    with SweepJournal(tmp_path / "sweep.jsonl") as journal:
        assert journal.records == []
        journal.add("begin")
    with SweepJournal(tmp_path / "sweep.jsonl") as journal:
        assert [each["event"] for each in journal.records] == ["begin"]


def test_what_json_has_no_word_for_is_written_as_python_shows_it(tmp_path):
    endless: list = []
    endless.append(endless)
    loop: dict = {}
    loop["loop"] = loop
    values = {"pairs": {(0, 1): 2}, "endless": endless, "loop": loop, "type": int, "lr": 0.1}

    with SweepJournal(tmp_path / "j") as journal:
        journal.add("begin", configurations={"GRID_0000": values, "GRID_0001": {"lr": 0.2}})
    with SweepJournal(tmp_path / "j") as journal:
        (told,) = journal.records

    assert told["configurations"] == {
        "GRID_0000": {
            "pairs": "{(0, 1): 2}", "endless": "[[...]]", "loop": "{'loop': {...}}", "type": "<class 'int'>", "lr": 0.1,
        },
        "GRID_0001": {"lr": 0.2},
    }  # fmt: skip


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
def test_a_full_disk_is_one_error_and_the_journal_can_be_gone_on_with(tmp_path):
    import resource
    import signal

    path, before = tmp_path / "j", resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(ClusterfnError, match="cannot be written: ") as caught, SweepJournal(path) as journal:
            journal.add("begin")
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, before[1]))
            journal.add("ended", name="GRID_0000")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)

    assert caught.value.log == str(path) and path.read_bytes().endswith(b'{"event": "ended", "')
    with SweepJournal(path) as journal:
        journal.add("resumed")
    with SweepJournal(path) as journal:
        assert [each["event"] for each in journal.records] == ["begin", "resumed"]


def test_a_file_that_is_no_journal_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("milk\n")

    with pytest.raises(ConfigError, match="is not the journal of a sweep"):
        SweepJournal(tmp_path / "notes.txt")

    assert (tmp_path / "notes.txt").read_text() == "milk\n"


def facts(**changed):
    given = {"lr": [0.1, 0.2], "model": ["a"], **changed.pop("space", {})}
    told = journals.describe(space.read(given))
    return {"function": "train", "module": "mine", "code": "1", "max_configs": 3, "sampler": "grid", "seed": 7,
            "score": None, "minimize": False, **told, **changed}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        ({"seed": 8}, ["seed: 7 in the journal, 8 now"]),
        ({"max_configs": 4}, ["max_configs: 3 in the journal, 4 now"]),
        ({"sampler": "random"}, ["sampler: grid in the journal, random now"]),
        ({"score": "loss"}, ["score: None in the journal, loss now"]),
        ({"minimize": True}, ["minimize: False in the journal, True now"]),
        ({"function": "test"}, ["function: train in the journal, test now"]),
        ({"code": "2"}, ["code: train, or something that it calls, has changed since"]),
        (
            {"code": "2", "module": "__main__"},
            [
                "module: train of mine in the journal, of __main__ now; clusterfn cannot compare the code of the two, "
                "so start the sweep as before: run the file as a script, or import it"
            ],
        ),
        ({"code": None}, []),
        ({"space": {"lr": [0.1]}}, ["lr: [0.1, 0.2] in the journal, [0.1] now"]),
        ({"space": {"k": [1]}}, ["k: nothing in the journal, [1] now"]),
    ],
)
def test_what_differs_between_two_sweeps_is_named(changed, says):
    assert journals.differences(json.loads(json.dumps(facts())), facts(**changed)) == says


# the digest by which results are found again

PROGRAM = """
import dataclasses, enum, functools, sys
from clusterfn import cluster
from clusterfn.sweeps.fingerprint import fingerprint

WORDS = {"a", "bb", "ccc", "dddd"}
HELP = 1

@dataclasses.dataclass
class Point:
    x: int = 0
    def norm(self):
        return self.x in {"one", "two", "three"}

class Kind(enum.Enum):
    FIRST = 1
    SECOND = "b"

def even(n): return n == 0 or odd(n - 1)
even.limit = 1

class Meta(type):
    def __call__(cls, *args): return 1

class Made(metaclass=Meta):
    pass

def odd(n): return n != 0 and even(n - 1)

@functools.lru_cache
def helper(n):
    return [n, HELP, Point(n), Kind.FIRST, n in WORDS]

@cluster
def train(lr, model):
    def inner(): return lr in {"x", "y", "z"}
    return helper(lr), odd(3), inner, [own for own in (even, odd)], Made()

import own
print(fingerprint(train.__wrapped__, own.work, {"lr": 0.1, "model": frozenset("abcdef"), "p": Point(3)}))
"""


def digest(folder, text, module="def work(): return 1\n", hash_seed="0"):
    (folder / "own.py").write_text(module)
    (folder / "program.py").write_text(text)
    done = subprocess.run(
        [sys.executable, str(folder / "program.py")], capture_output=True, text=True, timeout=150, check=False,
        cwd=folder, env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def digest_of_program(tmp_path_factory):
    return digest(tmp_path_factory.mktemp("program"), PROGRAM)


def test_the_same_code_has_one_digest_in_every_process(tmp_path, digest_of_program):
    found = {digest(tmp_path, PROGRAM, hash_seed=str(seed)) for seed in (1, 2)}
    moved = digest(tmp_path, f"# a comment\n\n{PROGRAM}")

    assert found == {moved} == {digest_of_program} and len(moved.strip()) == 64


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("HELP = 1", "HELP = 2"),
        ("even.limit = 1", "even.limit = 2"),
        ("def __call__(cls, *args): return 1", "def __call__(cls, *args): return 2"),
        ("n == 0 or", "n <= 0 or"),
        ("in {\"x\", \"y\"", "in {\"x\", \"q\""),
        ("self.x in", "self.x not in"),
        ('"dddd"', '"eeee"'),
        ("SECOND = \"b\"", "SECOND = \"c\""),
        ('"lr": 0.1', '"lr": 0.2'),
        ("Point(3)", "Point(4)"),
    ],
)  # fmt: skip
def test_what_a_function_is_or_calls_changes_the_digest(tmp_path, digest_of_program, old, new):
    assert old in PROGRAM
    assert digest_of_program != digest(tmp_path, PROGRAM.replace(old, new))


def test_a_module_of_ones_own_counts_with_its_source(tmp_path, digest_of_program):
    assert digest_of_program != digest(tmp_path, PROGRAM, module="def work(): return 2\n")


def test_values_are_forgotten_with_whose_journal_nobody_has_gone_on_for_two_weeks(tmp_path):
    for name, days in (("old", 15), ("young", 13), ("open", 15)):
        with SweepJournal(tmp_path / f"{name}.jsonl") as journal:
            journal.add("begin")
        Store(values_beside(journal.path)).put("GRID_0000", Kept(1, 0.0))
        os.utime(journal.path, (time.time() - days * 86400,) * 2)

    with SweepJournal(tmp_path / "open.jsonl"):
        forget_old_values(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "old.jsonl", "open.jsonl", "open.jsonl.values", "young.jsonl", "young.jsonl.values",
    ]  # fmt: skip


def test_the_order_of_keywords_does_not_count(tmp_path):
    shelf = ResultStore(Store(tmp_path / "values"), Store(tmp_path / "cache"), "code")
    listed = [journals.describe(space.read([each]))["digests"] for each in ({"a": 1, "b": 2}, {"b": 2, "a": 1})]

    assert shelf.key({"a": 1, "b": 2}) == shelf.key({"b": 2, "a": 1}) != shelf.key({"a": 2, "b": 1})
    assert listed[0] == listed[1]


def test_the_order_of_the_keys_of_a_grid_counts_as_names_do():
    swapped = journals.describe(space.read({"model": ["a"], "lr": [0.1, 0.2]}))
    now = {**facts(), **swapped}

    says = ["order of the keys: lr, model in the journal, model, lr now"]
    assert journals.differences(json.loads(json.dumps(facts())), now) == says
    assert journals.differences(facts(sampler="optuna"), {**now, "sampler": "optuna"}) == []


class Tensor:
    """One of PyTorch, as far as its digest needs it: pickle would make it from an address."""

    requires_grad, dtype, uint8 = False, "float32", None

    def __init__(self, data, shape):
        self.data, self.shape = data, shape

    def __reduce_ex__(self, protocol):
        return Tensor, (id(self),)

    def itself(self, *_):
        return self

    detach = cpu = contiguous = reshape = view = numpy = itself

    def tobytes(self):
        return self.data


def test_equal_tensors_have_one_digest_wherever_they_are(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(Tensor=Tensor, uint8=None))
    # Else the source of all tests would count, and one of them may be edited meanwhile.
    monkeypatch.setattr(Tensor, "__module__", "torch")
    digests = [fingerprint(Tensor(*each)) for each in ((b"12", (2,)), (b"12", (2,)), (b"13", (2,)), (b"12", (1, 2)))]

    assert digests[0] == digests[1] and len(set(digests)) == 3


@pytest.mark.gpu  # where PyTorch is
def test_equal_tensors_of_pytorch_have_one_digest():
    torch = pytest.importorskip("torch")
    numbers = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]) for _ in range(2)]

    assert fingerprint(numbers[0]) == fingerprint(numbers[1]) != fingerprint(numbers[0].double())
    assert fingerprint(numbers[0]) != fingerprint(numbers[0].t()) != fingerprint(numbers[0] + 1)
    with pytest.raises(Unstable):
        fingerprint(numbers[0].to_sparse())


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict, types.MappingProxyType])
def test_the_order_within_a_value_counts_as_a_function_may_go_through_it(kind):
    layers = [kind(collections.OrderedDict(each)) for each in ([("conv", 1), ("relu", 2)], [("relu", 2), ("conv", 1)])]

    assert fingerprint(layers[0]) != fingerprint(layers[1])


def test_the_version_counts_of_what_is_imported_from_a_module(monkeypatch):
    from cloudpickle import dumps  # any of others

    before = fingerprint(lambda: dumps)
    monkeypatch.setattr("cloudpickle.__version__", "0")

    assert fingerprint(lambda: dumps) != before


def test_an_environment_counts_by_what_its_file_asks_for(tmp_path):
    file = tmp_path / "environment.yml"
    found = []
    for wanted in ("numpy=1", "numpy=2", "numpy=1  # again"):
        file.write_text(f"dependencies:\n  - python=3.11\n  - {wanted}\n")
        found.append(journals.code_of(names, parse_options({"environment": str(file)})))

    assert found[0] == found[2] != found[1]


def test_types_count():
    assert len({fingerprint(each) for each in (1, 1.0, True, "1", b"1", [1], (1,))}) == 7


def test_what_has_no_content_is_said_to_have_none():
    lock = threading.Lock()

    with pytest.raises(Unstable, match="lock cannot be compared"):
        fingerprint(lambda: lock)


# values that are kept


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root: it gives files away")
@pytest.mark.parametrize("given", ["the folder", "a link to the folder", "the file"])
def test_a_value_of_another_user_is_not_loaded(tmp_path, capsys, given):
    folder = tmp_path / "values"
    Store(folder).put("one", Kept(1, 0.0))
    if given == "a link to the folder":
        folder.rename(tmp_path / "elsewhere")
        folder.symlink_to(tmp_path / "elsewhere")
    os.chown(folder / "one.pkl" if given == "the file" else folder, 12345, 12345, follow_symlinks=False)

    if given == "the file":
        assert Store(folder).get("one", "GRID_0000") is None
        assert "it belongs to another user) and is computed again" in capsys.readouterr().err
    else:
        with pytest.raises(ConfigError, match=f"{folder} belongs to another user, whose code could run"):
            Store(folder)
    assert [path.name for path in (tmp_path / "values").iterdir()] == ["one.pkl"]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-3], lambda data: b"x" + data[1:]])
def test_a_damaged_value_is_none_and_one_line(tmp_path, capsys, damage):
    store = Store(tmp_path)
    store.put("one", Kept([1, 2, 3], 0.0))
    path = tmp_path / "one.pkl"
    path.write_bytes(damage(path.read_bytes()))

    assert store.get("one", "GRID_0007") is None
    assert capsys.readouterr().err.count("the value of GRID_0007 cannot be read") == 1


def test_a_value_that_cannot_be_kept_costs_a_line(tmp_path, capsys):
    Store(tmp_path).put("one", Kept(threading.Lock(), 0.0))

    assert "a value cannot be cached" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
