"""Files as arguments and files that a function leaves: named by content, sent once, fetched whole, under any name."""

from __future__ import annotations

import os
import pathlib
import re

import pytest

from clusterfn import Directory, File, cluster
from tests.e2e.conftest import ON_BARE, ON_SLURM

pytestmark = pytest.mark.lab
ODD_NAMES = ["with space.txt", "ünïcode 漢.txt", "new\nline.txt", "quote'\"$`.txt", "-dash", "tab\t.txt"]


def read(path):
    with path.open(encoding="utf-8") as file:
        return path.name, file.read()


read.__module__ = "__main__"


def to_send(text):
    """Lines of f.script() about contents: those that would be sent, and those that are there already."""
    named = [line for line in text.splitlines() if re.search(r"/(files|blobs|sources)/", line)]
    there = [line for line in named if "(there already)" in line]
    return [line for line in named if line not in there], there


def test_a_second_call_sends_nothing_of_it(hosts, tmp_path):
    path, again = tmp_path / "big.bin", tmp_path / "again.bin"
    path.write_bytes(os.urandom(3 << 20))
    again.write_bytes(path.read_bytes())
    size = cluster(host="tensor01")(lambda path: path.stat().st_size)

    before = to_send(size.script(File(path)))
    assert size(File(path)) == 3 << 20
    after = to_send(size.script(File(path)))

    assert [len(lines) for lines in before] == [1, 0]
    assert "3 MB" in before[0][0]
    assert [len(lines) for lines in after] == [0, 1]


def test_what_was_sent_cannot_be_altered_by_a_function(hosts, tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("original")

    def alter(path):
        path.write_text("altered")

    with pytest.raises(PermissionError):
        cluster(host="tensor01")(alter)(File(path))

    assert cluster(host="tensor01")(read)(File(path)) == ("data.txt", "original")


@ON_SLURM
def test_a_directory_arrives_with_all_that_is_below_it(hosts, host, tmp_path):
    root = tmp_path / "model v2"
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").touch()
    (root / "deep" / "er" / "weights.bin").write_bytes(bytes(range(256)) * 100)
    (root / "café.txt").write_text("ü", encoding="utf-8")

    @cluster(host=host)
    def look(folder):
        found = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
        return folder.name, found

    expected = {"empty": 0, "deep/er/weights.bin": 25600, "café.txt": 2}
    assert look(Directory(root)) == ("model v2", expected)
    assert look.local(Directory(root)) == ("model v2", expected)


def test_files_inside_lists_and_keywords_travel_too(hosts, tmp_path):
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text("A")
    second.write_text("B")

    @cluster(host="tensor01")
    def texts(paths, *, more):
        return [path.read_text() for path in paths] + [path.read_text() for path in more.values()]

    assert texts([File(first), File(second)], more={"again": File(first)}) == ["A", "B", "A"]


def test_odd_names_arrive_as_they_are(hosts, tmp_path):
    for name in ODD_NAMES:
        (tmp_path / name).write_text("odd")

    @cluster(host="tensor01")
    def names(paths):
        return [path.name for path in paths if path.read_text() == "odd"]

    assert names([File(tmp_path / name) for name in ODD_NAMES]) == ODD_NAMES


@ON_BARE
def test_odd_names_are_listed_and_fetched_as_they_are(hosts, host, tmp_path):
    @cluster(host=host)
    def leave(names):
        import pathlib

        pathlib.Path("sub dir").mkdir()
        for name in names:
            pathlib.Path("sub dir", name).write_text(name)

    job = leave.submit(ODD_NAMES)
    job.result(150)

    assert {file.name for file in job.files} == {f"sub dir/{name}" for name in ODD_NAMES}
    fetched = job.download("**/*", to=tmp_path / "got")
    assert {path.name: path.read_text() for path in fetched} == {name: name for name in ODD_NAMES}


def test_a_working_directory_below_the_home_is_expanded(hosts, lab):
    function = cluster(host="tensor01", cwd="~/")(os.getcwd)

    assert function() == function.with_options(cwd="$HOME")() == str(lab.home("bash"))


@ON_BARE
def test_outputs_are_fetched_when_the_call_returns(hosts, host, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    @cluster(host=host, outputs=["*.pt", "plots/*.png"])
    def train():
        import pathlib

        pathlib.Path("plots").mkdir()
        for name in ("a.pt", "b.pt", "c.log", "plots/x.png", "plots/y.svg"):
            pathlib.Path(name).write_bytes(name.encode() * 1000)
        return "trained"

    assert train() == "trained"

    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"a.pt", "b.pt", "plots/x.png"}
    assert (tmp_path / "a.pt").read_bytes() == b"a.pt" * 1000


def test_outputs_that_are_not_there_are_reported_and_the_value_stays(hosts, capsys):
    def leaves():
        pathlib.Path("out.txt").write_text("x")
        return 7

    job = cluster(host="tensor01", outputs=["*.pt"])(leaves).submit()

    assert wait_in_this_thread(job) == 7
    how = f'fetch them: clusterfn pull {job.id[:4]} --only "**"'
    assert f"clusterfn: outputs='*.pt' matches nothing; the job left out.txt; {how}\n" in capsys.readouterr().err


def wait_in_this_thread(job):
    return job.result(150)
