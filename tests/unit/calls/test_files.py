"""Files and folders as arguments."""

from __future__ import annotations

import copy
import itertools
import os
import pathlib
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest

import clusterfn
from clusterfn import Directory, File, PayloadError
from tests.sent import prepared
from tests.waiting import until


def write(path: pathlib.Path, text: str = "x") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def shipment(argument: pathlib.Path) -> Any:
    """What is sent of it."""
    return prepared(print, (argument,)).shipments[0]


def names(path: pathlib.Path) -> list[str]:
    return [each.name for each in shipment(Directory(path)).contents.files]


def test_here_a_file_is_a_path(tmp_path):
    file = File(write(tmp_path / "a.txt", "text"))

    assert isinstance(file, pathlib.Path) and file.read_text() == "text" and file.name == "a.txt"
    assert copy.deepcopy(file) == file == pickle.loads(pickle.dumps(file))


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt")

    assert shipment(File("a.txt")).contents.files[0].path == str(tmp_path / "a.txt")
    assert shipment(Directory(".")).name == tmp_path.name


def test_a_directory_is_everything_below_it_in_order(tmp_path):
    write(tmp_path / "d/b.txt"), write(tmp_path / "d/a/c.txt")
    (tmp_path / "d/empty").mkdir()

    item = shipment(Directory(tmp_path / "d"))

    assert [each.name for each in item.contents.files] == ["a/c.txt", "b.txt"]
    assert item.is_directory and item.size == 2 and item.contents.folders == ["empty"]


def test_an_empty_directory_can_be_sent(tmp_path):
    (tmp_path / "d").mkdir()

    assert shipment(Directory(tmp_path / "d")).contents.files == []


def test_equal_content_has_one_digest_whatever_its_name(tmp_path):
    first, second = File(write(tmp_path / "a")), File(write(tmp_path / "b"))

    assert shipment(first).digest == shipment(second).digest != shipment(Directory(tmp_path)).digest


def test_a_file_that_became_a_program_is_another(tmp_path):
    path = write(tmp_path / "d/a")
    before = [shipment(File(path)).digest, shipment(Directory(tmp_path / "d")).digest]
    path.chmod(0o755)
    after = [shipment(File(path)).digest, shipment(Directory(tmp_path / "d")).digest]

    assert not {*before} & {*after}
    path.chmod(0o644)
    assert [shipment(File(path)).digest, shipment(Directory(tmp_path / "d")).digest] == before


def test_a_directory_with_another_name_inside_is_another(tmp_path):
    write(tmp_path / "d/a"), write(tmp_path / "e/b")

    assert shipment(Directory(tmp_path / "d")).digest != shipment(Directory(tmp_path / "e")).digest


def test_a_change_is_seen_even_with_the_old_size_and_time(tmp_path):
    path = write(tmp_path / "a", "one")
    before, times = shipment(File(path)).digest, path.stat()

    path.write_text("two")

    def is_another_change() -> bool:
        """Two changes within one tick of the file system's clock look the same."""
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return path.stat().st_ctime_ns != times.st_ctime_ns

    until(is_another_change)

    assert shipment(File(path)).digest != before


def test_links_are_followed(tmp_path):
    write(tmp_path / "elsewhere/a.txt")
    (tmp_path / "d").mkdir()
    (tmp_path / "d/file").symlink_to(tmp_path / "elsewhere/a.txt")
    (tmp_path / "d/folder").symlink_to(tmp_path / "elsewhere")

    assert names(tmp_path / "d") == ["file", "folder/a.txt"]
    assert shipment(File(tmp_path / "d/file")).name == "file"


def test_a_link_that_leads_back_ends(tmp_path):
    write(tmp_path / "d/a")
    (tmp_path / "d/back").symlink_to(tmp_path / "d")
    (tmp_path / "d/broken").symlink_to(tmp_path / "nowhere")

    assert names(tmp_path / "d") == ["a"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: File(folder / "none"), "cannot be read: .*No such file"),
        (lambda folder: File(folder), "is a folder"),
        (lambda folder: Directory(folder / "none"), "cannot be read: .*No such file"),
        (lambda folder: Directory(write(folder / "file")), "is a file"),
        (lambda folder: File("/dev/zero"), "is a device"),
        (lambda folder: File("a\0b"), "cannot be read"),
    ],
)
def test_what_is_not_there_or_of_the_other_kind_is_refused(tmp_path, make, message):
    with pytest.raises(PayloadError, match=message) as caught:
        shipment(make(tmp_path))
    assert caught.value.hint


@pytest.fixture
def as_nobody(tmp_path):
    """Root can read everything, so this is somebody else, to whom tmp_path belongs."""
    if os.geteuid() != 0:
        yield
        return
    nobody = 65534
    temporary = Path(tempfile.gettempdir())
    for folder in itertools.takewhile(lambda folder: folder != temporary, (tmp_path, *tmp_path.parents)):
        folder.chmod(0o755)
    os.chown(tmp_path, nobody, nobody)
    os.seteuid(nobody)
    yield
    os.seteuid(0)


def test_a_folder_that_cannot_be_read_is_refused_by_name(tmp_path, as_nobody):
    write(tmp_path / "d/secret/a")
    (tmp_path / "d/secret").chmod(0)

    with pytest.raises(PayloadError, match="secret"):
        shipment(Directory(tmp_path / "d"))
    (tmp_path / "d/secret").chmod(0o700)


def test_a_file_passed_by_two_paths_has_none_that_is_the_callers(tmp_path):
    paths = [tmp_path / name / "x.csv" for name in ("a", "b")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("same")

    assert prepared(print, tuple(map(File, paths))).given == {}
    assert list(prepared(print, (File(paths[0]),) * 2).given.values()) == [paths[0]]


def test_results_have_the_keys_that_the_caller_knows(tmp_path, warm_root, monkeypatch):
    config = tmp_path / "clusterfn.yml"
    host = f"{{scheduler: local, root: {warm_root}, limits: {{cores: 64}}}}"
    config.write_text(f"hosts:\n  {tmp_path.name}: {host}\n")
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(config))
    monkeypatch.chdir(tmp_path)
    for name in ("model1.zip", "model2.zip"):
        (tmp_path / name).write_text(name)

    def compare(paths):
        return {str(path): path.read_text() for path in paths}

    there = clusterfn.cluster(compare)
    models = [File("model1.zip"), File("model2.zip")]

    assert there(models) == {"model1.zip": "model1.zip", "model2.zip": "model2.zip"}
    assert there.map([models[:1]]).results() == [{"model1.zip": "model1.zip"}]
