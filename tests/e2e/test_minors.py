"""A caller and an environment of different minor versions of Python: the whole of a call, through real hosts."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.lab

CALLERS = ("3.9", "3.10", "3.11", "3.12", "3.13")
USUAL = {("3.9", "3.12")}  # from 3.13, tests/e2e/test_callers.py has one
PAIRS = [
    pytest.param(here, there, marks=() if (here, there) in USUAL else pytest.mark.long, id=f"{here}-to-{there}")
    for here in CALLERS
    for there in CALLERS
    if here != there
]

SCRIPT = """
from __future__ import annotations
import dataclasses, enum, functools, json, linecache, multiprocessing, os, sys
import beside, clusterfn
from clusterfn import PayloadError, ResultError, cluster

host, there = sys.argv[1], tuple(map(int, sys.argv[2].split(".")))
with open("ran", "a") as ran:
    ran.write("once ")
FACTOR = 3

class Kind(enum.Enum):
    A = 1
    B = 2

@dataclasses.dataclass
class Point:
    x: int
    kind: Kind = Kind.A

    def moved(self, by):
        return Point(self.x + by * FACTOR, Kind.B)

class Mine(Exception):
    def __init__(self, point, *, code):
        super().__init__(point)
        self.code = code

def logged(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        print("calling", function.__name__)
        return function(*args, **kwargs)
    return inner

@cluster(host=host)
@logged
def whole(point: Point, key, n=2):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        moved = pool.map(point.moved, range(n))
    return sys.version_info[:2], sorted(moved, key=key), beside.double(FACTOR), lambda p: p.x + n, os.path.exists("ran")

@cluster(host=host)
def fails(point):
    try:
        {}["inner"]
    except KeyError as error:
        raise Mine(point, code=Kind.B) from error

@cluster(host=host)
def gives(what):
    return {"a": [eval(what)]}

def message(error, call, *args):
    try:
        call(*args)
    except error as raised:
        return str(raised)
    raise AssertionError("nothing was raised")

job = whole.submit(Point(1), lambda p: -p.x)
version, points, doubled, back, ran_there = job.result(150)
assert version == there != sys.version_info[:2]
assert points == [Point(4, Kind.B), Point(1, Kind.B)] and type(points[0]) is Point and points[0].kind is Kind.B, points
assert doubled == 6 and back(Point(3)) == 5 and not ran_there
assert job.logs() == "calling whole\\n", job.logs()
again = clusterfn.attach(job.id).result(150)
assert type(again[1][0]) is Point and again[3](Point(1)) == 3
try:
    fails(Point(7))
except Mine as error:
    assert error.args == (Point(7),) and error.code is Kind.B and isinstance(error.__cause__, KeyError)
else:
    raise AssertionError("nothing was raised")

both = ["Python %d.%d" % version for version in (sys.version_info[:2], there)]
said = message(ResultError, gives, "lambda: 1")
assert "result['a'][0]" in said and "not available" in said, said
assert all(version[7:] in said for version in both), said
exec("def typed(): pass")
said = message(PayloadError, cluster(host=host)(typed))
assert "typed (<string>, line 1)" in said and all(version in said for version in both), said
newer = []
if sys.version_info >= (3, 10) > there:
    text = "def newer(x):\\n    match x:\\n        case 1: return 2\\n"
    linecache.cache["cell"] = (len(text), None, text.splitlines(True), "cell")
    exec(compile(text, "cell", "exec"))
    said = message(PayloadError, cluster(host=host)(newer), 1)
    assert "newer (cell, line 2)" in said and "Python 3.9 does not have this syntax" in said, said
if sys.version_info >= (3, 12) > there:
    text = "def nested(x):\\n    y = 1\\n    return f'{x['a']}'\\n"
    linecache.cache["cell2"] = (len(text), None, text.splitlines(True), "cell2")
    exec(compile(text, "cell2", "exec"))
    said = message(PayloadError, cluster(host=host)(nested), {"a": 1})
    assert "(cell2, line 3)" in said and all(version[7:] in said for version in both), said
assert open("ran").read() == "once ", open("ran").read()
print(json.dumps("whole"))
"""


@pytest.fixture
def environment_of(hosts, lab, tmp_path, monkeypatch):
    """Let the jobs of py36 run under the Python of that minor version."""

    def use(minor):
        path = hosts.describe(lab, tmp_path / "clusterfn.yml", lab.python(minor), "", ("py36",))
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        (tmp_path / "beside.py").write_text("def double(n):\n    return 2 * n\n")

    return use


@pytest.mark.parametrize(("here", "there"), PAIRS)
def test_a_whole_call(environment_of, caller, run_script, here, there):
    python = caller(here)
    environment_of(there)

    assert run_script(SCRIPT, "py36", there, python=python) == "whole"


REFUSED = """
import json, sys
from clusterfn import cluster, EnvironmentBuildError
try:
    cluster(host=sys.argv[1])(lambda: 1)()
except EnvironmentBuildError as error:
    print(json.dumps(str(error)))
"""


def test_an_environment_older_than_the_worker_is_refused_before_anything_is_sent(hosts, environment_of, run_script):
    environment_of("3.8")
    before = hosts.jobs()

    said = run_script(REFUSED, "py36")

    assert "has Python 3.8" in said
    assert "needs Python 3.9 or newer" in said
    assert hosts.jobs() == before
