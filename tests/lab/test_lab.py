"""What the lab makes for one test is removed, and `down` removes nothing else."""

from __future__ import annotations

import json
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.bridge import login_shell
from clusterfn.hosts import scheduler_commands
from tests.lab import Lab, accounts, hosts, layout, teardown, totp
from tests.lab.processes import State

pytestmark = pytest.mark.lab


def test_nothing_of_a_newcomer_is_left(lab: Lab) -> None:
    with lab.newcomer() as newcomer:
        argv = ["setsid", "--fork", "sleep", "60"]
        subprocess.run(argv, user=newcomer.uid, cwd="/", check=True, timeout=150)
        assert accounts.processes_of({newcomer.uid})
    assert accounts.processes_of({newcomer.uid}) == []
    assert not newcomer.home.exists()
    assert newcomer.name not in {found.pw_name for found in pwd.getpwall()}


def test_down_would_remove_own_things_only(lab: Lab) -> None:
    words = [line.split(maxsplit=1) for line in teardown.removals(State.load())]
    places = {what for kind, what in words if kind in ("folder", "mount")}
    assert {what[:2] for kind, what in words if kind == "account"} == {"cf"}
    elsewhere = ("/run/sshd", str(layout.GRID_ENGINE_LIBRARIES))
    assert all(place in elsewhere or place.startswith(str(layout.ROOT)) for place in places)
    assert {what for kind, what in words if kind == "file"} == {str(totp.PAM_SERVICE)}


def test_what_makes_the_channel_needs_no_package_of_the_tests() -> None:
    argv = [sys.executable, "-S", "-c", "import tests.lab.channel"]
    subprocess.run(argv, cwd=Path(__file__).parents[2], check=True, timeout=150)


LOGIN_NODE = """
mount -t tmpfs none /run && mkdir -p /run/munge /run/slurm /run/user && mkdir $(seq -f /run/user/%.0f 1000 1020) &&
touch /run/munge/munge.socket.2 && mount -t tmpfs none /var/spool && mkdir /var/spool/slurmd &&
cp -r /etc /run/etc && mkdir -p /run/etc/slurm /run/etc/profile.d && touch /run/etc/slurm/slurm.conf &&
echo "export SLURM_CONF=/etc/slurm/slurm.conf" >/run/etc/profile.d/slurm.sh &&
echo "This is a login node." >/run/etc/motd && mount --bind /run/etc /etc && exec "$@"
"""


@pytest.mark.parametrize("apart", [(), hosts.APART], ids=["the machine", "a host"])
def test_a_host_shows_none_of_the_signs_by_which_this_machine_is_a_login_node(apart: tuple[str, ...]) -> None:
    question = {"wanted": {"slurm": {"programs": ["no-such-program"], "modules": [], "usual": []}}, "patience_s": 100}
    asked = json.dumps({**question, "signs": {**scheduler_commands.questions(), "programs": []}})
    machine = ["unshare", "--mount", "--propagation", "private", "sh", "-c", LOGIN_NODE, "sh"]
    argv = [*machine, *apart, sys.executable, "-I", "-S", "-c", Path(login_shell.__file__).read_text(), asked]

    signs = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True, timeout=150).stdout)["signs"]

    found = [bool(signs["files"]), bool(signs["variables"]), "login node" in signs["motd"]]
    assert found == [not apart] * 3
