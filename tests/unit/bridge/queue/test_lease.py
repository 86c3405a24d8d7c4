"""Marks as locked files, in a folder that every user may write to: one holder, whatever the others put there."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("fcntl")

from clusterfn.bridge.queue import gpu_leases, lease, lease_names, socket_table
from clusterfn.bridge.queue.arrivals import KEPT_S, AdmissionLock
from clusterfn.bridge.supervisor.process_tree import user_name
from clusterfn.bridge.supervisor.verdict import AttemptEnded

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


def test_who_inherits_a_name_holds_it_too(folder: Path):
    files = lease.FileLeases()
    first = files.hold("gpu/one")
    assert first is not None
    heir = os.dup(first.fileno())
    first.close()

    assert files.hold("gpu/one") is None
    os.close(heir)
    last = files.hold("gpu/one")
    assert last is not None
    last.close()
    assert not list(folder.iterdir())


def test_a_name_whose_file_is_removed_before_it_is_locked_is_claimed_again(folder: Path, monkeypatch):
    lock, looks = lease.lock_file, [lambda: set(lease.FileLeases().binders())]

    def late(fd: int, how: int) -> bool:
        if looks:
            assert looks.pop()() == set()  # another process lists the names, and removes the file
        return lock(fd, how)

    monkeypatch.setattr(lease, "lock_file", late)
    mark = lease.FileLeases().hold("gpu/one")

    assert mark is not None
    assert set(lease.FileLeases().binders()) == {"gpu/one"}
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
    assert as_bob(lambda: set(lease.FileLeases().binders()) == {"gpu/one"})
    mark.close()
    assert as_bob(lambda: lease.FileLeases().hold("gpu/one") is not None)


@pytest.mark.parametrize("umask", [0o077, 0o777])
def test_a_name_is_seen_by_all_whatever_the_umask(folder: Path, umask: int):
    before = os.umask(umask)
    try:
        mark = lease.FileLeases().hold("gpu/one")
    finally:
        os.umask(before)

    assert as_bob(lambda: set(lease.FileLeases().binders()) == {"gpu/one"})
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

    assert set(files.binders()) == set()
    mark = files.hold("gpu/one")

    assert mark is not None
    assert set(files.binders()) == {"gpu/one"}
    assert before - set(folder.iterdir()) <= {folder / ".clusterfn-mark-"}
    assert kept.exists()


def test_a_folder_in_which_others_may_remove_files_is_refused_by_name(folder: Path):
    folder.chmod(0o777)

    with pytest.raises(AttemptEnded) as caught:
        lease.FileLeases().hold("gpu/one")

    assert f"other users may remove files in {folder}" in caught.value.verdict.message
    assert "chmod 1777" in (caught.value.verdict.hint or "")


def test_a_folder_of_another_user_is_refused_by_name(folder: Path):
    if os.geteuid() != 0:
        pytest.skip("needs root: it gives a folder away")
    os.chown(folder, BOB, BOB)

    with pytest.raises(AttemptEnded, match=f"which belongs to the user with id {BOB}"):
        set(lease.FileLeases().binders())


def mounted(folder: Path, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a folder be a mount of another one of the same file system, as /proc/self/mountinfo tells."""
    rows = ["22 1 8:1 / / rw - ext4 /dev/sda1 rw", f"30 22 8:1 {source} {folder} rw shared:9 - ext4 /dev/sda1 rw"]
    (tmp_path / "mountinfo").write_text("".join(f"{row}\n" for row in rows))
    monkeypatch.setattr(lease, "MOUNTS", str(tmp_path / "mountinfo"))


@pytest.mark.parametrize(
    "source",
    [
        "/tmp/systemd-private-0123-cron.service-Ab3/tmp",  # PrivateTmp
        "/tmp-inst/system_u:object_r:tmp_t:s0_USER",  # pam_namespace, by context, by user, and for each login
        "/tmp-inst/USER",
        "/tmp/tmp-inst/kQ3xYz",
        "/USER",
    ],
)
def test_a_tmp_that_other_users_do_not_see_is_refused_by_name(folder: Path, source: str, tmp_path: Path, monkeypatch):
    source = source.replace("USER", user_name(os.geteuid()))
    mounted(folder, source, tmp_path, monkeypatch)

    with pytest.raises(AttemptEnded) as caught:
        lease.FileLeases().hold("gpu/one")

    assert caught.value.verdict.message.endswith(f"{folder} is not the one of other users here, but {source}")
    assert "remove `lease: file`" in (caught.value.verdict.hint or "")
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("source", ["/", "/tmp", "/srv/containers/tmp"])
def test_a_tmp_that_a_container_shares_with_its_machine_is_none_of_those(
    folder: Path, source: str, tmp_path: Path, monkeypatch
):
    mounted(folder, source, tmp_path, monkeypatch)

    assert lease.FileLeases().hold("gpu/one") is not None


def test_a_lease_that_is_held_does_not_grow_old(folder: Path):
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

        assert own_name not in set(lease.SocketLeases().binders())
        mark = lease.SocketLeases().hold(own_name)

    assert mark is not None and lease.SocketLeases().binders()[own_name] == os.getuid()
    mark.close()


def test_a_name_is_held_by_who_has_bound_it_though_nothing_listens(own_name: str):
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0clusterfn/{own_name}")

        assert lease.SocketLeases().hold(own_name) is None
        assert lease.SocketLeases().binders()[own_name] == os.getuid()


def test_a_name_that_its_user_holds_with_an_ending_is_held(own_name: str):
    own = f"run/{os.getuid()}/{own_name[4:]}/0/1/0"
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(f"\0clusterfn/{lease_names.with_ending(own, 'abcdef01')}")

        assert lease.SocketLeases().hold(own) is None

    mark = lease.SocketLeases().hold(own)
    assert mark is not None
    mark.close()


def test_of_gpus_that_are_too_few_none_is_held(own_name: str):
    uuids, leases = [f"{own_name[4:]}-{letter}" for letter in "abc"], lease.SocketLeases()
    mark = leases.hold(lease_names.gpu(uuids[1]))
    assert mark is not None

    with pytest.raises(gpu_leases.TooFew):
        gpu_leases.hold_gpus(leases, uuids, 3)

    held = gpu_leases.hold_gpus(leases, uuids, 2)
    assert list(held) == [uuids[0], uuids[2]]
    gpu_leases.release_gpus(held)
    mark.close()


def test_a_gpu_that_another_program_uses_is_exchanged_for_one_that_was_not_met_yet(own_name: str, monkeypatch):
    uuids, leases = [f"{own_name[4:]}-{letter}" for letter in "abc"], lease.SocketLeases()
    looks = iter([{uuids[0]: "python3 (pid 812, bob)"}, {}])
    monkeypatch.setattr(gpu_leases.gpus, "used_by_others", lambda _: next(looks))

    held = gpu_leases.replace_used_gpus(leases, gpu_leases.hold_gpus(leases, uuids, 2), uuids)

    assert list(held) == uuids[1:]
    gpu_leases.release_gpus(held)


def test_where_the_kernel_lists_no_sockets_the_table_of_proc_does(own_name: str, monkeypatch: pytest.MonkeyPatch):
    mark = lease.SocketLeases().hold(own_name)
    assert mark is not None

    monkeypatch.setattr(socket_table, "SOCK_DIAG", 1 << 20)  # a sandbox knows no such family

    assert lease.SocketLeases().binders()[own_name] is None
    mark.close()


def plant_files(folder: Path, names: list[str]) -> None:
    for number, name in enumerate(names):
        file = folder / f".clusterfn-mark-{name.replace('/', ':')}-{number:016x}"
        file.touch()
        os.chown(file, BOB, BOB)


def test_a_folder_full_of_another_users_files_is_looked_at_in_bounded_time(folder: Path, monkeypatch):
    """Whether they are for names of many jobs, or all for the one that a job wants."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it becomes another user")
    monkeypatch.setattr(lease, "MOST_OF_ANOTHER", 20)
    opened, real = [], os.open
    plant_files(folder, [f"run/{BOB}/{number}" for number in range(100)] + ["gpu/one"] * 100)
    monkeypatch.setattr(lease.os, "open", lambda path, *how, **more: (opened.append(path), real(path, *how, **more))[1])
    files = lease.FileLeases()

    first, second = files.hold("gpu/one"), files.hold("gpu/two")

    assert first is not None and second is not None
    assert set(files.binders()) == {"gpu/one", "gpu/two"}
    assert len(opened) < 100
    assert files.hold("gpu/one") is None


def test_of_all_names_that_another_user_binds_a_part_is_looked_at_and_ones_own_are_always(monkeypatch):
    monkeypatch.setattr(lease, "MOST_OF_ANOTHER", 20)
    own, other = (socket_table.Binding(uid, 1) for uid in (os.getuid(), BOB))
    bound = {f"run/{BOB}/{number}": other for number in range(100)}
    bound |= {f"run/{os.getuid()}/{number}": own for number in range(100)} | {"gpu/one": socket_table.Binding(None, 1)}
    monkeypatch.setattr(socket_table, "bound_names", lambda _: dict(bound))

    seen = lease.SocketLeases().binders()

    held_by = list(seen.values())
    assert (held_by.count(BOB), held_by.count(os.getuid()), seen["gpu/one"]) == (20, 100, None)


def test_a_lock_that_one_process_keeps_is_waited_for_no_longer_than_two_seconds(
    own_name: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lease_names, "ADMISSION", own_name)
    marks = lease.SocketLeases()
    mark = marks.hold(own_name)
    assert mark is not None
    began, tries, hold = time.monotonic(), [], marks.hold
    monkeypatch.setattr(marks, "hold", lambda name: (tries.append(name), hold(name))[1])

    with AdmissionLock(marks) as lock:
        took, tried = time.monotonic() - began, len(tries)
        assert not lock.is_held
    with AdmissionLock(marks, marks.keeper(own_name)) as lock:
        assert not lock.is_held and len(tries) - tried < tried

    assert took >= KEPT_S
    mark.close()
    with AdmissionLock(marks) as lock:
        assert lock.is_held
    assert not lock.is_held
