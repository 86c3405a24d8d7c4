"""Marks as locked files, in a folder that every user may write to: one holder, whatever the others put there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from clusterfn.bridge.queue import lease, lease_names, socket_table
from clusterfn.bridge.supervisor.verdict import Verdict

BOB = 64_001  # nobody has this number


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as /tmp is one, below nobody's own."""
    path = Path(tempfile.mkdtemp(prefix="clusterfn-marks-"))
    path.chmod(0o1777)
    monkeypatch.setattr(lease, "FOLDER", str(path))
    yield path
    shutil.rmtree(path)


def as_bob(work: Callable[[], bool]) -> bool:
    """What `work` gives as another user."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            os.setgroups([])
            os.setresgid(BOB, BOB, BOB)
            os.setresuid(BOB, BOB, BOB)
            code = int(work())
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status in (0, 1)
    return bool(status)


def test_a_name_has_one_holder_until_that_lets_go(folder: Path):
    files = lease.FileLeases()
    first = files.hold("gpu/one")

    assert first is not None
    assert files.hold("gpu/one") is None
    assert files.names() == {"gpu/one"}
    first.close()
    assert list(folder.iterdir()) == []
    assert files.names() == set()
    assert files.hold("gpu/one") is not None


def test_who_inherits_a_name_holds_it_too(folder: Path):
    files = lease.FileLeases()
    first = files.hold("gpu/one")
    assert first is not None
    heir = os.dup(first.fileno())
    first.close()

    assert files.hold("gpu/one") is None
    os.close(heir)
    assert files.hold("gpu/one") is not None


def test_of_many_that_come_together_one_holds_the_name(folder: Path):
    code = (
        "import sys; from clusterfn.bridge.queue import lease; lease.FOLDER = sys.argv[1]\n"
        "sys.stdin.read(1); mark = lease.FileLeases().hold('gpu/one'); print(mark is not None, flush=True)\n"
        "sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code, str(folder)]
    many = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(5)]
    for each in many:
        assert each.stdin is not None
        each.stdin.write("x")
        each.stdin.flush()

    won = [each.stdout.readline().strip() for each in many if each.stdout is not None]

    for each in many:
        each.communicate()
    assert sorted(won) == ["False"] * 4 + ["True"]


def test_a_name_whose_file_is_removed_before_it_is_locked_is_claimed_again(folder: Path, monkeypatch):
    lock, looks = lease.lock_file, [lease.FileLeases().names]

    def late(fd: int, how: int) -> bool:
        if looks:
            assert looks.pop()() == set()  # another process lists the names, and removes the file
        return lock(fd, how)

    monkeypatch.setattr(lease, "lock_file", late)
    mark = lease.FileLeases().hold("gpu/one")

    assert mark is not None
    assert lease.FileLeases().names() == {"gpu/one"}
    assert lease.FileLeases().hold("gpu/one") is None


def test_another_user_holds_no_name_that_is_held_and_removes_none(folder: Path):
    mark = lease.FileLeases().hold("gpu/one")
    assert mark is not None
    (file,) = folder.iterdir()

    def removes() -> bool:
        try:
            file.unlink()
        except PermissionError:
            return False
        return True

    assert not as_bob(lambda: lease.FileLeases().hold("gpu/one") is not None)
    assert not as_bob(removes)
    assert as_bob(lambda: lease.FileLeases().names() == {"gpu/one"})
    mark.close()
    assert as_bob(lambda: lease.FileLeases().hold("gpu/one") is not None)


@pytest.mark.parametrize("umask", [0o077, 0o777])
def test_a_name_is_seen_by_all_whatever_the_umask(folder: Path, umask: int):
    before = os.umask(umask)
    try:
        mark = lease.FileLeases().hold("gpu/one")
    finally:
        os.umask(before)

    assert as_bob(lambda: lease.FileLeases().names() == {"gpu/one"})
    assert mark is not None


def test_what_others_put_there_is_neither_waited_for_nor_followed_nor_removed(folder: Path, tmp_path: Path):
    kept = tmp_path / "thesis.tex"
    kept.write_text("")
    (folder / ".clusterfn-mark-gpu:one-1").symlink_to(kept)
    os.mkfifo(folder / ".clusterfn-mark-gpu:one-2")
    (folder / ".clusterfn-mark-gpu:one-3").mkdir()
    (folder / ".clusterfn-mark-gpu:one-4").write_text("mine")
    (folder / ".clusterfn-mark-").write_text("")
    (folder / "thesis.tex").write_text("")
    before = set(folder.iterdir())
    files = lease.FileLeases()

    assert files.names() == set()
    mark = files.hold("gpu/one")

    assert mark is not None
    assert files.names() == {"gpu/one"}
    assert before - set(folder.iterdir()) <= {folder / ".clusterfn-mark-"}
    assert kept.exists()


def test_a_folder_in_which_others_may_remove_files_is_refused_by_name(folder: Path):
    folder.chmod(0o777)

    with pytest.raises(Verdict) as caught:
        lease.FileLeases().hold("gpu/one")

    assert f"other users may remove files in {folder}" in caught.value.facts["message"]
    assert "chmod 1777" in caught.value.facts["hint"]


def test_a_folder_of_another_user_is_refused_by_name(folder: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root: it gives a folder away")
    os.chown(folder, BOB, BOB)

    with pytest.raises(Verdict, match=f"which belongs to the user with id {BOB}"):
        lease.FileLeases().names()


def test_a_mark_that_is_held_does_not_grow_old(folder: Path):
    mark = lease.FileLeases().hold("gpu/one")
    assert mark is not None
    (file,) = folder.iterdir()
    os.utime(file, (0, 0))

    mark.touch()

    assert file.stat().st_mtime > 10**9


def test_a_file_of_another_user_with_ones_own_name_holds_nothing(folder: Path):
    name, theirs = f"run/{os.getuid()}/aaaaaaaaaaaaaaaa/0/1/0", f"run/{BOB}/bbbbbbbbbbbbbbbb/0/1/0"
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    import fcntl  # Unix's

    ready, done = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(done[1])  # it ends with this test, however that ends
        os.setresgid(BOB, BOB, BOB)
        os.setresuid(BOB, BOB, BOB)
        (folder / f".clusterfn-mark-{name.replace('/', ':')}-0").touch()
        false = os.open(folder / f".clusterfn-mark-{name.replace('/', ':')}-0", os.O_RDONLY)
        lease.lock_file(false, fcntl.LOCK_EX)
        own = lease.FileLeases().hold(theirs)
        os.write(ready[1], b"1" if own is not None else b"0")
        os.read(done[0], 1)
        os._exit(0)
    assert os.read(ready[0], 1) == b"1"

    assert lease.FileLeases().binders() == {theirs: BOB}
    mark = lease.FileLeases().hold(name)
    assert mark is not None

    os.write(done[1], b"1")
    os.waitpid(pid, 0)
    mark.close()
    for end in (*ready, *done):
        os.close(end)


@pytest.fixture
def own_name() -> str:
    """A name that no other process of this machine uses."""
    if not sys.platform.startswith("linux"):
        pytest.skip("abstract sockets are Linux's")
    return f"gpu/GPU-of-test-{os.getpid()}"


def test_a_socket_of_another_kind_holds_no_name(own_name: str):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(f"\0clusterfn/{own_name}")

        assert own_name not in lease.SocketLeases().names()
        mark = lease.SocketLeases().hold(own_name)

    assert mark is not None and lease.SocketLeases().binders()[own_name] == os.getuid()
    mark.close()


def test_a_name_is_held_by_who_has_bound_it_though_nothing_listens(own_name: str):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0clusterfn/{own_name}")

        assert lease.SocketLeases().hold(own_name) is None
        assert lease.SocketLeases().binders()[own_name] == os.getuid()


def test_where_the_kernel_lists_no_sockets_the_table_of_proc_does(own_name: str, monkeypatch: pytest.MonkeyPatch):
    mark = lease.SocketLeases().hold(own_name)
    assert mark is not None

    monkeypatch.setattr(socket_table, "SOCK_DIAG", 1 << 20)  # a sandbox knows no such family

    assert lease.SocketLeases().binders()[own_name] is None
    mark.close()


def test_a_lock_that_one_process_keeps_is_waited_for_no_longer_than_two_seconds(
    own_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease_names, "ADMISSION", own_name)
    marks = lease.SocketLeases()
    mark = marks.hold(own_name)
    assert mark is not None
    began = time.monotonic()

    assert lease.admission_lock(marks) is None
    took = time.monotonic() - began
    assert lease.admission_lock(marks, marks.keeper(own_name)) is None

    assert took >= lease.KEPT_S and time.monotonic() - began - took < took
    mark.close()
    lock = lease.admission_lock(marks)
    assert lock is not None
    lock.close()
