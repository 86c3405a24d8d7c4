"""Maps on this machine: what their items get, what they leave, and what becomes of those that fail."""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from types import SimpleNamespace

import pytest

import clusterfn
from clusterfn import ConfigError, PayloadError, cluster

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="jobs cannot run on a Windows machine itself")


class Scale:
    def __init__(self, factor):
        self.factor = factor

    @cluster(host="here")
    def of(self, x, offset=0):
        return self.factor * x + offset


def test_a_method_of_an_object_has_submit_and_map_and_each_call_gets_the_constants(here):
    triple = Scale(3).of

    group = triple.map([1, 2], offset=10)
    job = triple.with_options(name="renamed").submit(4)

    assert group.results(150) == [13, 16] and group.name == "of"
    assert group.label(1) == "2"
    assert job.result(150) == 12 and job.name == "renamed"


def test_a_constant_that_the_function_does_not_take_is_rejected_before_anything_is_sent(here):
    with pytest.raises(ConfigError, match=r"map\(\) has no argument 'offse'; did you mean offset\?"):
        Scale(3).of.map([1], offse=10)
    with pytest.raises(TypeError, match="multiple values for argument 'x'"):
        Scale(3).of.map([1], x=10)

    assert not (here / "jobs").exists() or not any((here / "jobs").iterdir())


def second_time(gate, x):
    """Return x, but an odd one only when it is called again; say which time it is."""
    from pathlib import Path

    try:
        Path(gate, str(x)).mkdir()
    except FileExistsError:
        print(f"again {x}")
        Path("model.txt").write_text(f"retried {x}")
        return x
    print(f"first {x}")
    if x % 2:
        raise ValueError(x)
    Path("model.txt").write_text(f"model {x}")
    return x


second_time.__module__ = "__main__"


def test_a_host_that_asks_for_another_variable_at_a_retry_gets_none(here, tmp_path, monkeypatch):
    monkeypatch.setenv("SENT_TOKEN", "s3cret")
    other = secrets.token_hex(8)
    monkeypatch.setenv("OTHER_TOKEN", other)
    gate = tmp_path / "gate"
    gate.mkdir()
    group = cluster(host="here", secrets=["SENT_TOKEN"])(second_time).map([str(gate)] * 2, [2, 1])
    group.results(150)
    spec = here / "jobs" / group.id / "spec.json"
    told = json.loads(spec.read_text())
    assert told["secrets"] == ["SENT_TOKEN"]

    spec.write_text(json.dumps({**told, "secrets": ["SENT_TOKEN", "OTHER_TOKEN"]}))
    with pytest.raises(PayloadError, match="asks for the variable 'OTHER_TOKEN' of this process"):
        group.retry_failed()

    # Elements that end still remove files.
    assert subprocess.run(["grep", "--recursive", "--quiet", "--no-messages", other, here]).returncode != 0
    spec.write_text(json.dumps(told))
    assert clusterfn.attach(group.id).retry_failed().results(150) == [2, 1]


def test_a_retry_keeps_the_indices_the_arguments_and_what_had_returned(here, tmp_path, capfd, monkeypatch):
    gate = tmp_path / "gate"
    gate.mkdir()
    group = cluster(host="here")(second_time).map([str(gate)] * 6, range(10, 16))
    before = group.results(150)
    first, labels = group.id, [group.label(index) for index in range(6)]
    assert [type(each) for each in before] == [int, ValueError] * 3
    capfd.readouterr()

    assert group.retry_failed() is group

    assert group.results(150) == list(range(10, 16)) and group.failed == {} and group.id != first
    assert [group.label(index) for index in range(6)] == labels
    assert [group.logs(index) for index in (2, 3)] == ["first 12\n", "again 13\n"]
    assert [group.files(index)[0].name for index in (2, 3)] == ["model.txt"] * 2
    assert list(group) == list(range(10, 16)) and dict(group.as_completed()) == dict(enumerate(group))
    said = capfd.readouterr().err
    assert f"{group.id[:4]} second_time on here (again, of {first[:4]}): 3 items, " in said
    assert "[4/6] " in said and "[3/6] " not in said and "clusterfn: 6/6 returned" in said
    again = clusterfn.attach(group.id)
    assert again.results(150) == list(range(10, 16)) and again.logs(3) == "again 13\n"
    assert [again.label(index) for index in range(6)] == labels
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=lambda rows, index: rows, RangeIndex=range))
    for each in (group, again):
        assert [row["x"] for row in each.to_dataframe()] == list(range(10, 16))
    assert clusterfn.attach(first).failed.keys() == {1, 3, 5}


def test_what_fails_again_is_retried_again(here, tmp_path):
    group = cluster(host="here")(divmod).map([1, 1, 1], [1, 0, 0])
    assert group.results(150)[0] == (1, 0)

    for _ in range(2):
        results = group.retry_failed().results(150)
        assert results[0] == (1, 0) and [type(each) for each in results[1:]] == [ZeroDivisionError] * 2
    assert [type(each) for each in clusterfn.attach(group.id).results(150)] == [tuple, *[ZeroDivisionError] * 2]


def test_the_files_of_each_item_come_into_a_folder_of_its_own_also_after_a_retry(here, tmp_path, monkeypatch, capfd):
    (tmp_path / "gate").mkdir()
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path / "place")
    function = cluster(host="here", outputs=["*.txt", "*.pt"])(second_time)

    group = function.map([str(tmp_path / "gate")] * 3, range(3))
    results = group.results(150)
    made = {path.relative_to(group.outputs_to).as_posix(): path.read_text() for path in group.outputs_to.rglob("*.txt")}
    said = capfd.readouterr().err

    assert results[::2] == [0, 2] and made == {"0/model.txt": "model 0", "2/model.txt": "model 2"}
    assert group.outputs_to == tmp_path / "place" / f"second_time-{group.id[:4]}"
    assert f"{group.id[:4]} puts the files of item N into second_time-{group.id[:4]}/N\n" in said
    left = "item 2: outputs='*.pt' matches nothing; the job left model.txt"
    missing = f'{left}; fetch them: clusterfn.attach("{group.id}")'
    assert f'{missing}.download(2, "**", to=".")\n' in said
    folder = group.outputs_to
    assert group.retry_failed().results(150) == [0, 1, 2]
    assert group.outputs_to == folder and (folder / "1" / "model.txt").read_text() == "retried 1"
