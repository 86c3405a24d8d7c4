"""A root moves whole: whenever it is interrupted, one of the two folders has all jobs, and the next try finishes it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("this part of clusterfn runs on hosts", allow_module_level=True)

from clusterfn.bridge.agent import moved
from clusterfn.bridge.agent.handler import Failure
from clusterfn.bridge.builder import build
from clusterfn.bridge.supervisor.copy_root import remove
from clusterfn.bridge.supervisor.move_root import Move, MoveRefused, move_root

FIRST, SECOND = "7f3a000000000001", "90aa000000000002"
CHANGING = ("link", "rename", "mkdir", "chmod", "unlink", "rmdir", "symlink")


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def add_job(root: Path, job_id: str, outcome: str | None = "returned", **more: object) -> Path:
    folder = root / "jobs" / job_id
    spec = {
        "format": 1, "id": job_id, "name": "train", "host": "here", "scheduler": "bare", "root": str(root),
        "bridge": f"{root}/bridge/aa", "keep_days": 14.0, "resources": {"cores": 1, "gpus": 0},
        "sys_path": [f"{root}/sources/bb", "/opt/x"], "env": {"CLUSTERFN_FILES": f"{root}/files", "A": f"{root}x"},
    }  # fmt: skip
    write(folder / "spec.json", json.dumps({**spec, **more}))
    write(folder / "attempts" / "1" / "value.pkl", f"value of {job_id}")
    if outcome is not None:
        write(folder / "attempts" / "1" / "outcome.json", json.dumps({"kind": outcome, "final": True}))
    return folder


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A root with two jobs that have ended, and some of everything else."""
    root = tmp_path / "old"
    root.mkdir(mode=0o700)
    for job_id in (FIRST, SECOND):
        add_job(root, job_id)
    for name in ("bridge/aa/supervise.py", "blobs/cc", "files/dd/data.csv", "cache/huggingface/token", "expired"):
        write(root / name, name)
    write(root / "pkgs" / "ee" / "files" / "bin" / "python", "#!")
    write(root / "uses" / "5d1c" / FIRST, f"{root}/jobs/{FIRST}")
    (root / "cache" / "absolute").symlink_to(root / "blobs" / "cc")
    (root / "cache" / "relative").symlink_to("huggingface")
    (root / "files" / "dd").chmod(0o500)
    os.utime(root / "blobs" / "cc", (1e9, 1e9))
    return root


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "elsewhere" / "new"


def contents(root: Path) -> dict[str, str]:
    """Each file that is not a note or a lock, with its text, in which the root is called ROOT."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and not path.is_symlink()]
    texts = {path.relative_to(root).as_posix(): re.sub(f'{root}(?=[/"])', "ROOT", path.read_text()) for path in files}
    return {name: text for name, text in texts.items() if not name.startswith(("builds/", "mov", ".mov"))}


def is_accepted(root: Path) -> bool:
    """Whether an agent accepts this root, and there are jobs in it."""
    try:
        moved.refuse_moved(str(root))
    except Failure:
        return False
    return (root / "jobs" / FIRST).is_dir()


def test_everything_arrives_with_its_dates_and_modes(old: Path, new: Path) -> None:
    before = contents(old)

    told = Move(str(old), str(new)).run()

    assert contents(new) == before
    assert (new / "blobs" / "cc").stat().st_mtime == 1e9
    assert (new / "files" / "dd").stat().st_mode & 0o777 == 0o500
    assert (told["step"], told["root"], told["left"]) == ("done", str(new), [])
    assert told["files"] == len(before)


def test_the_descriptions_of_jobs_name_the_new_root(old: Path, new: Path) -> None:
    Move(str(old), str(new)).run()
    spec = json.loads((new / "jobs" / FIRST / "spec.json").read_text())

    assert (spec["root"], spec["bridge"]) == (str(new), f"{new}/bridge/aa")
    assert spec["sys_path"] == [f"{new}/sources/bb", "/opt/x"]
    assert spec["env"] == {"CLUSTERFN_FILES": f"{new}/files", "A": f"{old}x"}
    assert (new / "uses" / "5d1c" / FIRST).read_text() == f"{new}/jobs/{FIRST}"
    assert os.readlink(new / "cache" / "absolute") == f"{new}/blobs/cc"
    assert os.readlink(new / "cache" / "relative") == "huggingface"


@pytest.mark.parametrize("name", ["old", "old root", "it's", "$HOME"])
@pytest.mark.parametrize("there", ["new", "new root", "isn't"])
def test_the_script_of_a_job_runs_below_the_new_root(tmp_path: Path, name: str, there: str) -> None:
    old, new = tmp_path / name, tmp_path / there
    old.mkdir(mode=0o700)
    folder, program = add_job(old, FIRST), shlex.quote(f"{old}/bridge/aa/show")
    lines = f"{program} {shlex.quote(str(old / 'jobs' / FIRST))}\necho end >{shlex.quote(f'{old}/jobs/{FIRST}/said')}\n"
    write(folder / "job.sh", f"X={shlex.quote(f'{old}/jobs/mine')}\n{lines}")
    write(old / "bridge" / "aa" / "show", '#!/bin/sh\necho "$1"\n').chmod(0o700)

    Move(str(old), str(new)).run()

    job = new / "jobs" / FIRST
    assert subprocess.run(["/bin/sh", job / "job.sh"], check=True, capture_output=True, text=True).stdout == f"{job}\n"
    assert (job / "said").read_text() == "end\n"
    assert f"X={shlex.quote(f'{old}/jobs/mine')}" in (job / "job.sh").read_text()


def test_another_name_of_the_old_root_is_corrected_too(old: Path, new: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(old)

    Move(str(tmp_path / "link"), str(new)).run()

    assert json.loads((new / "jobs" / FIRST / "spec.json").read_text())["root"] == str(new)
    assert sorted(path.name for path in (tmp_path / "link").iterdir()) == ["jobs", "moved"]


def test_the_old_root_says_where_it_is_now_and_takes_no_job(old: Path, new: Path) -> None:
    Move(str(old), str(new)).run()

    with pytest.raises(Failure, match=f"it has moved to {new}") as caught:
        moved.refuse_moved(str(old))
    assert caught.value.data["kind"] == "moved"
    assert sorted(path.name for path in old.iterdir()) == ["jobs", "moved"]
    assert (old / "jobs").stat().st_mode & 0o777 == 0o500
    assert is_accepted(new)
    assert not list(new.glob("mov*"))


def test_what_is_not_clusterfns_stays_where_it_is_and_is_named(old: Path, new: Path) -> None:
    write(old / "thesis.tex", "mine")

    told = Move(str(old), str(new)).run()

    assert told["left"] == [str(old / "thesis.tex")]
    assert (old / "thesis.tex").read_text() == "mine"
    assert not (new / "thesis.tex").exists()


def test_a_root_may_move_to_a_folder_inside_it(old: Path) -> None:
    told = Move(str(old), str(old / "below")).run()

    assert is_accepted(old / "below")
    assert told["left"] == []


@pytest.mark.parametrize("name", ["jobs/new", "envs", "cache"])
def test_it_may_not_move_into_a_part_of_itself(old: Path, name: str) -> None:
    with pytest.raises(MoveRefused, match="inside a folder that would be moved"):
        Move(str(old), str(old / name)).run()


def test_a_folder_with_other_files_is_refused_and_stays_as_it_is(old: Path, new: Path) -> None:
    write(new / "thesis.tex", "mine")

    with pytest.raises(MoveRefused, match="is not empty") as caught:
        Move(str(old), str(new)).run()
    assert caught.value.told["evidence"] == ["thesis.tex"]
    assert [path.name for path in new.iterdir()] == ["thesis.tex"]


def test_a_job_that_runs_is_named_and_nothing_moves(old: Path, new: Path) -> None:
    add_job(old, "1234567890abcdef", None)

    with pytest.raises(MoveRefused, match="1 job waits or runs") as caught:
        Move(str(old), str(new)).run()
    assert caught.value.told["evidence"][0].startswith("1234567890abcdef train ")
    assert not new.exists()


def test_a_job_that_is_being_sent_is_named_too(old: Path, new: Path) -> None:
    (old / "jobs" / "1234567890abcdef.part-7-9").mkdir()

    with pytest.raises(MoveRefused, match="1 job waits or runs") as caught:
        Move(str(old), str(new)).run()
    assert caught.value.told["evidence"] == ["1234567890abcdef is being sent"]


def test_a_supervisor_that_has_published_may_end_first(old: Path, new: Path) -> None:
    with subprocess.Popen(["sleep", "1"]) as script:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{script.pid}/stat").read_text()
        write(old / "jobs" / FIRST / "started", f"{boot} {stat}")
        threading.Thread(target=script.wait).start()

        Move(str(old), str(new)).run()

        assert script.returncode == 0
    assert is_accepted(new)


def test_a_job_that_comes_during_the_copy_is_found_before_the_hand_over(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chmod = os.chmod

    def close(path: Any, mode: int, **more: Any) -> None:
        if str(path) == str(old / "jobs") and mode == 0o500:
            add_job(old, "1234567890abcdef", None)
        chmod(path, mode, **more)

    monkeypatch.setattr(os, "chmod", close)
    with pytest.raises(MoveRefused, match="1 job waits or runs"):
        Move(str(old), str(new)).run()

    assert is_accepted(old)
    assert (old / "jobs").stat().st_mode & 0o700 == 0o700
    assert not is_accepted(new)


def test_a_job_that_comes_and_ends_during_the_copy_arrives(
    old: Path, new: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chmod = os.chmod

    def close(path: Any, mode: int, **more: Any) -> None:
        if str(path) == str(old / "jobs") and mode == 0o500:
            add_job(old, "1234567890abcdef")
            (old / "jobs" / SECOND / "attempts" / "1" / "value.pkl").write_text("written again")
        chmod(path, mode, **more)

    monkeypatch.setattr(os, "chmod", close)
    Move(str(old), str(new)).run()

    assert (new / "jobs" / "1234567890abcdef" / "attempts" / "1" / "outcome.json").exists()
    assert (new / "jobs" / SECOND / "attempts" / "1" / "value.pkl").read_text() == "written again"


def test_the_new_root_is_refused_until_it_is_whole(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chmod = os.chmod
    monkeypatch.setattr(os, "chmod", lambda path, mode, **more: 1 / (mode != 0o500) and chmod(path, mode, **more))
    (old / "files" / "dd").chmod(0o700)
    with pytest.raises(ZeroDivisionError):
        Move(str(old), str(new)).run()

    with pytest.raises(Failure, match=f"the move of {old} to {new} is not finished") as caught:
        moved.refuse_moved(str(new))
    assert caught.value.data["kind"] == "moving"
    assert is_accepted(old)


def killed_at(number: int, work: Callable[[], object]) -> bool:
    """Run `work` in a child that is killed at the call of that number that changes a file system; whether it was."""
    child = os.fork()
    if child:
        return os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 9
    left = [number]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **more: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os._exit(9)
            return call(*args, **more)

        return run

    code = 3
    try:
        for name in CHANGING:
            setattr(os, name, counted(getattr(os, name)))
        work()
        code = 0
    finally:
        os._exit(code)


def test_killed_at_any_moment_one_of_the_two_is_whole_and_the_next_try_finishes_it(
    tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "sync_file_system", lambda folder: None)  # hundreds of times, on a busy machine
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    for name in (f"jobs/{SECOND}", "bridge", "files", "expired", "cache/huggingface"):
        remove(str(old / name))
    kills = 0
    for number in range(1, 1000):
        root, new = tmp_path / f"root-{number}", tmp_path / f"new-{number}"
        Move(str(old), str(root)).run() if number == 1 else None
        root = root if number == 1 else tmp_path / f"new-{number - 1}"
        before = contents(root)
        was_killed = killed_at(number, lambda root=root, new=new: Move(str(root), str(new)).run())

        whole = [each for each in (root, new) if is_accepted(each) and contents(each) == before]
        assert whole, f"killed at {number}"
        told = Move(str(root if is_accepted(root) else new), str(new)).run()

        assert told["left"] == []
        assert contents(new) == before
        assert not is_accepted(root)
        assert sorted(path.name for path in root.iterdir()) == ["jobs", "moved"]
        kills += was_killed
        if not was_killed:
            break
    assert kills > 50


def test_an_old_root_that_became_a_link_to_the_new_one_loses_nothing(old: Path, new: Path, tmp_path: Path) -> None:
    before = contents(old)
    Move(str(old), str(new)).run()
    (new / "moved-from").write_text(json.dumps({"from": str(old), "to": str(new)}))  # as if something were left
    shutil.rmtree(old)
    old.symlink_to(new)

    for root in (old, new):
        Move(str(root), str(new)).run()
        assert contents(new) == before and is_accepted(new)
    assert not (new / "moved-from").exists()


def test_a_folder_that_has_the_old_roots_name_by_now_stays(old: Path, new: Path) -> None:
    before = contents(old)
    shutil.copytree(old, old.with_name("copy"), symlinks=True)
    Move(str(old), str(new)).run()
    (new / "moved-from").write_text(json.dumps({"from": str(old), "to": str(new)}))
    old.joinpath("jobs").chmod(0o700)
    shutil.rmtree(old)
    old.with_name("copy").rename(old)

    Move(str(new), str(new)).run()
    assert contents(old) == before


def test_a_root_on_its_way_to_another_folder_is_refused(old: Path, new: Path, tmp_path: Path) -> None:
    (old / "moving").write_text(json.dumps({"from": str(old), "to": str(tmp_path / "first")}))

    with pytest.raises(MoveRefused, match=f"is being moved to {tmp_path / 'first'}"):
        Move(str(old), str(new)).run()


def test_a_root_that_a_killed_move_has_closed_is_opened_if_it_cannot_move_now(old: Path, new: Path) -> None:
    (old / "moving").write_text(json.dumps({"from": str(old), "to": str(new)}))
    add_job(old, "1234567890abcdef", None)
    (old / "jobs").chmod(0o500)

    with pytest.raises(MoveRefused, match="1 job waits or runs"):
        Move(str(old), str(new)).run()
    assert is_accepted(old) and (old / "jobs").stat().st_mode & 0o777 == 0o700


def test_who_may_enter_the_folder_of_jobs_stays(old: Path, new: Path) -> None:
    (old / "jobs").chmod(0o750)
    add_job(old, "1234567890abcdef", None)
    with pytest.raises(MoveRefused):
        Move(str(old), str(new)).run()
    assert (old / "jobs").stat().st_mode & 0o777 == 0o750
    shutil.rmtree(old / "jobs" / "1234567890abcdef")

    Move(str(old), str(new)).run()
    assert (new / "jobs").stat().st_mode & 0o777 == 0o750


def test_a_relative_link_means_the_same_place_afterwards(old: Path, new: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("outside")
    work = old / "jobs" / FIRST
    (work / "out").symlink_to(os.path.relpath(tmp_path / "data", work))
    (work / "in").symlink_to("spec.json")

    Move(str(old), str(new)).run()
    assert (new / "jobs" / FIRST / "out").read_text() == "outside"
    assert os.readlink(new / "jobs" / FIRST / "in") == "spec.json"


def test_it_moves_back(old: Path, new: Path) -> None:
    before = contents(old)
    Move(str(old), str(new)).run()

    Move(str(new), str(old)).run()

    assert contents(old) == before
    assert is_accepted(old)
    assert not is_accepted(new)


def test_another_file_system_gets_copies(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **more: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    before, link = contents(old), os.link
    monkeypatch.setattr(os, "link", lambda a, b, **more: link(a, b, **more) if ".move" in str(b) else refuse())
    Move(str(old), str(new)).run()

    assert contents(new) == before
    assert (new / "blobs" / "cc").stat().st_mtime == 1e9


def test_what_is_there_already_is_not_copied_again(old: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    linked = []
    link = os.link
    monkeypatch.setattr(os, "link", lambda a, b, **more: (linked.append(str(a)), link(a, b, **more)))
    Move(str(old), str(new)).run()

    copied = [path for path in linked if path.startswith(f"{old}/")]
    assert len(copied) == len(set(copied)) > 5


@pytest.mark.parametrize(
    ("folder", "message"),
    [("relative/path", "not an absolute path"), ("$NO_SUCH_VARIABLE/x", "is a variable unset"), ("/proc/x/y", "/proc")],
)
def test_a_folder_that_cannot_be_is_told_in_one_line(
    old: Path, folder: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert move_root(str(old), folder, "[]") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["step"] == "refused"
    assert message in told["message"]


def test_a_folder_that_others_may_write_to_is_refused(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)

    assert move_root(str(old), str(open_to_all / "new"), "[]") == 1
    assert "another user could plant code there" in json.loads(capsys.readouterr().out)["message"]


def test_moving_to_the_root_itself_changes_nothing(old: Path) -> None:
    before = contents(old)
    told = Move(str(old), str(old)).run()

    assert (told["from"], told["root"], contents(old)) == (str(old), str(old), before)
