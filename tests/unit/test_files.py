"""Files and folders as arguments."""

from __future__ import annotations

import copy
import os
import pathlib
import pickle

import pytest

from clusterfn import PayloadError
from clusterfn.files import Directory, File, shipment


def write(path: pathlib.Path, text: str = "x") -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(path: pathlib.Path) -> list[str]:
    return [name for name, _ in shipment(Directory(path)).members]


def test_here_a_file_is_a_path(tmp_path):
    file = File(write(tmp_path / "a.txt", "text"))

    assert isinstance(file, pathlib.Path) and file.read_text() == "text" and file.name == "a.txt"
    assert copy.deepcopy(file) == file == pickle.loads(pickle.dumps(file))


def test_a_file_is_one_member_without_a_name(tmp_path):
    path = write(tmp_path / "a.txt", "text")

    item = shipment(File(path))

    assert (item.name, item.members, item.size, item.is_directory) == ("a.txt", (("", path),), 4, False)


def test_a_relative_path_is_taken_from_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.txt")

    assert shipment(File("a.txt")).members[0][1] == tmp_path / "a.txt"
    assert shipment(Directory(".")).name == tmp_path.name


def test_a_directory_is_everything_below_it_in_order(tmp_path):
    write(tmp_path / "d/b.txt"), write(tmp_path / "d/a/c.txt")
    (tmp_path / "d/empty").mkdir()

    item = shipment(Directory(tmp_path / "d"))

    assert [name for name, _ in item.members] == ["a/c.txt", "b.txt"]
    assert item.is_directory and item.size == 2


def test_an_empty_directory_can_be_sent(tmp_path):
    (tmp_path / "d").mkdir()

    assert shipment(Directory(tmp_path / "d")).members == ()


@pytest.mark.parametrize("name", ["ü", "a\nb", "a b", "🎉", "-n", os.fsdecode(b"\xff")])
def test_odd_names_travel(tmp_path, name):
    write(tmp_path / "d" / name)

    assert names(tmp_path / "d") == [name]
    assert shipment(File(tmp_path / "d" / name)).name == name


def test_equal_content_has_one_digest_whatever_its_name(tmp_path):
    first, second = File(write(tmp_path / "a")), File(write(tmp_path / "b"))

    assert shipment(first).digest == shipment(second).digest != shipment(Directory(tmp_path)).digest


def test_a_directory_with_another_name_inside_is_another(tmp_path):
    write(tmp_path / "d/a"), write(tmp_path / "e/b")

    assert shipment(Directory(tmp_path / "d")).digest != shipment(Directory(tmp_path / "e")).digest


def test_a_change_is_seen_even_with_the_old_size_and_time(tmp_path):
    path = write(tmp_path / "a", "one")
    before, times = shipment(File(path)).digest, path.stat()

    path.write_text("two")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

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
        (lambda folder: Directory(folder / "none"), "is not there"),
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
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
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
