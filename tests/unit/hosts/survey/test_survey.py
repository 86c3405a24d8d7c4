"""What hosts answer to the survey, as recorded, and the survey's program on this machine among hosts' programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.hosts import survey
from clusterfn.hosts.connection import Completed
from clusterfn.hosts.survey import Site, SurveyedGpus, read_site
from clusterfn.hosts.volumes import QuotaLeft, Volume, parse_quotas, read_volume
from clusterfn.scheduler.site import Section
from clusterfn.scheduler.slurm.site import Account, Partition, SlurmSite
from tests.processes import is_running
from tests.waiting import until

KB, GB = 1024, 2**30


def text(block: str) -> list[str]:
    return textwrap.dedent(block).strip("\n").splitlines()


def folder(df: str, inodes: str = "", **parts: list[str]) -> Section:
    """A folder that can be written to, on the file system that df describes."""
    told = {"path": ["/data/ann"], "df": text(df), "inodes": text(inodes), "write": [], "run": ["yes"]}
    return Section("volume-1", 0, ["$DATA"], {**told, "link": ["yes"], **parts})


XFS = """
    Filesystem     Type 1024-blocks     Used Available Capacity Mounted on
    /dev/sdb1      xfs    976762584 76762584 900000000       8% /data
"""
NFS_WITH_A_WARNING = """
    df: Warning: cannot read table of mounted file systems
    Filesystem                         Type 1024-blocks  Used Available Capacity Mounted on
    filer01.example.edu:/export/home/a nfs4        1000   100       900      10% /home/a
"""
BROKEN_LINE = """
    Filesystem     1024-blocks  Used Available Capacity Mounted on
    filer01.example.edu:/export/a/very/long/name
                          1000   100       900      10% /data
"""
BLANKS = """
    Filesystem        Type 1024-blocks  Used Available Capacity Mounted on
    //server/My Share cifs        1000   100       900      10% /mnt/My Share
"""
OVERFULL = """
    Filesystem     Type 1024-blocks  Used Available Capacity Mounted on
    tank/home      zfs         1000  1010       -10     101% /tank/home
"""


@pytest.mark.parametrize(
    ("df", "device", "kind", "free", "shared"),
    [
        (XFS, "/dev/sdb1", "xfs", 900000000 * KB, False),
        (NFS_WITH_A_WARNING, "filer01.example.edu:/export/home/a", "nfs4", 900 * KB, True),
        (BROKEN_LINE, "filer01.example.edu:/export/a/very/long/name", "", 900 * KB, False),
        (BLANKS, "//server/My Share", "cifs", 900 * KB, True),
        (OVERFULL, "tank/home", "zfs", 0, False),
    ],
)
def test_df_is_read_with_and_without_kinds(df, device, kind, free, shared):
    found = read_volume(folder(df), {})

    assert (found.device, found.kind, found.free_bytes, found.shared) == (device, kind, free, shared)
    assert (found.name, found.path) == ("$DATA", "/data/ann")


@pytest.mark.parametrize(
    ("inodes", "files"),
    [
        ("Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/sdb1 4915200 15200 4900000 1% /data", 4900000),
        ("Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/sdb1 0 0 0 - /data", None),  # btrfs
        ("Filesystem Inodes IUsed IFree IUse% Mounted on\n/dev/sdb1 - - - - /data", None),
        ("df: invalid option -- i", None),
    ],
)
def test_inodes_are_read_where_there_are_such(inodes, files):
    found = read_volume(folder(XFS, inodes), {})

    assert found.free_files == files


QUOTA = """
    Disk quotas for user ann (uid 1000):
         Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
          /dev/sda1  500000  900000 1000000              20       0     100
          /dev/sdb1   2000*    1000       0   6days      10       0       0
          /dev/sdc1      10       0       0              10       0       0
"""
WRAPPED_WITH_UNITS = """
    Disk quotas for user ann (uid 1000):
         Filesystem   space   quota   limit   grace   files   quota   limit   grace
    filer.example.edu:/vol/very/long/home
                      1024M      2G      3G            100k    200k    300k
"""


@pytest.mark.parametrize(
    ("said", "left"),
    [
        (QUOTA, {"/dev/sda1": (500000 * KB, 80), "/dev/sdb1": (0, None), "/dev/sdc1": (None, None)}),
        (WRAPPED_WITH_UNITS, {"filer.example.edu:/vol/very/long/home": (2 * GB, 200 * KB)}),
        ("Disk quotas for user ann (uid 1000): none", {}),
        ("quota: error while getting quota", {}),
        ("", {}),
    ],
    ids=["hard or soft limits", "units and a long name", "none", "an error", "nothing"],
)
def test_quota_leaves_what_is_under_the_hard_limit_or_else_the_soft_one(said, left):
    assert dict(parse_quotas([*text(said), ""])) == left


def test_quota_belongs_to_its_device():
    found = read_volume(folder(XFS), {"/dev/sdb1": QuotaLeft(7 * GB, 12), "/dev/sda1": QuotaLeft(0, 0)})

    assert (found.quota_bytes, found.quota_files, found.room_bytes, found.room_files) == (7 * GB, 12, 7 * GB, 12)


LUSTRE = """
    Filesystem                 Type   1024-blocks Used Available Capacity Mounted on
    10.0.0.1@o2ib:/scratch     lustre  1000000000    0 900000000       0% /scratch
"""
OF_USER = """
             /scratch    1000  2000000 3000000       -     100  0  0       -
"""
OF_GROUP_OVER = """
    /scratch/a/name/that/does/not/fit
                    5000*    4000    5000  6d23h59m      10  20  30       -
    Some errors happened when getting quota info. Some devices may be not working or deactivated.
"""


def test_of_all_quotas_of_lustre_the_smallest_counts():
    user = read_volume(folder(LUSTRE, lfs=text(OF_USER)), {})
    both = read_volume(folder(LUSTRE, lfs=text(OF_USER) + text(OF_GROUP_OVER)), {})

    assert user is not None and both is not None
    assert (user.quota_bytes, user.quota_files) == (2999000 * KB, None)
    assert (both.quota_bytes, both.quota_files) == (0, 20)
    assert both.shared


@pytest.mark.parametrize(
    ("said", "writable", "quota"),
    [
        ("sh: 1: cannot create .clusterfn-survey-9-1: Permission denied", False, None),
        ("sh: 1: cannot create .clusterfn-survey-9-1: Read-only file system", False, None),
        ("cat: write error: No space left on device", True, None),
        ("cat: write error: Disk quota exceeded", True, 0),
    ],
)
def test_a_full_folder_is_distinguished_from_a_forbidden_one(said, writable, quota):
    section = folder(XFS, write=[said])
    del section.parts["run"], section.parts["link"]

    found = read_volume(section, {})

    assert (found.writable, found.quota_bytes, found.noexec, found.links) == (writable, quota, False, None)


def test_a_script_that_cannot_be_started_shows_noexec():
    found = read_volume(folder(XFS, run=["sh: 1: ./.clusterfn-survey-9-1: Permission denied"]), {})

    assert found.noexec


CARDS = text("NVIDIA A100-SXM4-40GB, 40960, 570.86.15, 8.0\nNVIDIA A100-SXM4-80GB, 81920, 570.86.15, 8.0")


def test_gpus_are_read():
    found = survey.read_gpus(Section("gpus", 0, CARDS))

    assert found == SurveyedGpus(
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), 40960 * 2**20, "570.86.15", ("8.0", "8.0")
    )


@pytest.mark.parametrize(
    ("rc", "lines", "trouble"),
    [
        (18, ["Failed to initialize NVML: Driver/library version mismatch"], "version mismatch"),
        (6, ["No devices were found"], "No devices were found"),
        (0, ["\ufffd<html>502, [N/A]", ", , ,"], "502"),
        (1, [], "it ended with status 1"),
        (None, [], "did not answer in time"),
    ],
)
def test_what_nvidia_smi_says_instead_of_gpus_is_its_trouble(rc, lines, trouble):
    found = survey.read_gpus(Section("gpus", rc, lines))

    assert trouble in found.trouble
    assert not found.names


IN_A_SESSION = ["0::/user.slice/user-1000.slice/session-3.scope"]


@pytest.mark.parametrize(
    ("cgroup", "kill", "lives"),
    [
        (IN_A_SESSION, ["b true"], False),
        (IN_A_SESSION, ["b false"], True),
        (IN_A_SESSION, ["#KillUserProcesses=no"], True),
        (IN_A_SESSION, ["#KillUserProcesses=no", "KillUserProcesses=yes"], False),
        (IN_A_SESSION, [], None),
        ([], [], None),
    ],
)
def test_logind_ends_what_runs_in_a_session_where_it_is_configured_to(cgroup, kill, lives):
    assert survey.read_lingering(Section("logind", 0, cgroup, {"kill": kill})) is lives


def test_sections_survive_noise_and_what_did_not_end():
    found = survey.split_sections("Welcome!\nM\nM one 0\na\nM.part\nb\n\nM.part\nc\nM two \nd", "M")

    assert list(found) == ["one", "two"]
    assert (found["one"].rc, found["one"].lines, found["one"].part("part")) == (0, ["a"], ["b", "c"])
    assert (found["two"].rc, found["two"].lines) == (None, ["d"])


HUGE = "9" * 5000


@pytest.mark.parametrize("odd", ["²", "٣", HUGE, f"-{HUGE}"])
def test_what_looks_like_a_number_and_is_none_breaks_nothing(odd):
    text = (
        f"M partitions 0\nmain*|up|1:00|{odd}|gpu\nM gpus 0\nA100, {odd}, 5\nB100, 80, 5\n"
        f"M quotas 0\n/dev/x {odd}T 1 1\n"
        f"M volume-1 {odd}\n$HOME\nM.path\n/x\nM.df\n/dev/x nfs 1 1 {odd} 5% /\n"
    )
    found = read_site(survey.split_sections(text, "M"))

    assert found.schedulers == {"slurm": SlurmSite((Partition("main", True, "up", "1:00", 0, "gpu"),))}
    assert found.gpus is not None and found.gpus.names == ("B100",)


HOME = Volume("$HOME", "/home/ann", "nfs4", 100 * GB, 10**6, shared=True, device="filer:/home")
SCRATCH = Volume("$SCRATCH", "/scratch/ann", "lustre", 900 * GB, 10**9, shared=True, device="mds:/scratch")
NODES = {"slurm": SlurmSite()}
LOCAL = Volume("/data/ann", "/data/ann", "xfs", 5000 * GB, 10**9, device="/dev/sdb1")


def changed(volume: Volume, **values: Any) -> Volume:
    return Volume(**{**vars(volume), **values})


@pytest.mark.parametrize(
    ("volumes", "schedulers", "name", "reason"),
    [
        ([HOME, SCRATCH, LOCAL], NODES, "$HOME", "your home folder has plenty of space, 100 GB and 1000000 files"),
        ([changed(HOME, quota_bytes=5 * GB), SCRATCH, LOCAL], NODES, "$SCRATCH", "your home folder has 5 GB"),
        ([changed(HOME, quota_files=1000), SCRATCH], NODES, "$SCRATCH", "your home folder has 100 GB and 1000 files"),
        ([changed(HOME, noexec=True), SCRATCH], NODES, "$SCRATCH", "it has the most space, 900 GB"),
        ([changed(HOME, writable=False), SCRATCH], {}, "$SCRATCH", "it has the most space"),
        ([changed(HOME, free_bytes=GB), changed(LOCAL, kind="tmpfs")], {}, "$HOME", "it has the most space, 1 GB"),
        ([changed(HOME, shared=False), LOCAL], NODES, "$HOME", "it is your home folder, which the compute"),
    ],
)
def test_the_home_is_proposed_if_it_has_plenty_else_what_has_most_room(volumes, schedulers, name, reason):
    proposed = Site(tuple(volumes), schedulers).proposed_root()

    assert proposed[0].name == name
    assert reason in proposed[1]


def test_a_folder_that_cannot_be_written_to_or_in_which_everybody_could_replace_the_root_is_not_proposed():
    assert Site((changed(HOME, writable=False),)).proposed_root() is None
    assert Site((changed(HOME, mode="drwxrwxrwx"),)).proposed_root() is None
    assert Site((changed(HOME, mode="drwxrwxrwt"),)).proposed_root() is not None


needs_sh = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="hosts run Linux")


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., Site]:
    """Asks this machine; what stands in `bin` are the host's programs, and home and login files are its user's."""

    def run(timeout_s: float = 150.0, **programs: str) -> Site:
        for name, lines in programs.items():
            path = tmp_path / "bin" / name.replace("_", "-")
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{lines}\n")
            path.chmod(0o755)
        return survey.survey(connection(tmp_path), timeout_s)

    (tmp_path / "root").mkdir()
    return run


def connection(home: Path) -> Any:
    path = f"{home}/bin:/usr/bin:/bin"
    env = {"HOME": str(home), "PATH": path, "SHELL": "/bin/sh"}

    def asked(argv: list[str], unset: Any, timeout_s: float) -> Any:
        done = subprocess.run(
            argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, start_new_session=True
        )
        reply: Future[Completed] = Future()
        reply.set_result(Completed(done.returncode, None, done.stdout, done.stderr))
        return reply

    def use_commands(host: Host) -> Any:
        env.update(host.scheduler_env, PATH=":".join([*host.scheduler_path, path]))
        reply: Future[None] = Future()
        reply.set_result(None)
        return reply

    facts = SimpleNamespace(memory_bytes=2**36, user="ann", root=str(home / "root"), python=sys.executable)
    return SimpleNamespace(run=asked, facts=facts, host=Host("here", "here", "bare", "x"), use_commands=use_commands)


@needs_sh
def test_this_machines_folders_are_found_and_left_as_they_were(ask, tmp_path):
    site = ask()

    home = next(each for each in site.volumes if each.name == "$HOME")
    assert (home.path, home.writable, home.links) == (str(tmp_path.resolve()), True, True)
    assert home.free_bytes
    assert site.root.path == str(tmp_path.resolve() / "root")
    assert (sorted(os.listdir(tmp_path)), os.listdir(tmp_path / "root")) == (["root"], [])


@needs_sh
@pytest.mark.parametrize("number", range(3))
def test_no_link_that_another_user_puts_in_its_way_is_followed(ask, tmp_path, number):
    """In a folder without the sticky bit they can replace the folder that it tries in, once its name is known."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "try").write_text("a thesis")
    (tmp_path / "other").mkdir()
    target = ["mine", "other", "mine/try"][number]
    swaps = (
        'made=$(/usr/bin/mktemp "$@") || exit; case $2 in ./.*) '
        f'case $PWD in */root) rmdir "$made"; ln -s "{tmp_path}/{target}" "$made";; esac;; esac; echo "$made"'
    )

    ask(mktemp=swaps)

    assert (tmp_path / "mine" / "try").read_text() == "a thesis"
    assert (tmp_path / "mine" / "try").stat().st_mode & 0o777 != 0o700
    assert os.listdir(tmp_path / "mine") == ["try"]
    assert os.listdir(tmp_path / "other") == []


@needs_sh
def test_no_name_that_another_user_can_guess_is_written_in_a_shared_folder(ask, tmp_path):
    site = ask(mktemp='case $2 in ./*) echo "$2" >>"$HOME/names";; esac; exec /usr/bin/mktemp "$@"')

    assert site.root is not None and site.root.writable
    assert set((tmp_path / "names").read_text().split()) == {"./.clusterfn-survey-XXXXXXXX"}
    assert os.listdir(tmp_path / "root") == []


@needs_sh
def test_a_login_shells_variables_name_folders_whatever_it_prints_and_reads(ask, tmp_path):
    (tmp_path / "scratch").mkdir()
    noise = "echo Welcome; echo HOME=/nowhere\nread line\nmodule() { :; }\n"
    (tmp_path / ".profile").write_text(f"{noise}export SCRATCH='{tmp_path}/scratch' WORK=/none\n")

    site = ask()

    named = {each.name: each.path for each in site.volumes}
    assert named["$SCRATCH"] == str(tmp_path.resolve() / "scratch")
    assert named["$HOME"] == str(tmp_path.resolve())
    assert "$WORK" not in named


@needs_sh
def test_a_login_shell_that_exits_hides_nothing_else(ask, tmp_path):
    (tmp_path / ".profile").write_text("exit 7\n")

    site = ask()

    assert "$HOME" in {each.name for each in site.volumes}


@needs_sh
def test_a_folder_with_two_names_is_one(ask, tmp_path):
    (tmp_path / ".profile").write_text("export SCRATCH=$HOME\n")

    assert [each.name for each in ask().volumes if each.path == str(tmp_path.resolve())] == ["$HOME"]


@needs_sh
def test_programs_of_the_host_are_asked(ask, tmp_path):
    site = ask(
        sinfo="echo 'main*|up|1:00:00|2|gpu:4'",
        sacctmgr="echo 'physics||normal||||'",
        nvidia_smi="case $* in *compute_cap*) echo 'no such field'; exit 2;; esac; echo 'Tesla K80, 11441, 418.87'",
    )

    partition, physics = Partition("main", True, "up", "1:00:00", 2, "gpu:4"), Account("physics", "", ("normal",))
    assert site.schedulers == {"slurm": SlurmSite((partition,), (physics,))}
    assert site.gpus == SurveyedGpus(("Tesla K80",), 11441 * 2**20, "418.87")
    assert site.scheduler == "slurm"


@needs_sh
def test_what_hangs_is_named_and_ended_and_hides_nothing_else(ask, tmp_path):
    hangs = "echo $$ >>$HOME/pids; exec sleep 300"

    site = ask(timeout_s=30, sinfo=hangs, nvidia_smi=hangs, quota=hangs)  # enough for all else on a busy machine

    assert set(site.silent) == {"partitions", "gpus", "quotas"}
    assert site.schedulers == {"slurm": SlurmSite(trouble="it did not answer in time")}
    assert site.gpus == SurveyedGpus(trouble="it did not answer in time")
    assert site.root is not None
    started = (tmp_path / "pids").read_text().split()
    until(lambda: not any(map(is_running, map(int, started))))
