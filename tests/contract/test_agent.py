"""What the agent repeats, its limits, and how it begins: under each Python and through real login shells."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from clusterfn import HostDiskFull, HostError
from tests.contract.conftest import ODD, Connect, find_python, mode_of
from tests.waiting import WAIT_S, until


def test_still_speaks_when_a_file_stops_changing(here: Any, tmp_path: Path) -> None:
    beat, words = tmp_path / "heartbeat", []
    asked = here.still(str(beat), 2.0, lambda: words.append(time.monotonic()))
    written: list[float] = []
    for count in range(25):
        written.append(time.monotonic())
        beat.write_text(str(count))
        here.run(["sleep", "0.1"]).result(WAIT_S)
    changing = list(words)
    written.append(time.monotonic())

    until(lambda: len(words) > len(changing))
    asked.cancel()

    # Where this process stood still for so long, the file had indeed stopped changing.
    paused = any(after - before >= 2.0 for before, after in zip(written, [*written[2:], written[-1]]))
    assert paused or (changing == [] and words[0] - written[-2] > 1.0), (changing, words, written)
    assert words[-1] - written[-1] < 60


# what is repeated


def test_a_program_that_cannot_be_started_now_is_repeated_all_the_same(here: Any, tmp_path: Path) -> None:
    program, looks = tmp_path / "squeue", list[Any]()
    asked = here.repeat([str(program)], 0.05, looks.append)
    until(lambda: len(looks) > 1)
    assert {look.rc for look in looks} == {None} and "No such file" in looks[0].err
    (tmp_path / "new").write_text("#!/bin/sh\necho listed\n")
    (tmp_path / "new").chmod(0o700)

    (tmp_path / "new").rename(program)

    until(lambda: looks[-1].out == "listed\n")
    asked.cancel()


def test_a_repeated_program_tells_its_whole_answer_at_every_look(here: Any, tmp_path: Path) -> None:
    path, looks = tmp_path / "answer", []
    path.write_text("one")
    asked = here.repeat(["cat", str(path)], 0.05, looks.append)
    until(lambda: len(looks) >= 3)
    path.write_text("two")
    until(lambda: any(look.out == "two" for look in looks))
    asked.cancel()

    assert [look[:3] for look in looks[:2]] == [(0, "one", "")] * 2


# limits


def test_the_terminals_interrupt_does_not_reach_the_agent(connect_to: Connect, local_host: Any) -> None:
    assert os.getsid(connect_to(local_host).facts.pid) != os.getsid(0)


def test_the_root_is_private_and_one_that_anybody_may_write_is_refused(
    local_host: Any, connect_to: Connect, tmp_path: Path
) -> None:
    private = local_host._replace(root=str(tmp_path / "a" / "root"))
    connect_to(private)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)

    with pytest.raises(HostError, match="everybody may write to it: another user could plant code") as caught:
        connect_to(local_host._replace(root=str(tmp_path / "open")))
    assert caught.value.hint == f"run `chmod go-w {shlex.quote(str(tmp_path / 'open'))}` on here"
    assert mode_of(tmp_path / "a" / "root") == 0o700


def test_a_root_below_a_folder_that_others_may_write_to_is_refused_before_anything_is_made(
    connect_to: Connect, local_host: Any, tmp_path: Path
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    root = tmp_path / "open" / "mine" / "root"

    with pytest.raises(HostError, match="everybody may write to it, and .*/open/mine/root is inside it") as e:
        connect_to(local_host._replace(root=str(root)))
    assert str(tmp_path / "open") in e.value.message
    assert not root.parent.exists()


def test_a_root_with_an_unset_variable_is_refused(connect_to: Connect, local_host: Any) -> None:
    with pytest.raises(HostError, match="[$]NO_SUCH_VARIABLE is not set in a non-interactive shell of here"):
        connect_to(local_host._replace(root="$NO_SUCH_VARIABLE/x"))


@pytest.mark.parametrize("minor", [6, *(pytest.param(each, marks=pytest.mark.long) for each in (11, 13))])
def test_two_hundred_megabytes_each_way_take_little_memory(
    local_host: Any, connect_to: Connect, tmp_path: Path, minor: int, record_property: Any
) -> None:
    host = local_host._replace(python=find_python(minor))
    here = connect_to(host)
    big, size = tmp_path / "big", 200_000_000
    with (tmp_path / "source").open("wb") as file:
        file.truncate(size)
    got: list[int] = []

    here.put(str(big), tmp_path / "source").result(150)
    here.get(str(big), lambda data: got.append(len(data))).result(150)

    peak = int(Path(f"/proc/{here.facts.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    record_property("peak_kb", peak)
    assert (sum(got), peak <= 25 * 1024) == (size, True), peak


def test_a_slow_reader_does_not_make_the_agent_grow(connect_to: Connect, local_host: Any, tmp_path: Path) -> None:
    here = connect_to(local_host)
    (tmp_path / "big").write_bytes(bytes(60 * 2**20))
    got: list[int] = []
    blocked = [time.monotonic() + 1]

    def slow(data: bytes) -> None:
        while time.monotonic() < blocked[0]:
            until(lambda: time.monotonic() >= blocked[0])
        got.append(len(data))

    here.get(str(tmp_path / "big"), slow).result(150)

    peak = int(Path(f"/proc/{here.facts.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert (sum(got), peak < 26 * 1024) == (60 * 2**20, True), peak


# through ssh


@pytest.mark.lab
@pytest.mark.parametrize("shell", ["bash", "dash", "tcsh", "fish", "noisy", "space"])
def test_it_boots_through_any_login_shell(connect_to: Connect, lab_host: Any, shell: str) -> None:
    there = connect_to(lab_host(f"py36-{shell}"))

    assert there.facts.version[:2] == (3, 6)
    assert there.run(["printf", "%s\\0", *ODD]).result(WAIT_S).out.decode().split("\0") == [*ODD, ""]


@pytest.mark.lab
@pytest.mark.parametrize("minor", [8, 13])
def test_it_boots_under_any_python(connect_to: Connect, lab_host: Any, minor: int) -> None:
    assert connect_to(lab_host(f"py3{minor}-bash")).facts.version[:2] == (3, minor)


@pytest.mark.lab
def test_an_rc_file_that_exits_is_named(connect_to: Connect, lab_host: Any) -> None:
    with pytest.raises(
        HostError, match="The login shell on py36-exit did not start the agent.*exit status 7"
    ) as caught:
        connect_to(lab_host("py36-exit"))

    assert "an rc file must not exit" in (caught.value.hint or "")


@pytest.mark.lab
def test_a_full_disk_is_named_and_left_clean(connect_to: Connect, lab: Any, lab_host: Any, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(bytes(20 * 2**20))
    root = Path(tempfile.mkdtemp(prefix="clusterfn-small-", dir=lab.home("cfbash")))
    with lab.disk(root, "cfbash", "8m"):
        there = connect_to(lab_host("py36-bash", str(root)))
        place = f"{there.facts.root}/full/big"

        with pytest.raises(HostDiskFull, match=f"No space is left on py36-bash for {place}") as caught:
            there.put(place, tmp_path / "source").result(WAIT_S)

        assert any("20 MB needed" in line for line in caught.value.evidence)
        assert there.list(f"{there.facts.root}/full").result(WAIT_S) == []
    root.rmdir()


@pytest.mark.lab
def test_a_root_that_cannot_be_made_names_the_setting(connect_to: Connect, lab_host: Any) -> None:
    with pytest.raises(HostError, match="Read-only file system") as caught:
        connect_to(lab_host("py36-ro"))

    assert "set root: of host py36-ro (clusterfn.yml:1)" in (caught.value.hint or "")


# Python that is not there


def test_a_python_that_is_not_there_is_named_with_the_setting(
    connect_to: Connect, local_host: Any, tmp_path: Path
) -> None:
    host = local_host._replace(python="/no/such/python3")

    with pytest.raises(HostError, match="No Python 3.6 or newer was found on here") as caught:
        connect_to(host)

    assert caught.value.evidence == ("searched: /no/such/python3",)
    assert "python: /path/to/python3 under host here (clusterfn.yml:1)" in (caught.value.hint or "")


def test_a_python_that_is_too_old_is_not_taken(connect_to: Connect, local_host: Any, tmp_path: Path) -> None:
    old = tmp_path / "python2"
    old.write_text("#!/bin/sh\nexit 77\n")
    old.chmod(0o755)

    with pytest.raises(HostError, match="No Python") as caught:
        connect_to(local_host._replace(python=str(old)))

    assert f"older than 3.6, or does not start: {old}" in caught.value.evidence


def test_conda_is_found_when_nothing_else_is(
    local_host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connect_to: Connect
) -> None:
    base = tmp_path / "miniconda3" / "bin"
    base.mkdir(parents=True)
    (base / "python3").symlink_to(find_python(8))
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("grep", "tail"):
        (tools / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("SHELL", "/bin/false")
    monkeypatch.setattr(sys, "executable", "")  # or that one is taken, as this machine is the host

    here = connect_to(local_host)

    assert here.facts.version[:2] == (3, 8)
