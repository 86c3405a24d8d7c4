"""A newcomer's first hour: a new account with a password, a laptop that has never seen ssh, and the README.

What is typed are the README's own commands and answers to what is asked. The laptop is a shell on a
terminal of its own whose home is empty, for ssh too, which takes it from the passwd file.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import REPOSITORY
from tests.e2e.terminal import PROMPT, Terminal
from tests.waiting import Beside

pytestmark = pytest.mark.lab

FIRST_HOUR = re.compile(r"<!-- first hour -->\n((?:    .+\n)+)")
INSTALL = "    pip install .\n"
ADDRESS = "ada@tensor01.example.edu"
MOST_COMMANDS = 6
PASSWORD = r"[Pp]assword: $"
RETURNS = {r"\]: $": "", r"\[Y/n\] $": ""}
TRUSTS = {r"\[y/N, or paste one\] $": "y"}


def readme_commands(address: str) -> list[str]:
    """What the README has a newcomer type after installing, with this address."""
    block = FIRST_HOUR.search((REPOSITORY / "README.md").read_text(encoding="utf-8"))
    assert block is not None
    lines = [line.partition("#")[0].strip() for line in block[1].splitlines()]
    assert any(ADDRESS in line for line in lines)
    return [line.replace(ADDRESS, address) for line in lines]


class Laptop:
    """A machine on which nothing was set up, with an empty home, and a project to start in."""

    def __init__(self, folder: Path, scripts: Path) -> None:
        import pwd  # of Unix, as the lab is

        self.home, self.project, self.etc = folder / "home", folder / "project", folder / "etc"
        self.home.mkdir(mode=0o700)
        self.project.mkdir()
        self.env = {"HOME": str(self.home), "PATH": f"{scripts}:/usr/local/bin:/usr/bin:/bin", "TERM": "xterm",
                    "LANG": "C.UTF-8", "TMPDIR": str(folder)}  # fmt: skip
        # Another test may be adding an account, whose temporary files come and go: passwd.123, passwd+, passwd-.
        temporary = ("passwd?*", "group?*", "subuid?*", "subgid?*", "*.lock")
        shutil.copytree("/etc", self.etc, symlinks=True, ignore=shutil.ignore_patterns("*shadow*", *temporary))
        mine = pwd.getpwuid(os.geteuid())
        passwd = self.etc / "passwd"
        passwd.write_text(passwd.read_text().replace(f":{mine.pw_dir}:{mine.pw_shell}", f":{self.home}:/bin/bash"))

    def inside(self, *argv: str) -> list[str]:
        """A command as the laptop's user starts it."""
        return ["unshare", "--mount", "sh", "-c", f'mount --bind "{self.etc}" /etc && exec "$@"', "sh", *argv]

    def files(self) -> set[str]:
        """What lies in the home and the project."""
        found = [*self.home.rglob("*"), *self.project.rglob("*")]
        return {path.relative_to(self.home.parent).as_posix() for path in found if path.is_file()}


@pytest.fixture
def laptop(tmp_path: Path) -> Laptop:
    return Laptop(tmp_path, Path(sys.executable).parent)


@pytest.fixture
def terminal(laptop: Laptop) -> Iterator[Terminal]:
    shell = Terminal(laptop.inside("bash", "--norc", "--noprofile", "-i"), laptop.project, laptop.env)
    yield shell
    shell.close()


@pytest.fixture
def newcomer(lab: Any) -> Iterator[Any]:
    with lab.newcomer() as found:
        yield found


@pytest.fixture
def address(lab: Any, newcomer: Any) -> str:
    return f"{newcomer.name}@127.0.0.1:{lab.host('password').port}"


class Onlooker(Beside):
    """Looks again and again for a word in the arguments and variables of all processes of this machine."""

    _NAMES = ("cmdline", "environ")

    def __init__(self, word: str) -> None:
        self.seen: set[str] = set()
        self.looks = 0
        self._word = word.encode()
        super().__init__()

    def work(self) -> None:
        while not self.over.wait(0.1):
            self.looks += 1
            paths = [f"/proc/{pid}/{name}" for pid in os.listdir("/proc") if pid.isdigit() for name in self._NAMES]
            self.seen |= set(filter(self._holds, paths))

    def _holds(self, path: str) -> bool:
        try:
            return self._word in Path(path).read_bytes()
        except OSError:  # it has ended
            return False


def holding(word: str, *folders: Path) -> list[str]:
    """The files below these folders that hold a word; some come and go meanwhile."""
    argv = ["grep", "-rlF", "-f", "-", *folders]
    return subprocess.run(argv, input=word, stdout=subprocess.PIPE, text=True, check=False).stdout.splitlines()


@pytest.mark.timeout(1200)
def test_the_readme_leads_to_a_result(
    laptop: Laptop, terminal: Terminal, newcomer: Any, address: str, lab: Any
) -> None:
    typed = readme_commands(address)
    assert INSTALL in (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert 1 + len(typed) <= MOST_COMMANDS

    answers = {**RETURNS, **TRUSTS, PASSWORD: newcomer.password}
    with Onlooker(newcomer.password) as onlooker:
        shown = [terminal.command(line, answers, timeout_s=500) for line in typed[:-1]]
        # Other tests hold more cores than this machine has, on hosts whose limit is 64.
        config = laptop.project / "clusterfn.yml"
        config.write_text(config.read_text().replace("scheduler: bare", "scheduler: bare\n    limits: {cores: 64}"))
        shown.append(terminal.command(typed[-1], answers, timeout_s=500))

    assert "is ready." in shown[-2]
    assert re.search(r"hello from \S+, Python 3\.", shown[-1]), shown[-1]
    assert {"project/clusterfn.yml", "project/first.py", "home/.ssh/known_hosts"} < laptop.files()
    assert stat.S_IMODE((laptop.home / ".ssh" / "id_ed25519").stat().st_mode) == 0o600
    assert shown[-2].count("assword: ") == 1
    assert onlooker.looks and not onlooker.seen
    assert newcomer.password not in terminal.seen
    assert not holding(newcomer.password, laptop.home, laptop.project, newcomer.home, lab.root / "log")
    the_same_command_again_finds_all_in_place(typed[0], laptop, terminal, newcomer)


def the_same_command_again_finds_all_in_place(command: str, laptop: Laptop, terminal: Terminal, newcomer: Any) -> None:
    keys = newcomer.home / ".ssh" / "authorized_keys"
    before = {name: (laptop.home.parent / name).read_bytes() for name in laptop.files() if "jobs.jsonl" not in name}
    assert len(keys.read_text().splitlines()) == 1

    shown = terminal.command(command, {})

    assert "127.0.0.1 is ready." in shown
    assert {name: (laptop.home.parent / name).read_bytes() for name in before} == before
    assert len(keys.read_text().splitlines()) == 1


def test_a_wrong_password_is_asked_for_again(laptop: Laptop, terminal: Terminal, newcomer: Any, address: str) -> None:
    shown = terminal.command(f"clusterfn init {address}", {**RETURNS, **TRUSTS, PASSWORD: "wrong"})

    assert shown.count("assword: ") >= 3
    assert f"did not let {newcomer.name} in" in shown and "Traceback" not in shown
    assert "code 1" in terminal.command("echo code $?", {})
    assert not {"project/clusterfn.yml", "project/first.py"} & laptop.files()
    assert not (newcomer.home / ".ssh").exists()


def test_a_wrong_address_is_reported(laptop: Laptop, terminal: Terminal, newcomer: Any) -> None:
    shown = terminal.command(f"clusterfn init {newcomer.name}@127.0.0.1:9", RETURNS)

    assert "127.0.0.1:9 refused the connection" in shown and "Traceback" not in shown
    assert "code 1" in terminal.command("echo code $?", {})
    assert laptop.files() == set()


def test_no_at_the_fingerprint_writes_nothing(laptop: Laptop, terminal: Terminal, newcomer: Any, address: str) -> None:
    shown = terminal.command(f"clusterfn init {address}", {**RETURNS, r"\[y/N, or paste one\] $": "n"})

    assert "SHA256:" in shown and "Nothing was written." in shown
    assert "code 1" in terminal.command("echo code $?", {})
    assert laptop.files() == set() and list(laptop.home.iterdir()) == []
    assert not (newcomer.home / ".ssh").exists()


def test_ctrl_c_tells_what_was_done_and_the_command_goes_on(
    laptop: Laptop, terminal: Terminal, newcomer: Any, address: str
) -> None:
    terminal.type(f"clusterfn init {address}")
    terminal.wait_for(r"\]: $")
    terminal.type("box")
    terminal.wait_for(r"\[y/N, or paste one\] $")
    terminal.type("y")
    terminal.wait_for(r"\[Y/n\] $")
    terminal.type("")
    terminal.wait_for(PASSWORD)
    terminal.press("\x03")
    terminal.wait_for(PROMPT)
    shown = terminal.seen + terminal.command("stty -a", {})

    assert re.search(r"Stopped: wrote the host's key to .*; created a key: .*Run the same command again", shown)
    assert re.search(r"[ ;]echo[ ;]", shown)
    assert "project/clusterfn.yml" not in laptop.files() and not (newcomer.home / ".ssh").exists()
    key = (laptop.home / ".ssh" / "id_ed25519").read_bytes()

    shown = terminal.command(f"clusterfn init {address} --name box", {**RETURNS, PASSWORD: newcomer.password})
    assert "box is ready." in shown
    assert (laptop.home / ".ssh" / "id_ed25519").read_bytes() == key


def test_slurm_is_found_and_every_answer_can_be_given_before(
    laptop: Laptop, newcomer: Any, lab: Any, terminal: Terminal
) -> None:
    port = lab.host("campus").port
    (laptop.project / "clusterfn.yml").write_text("# mine\nhosts:\n  here: {scheduler: local}  # this one\n")
    command = f"clusterfn init {newcomer.name}@127.0.0.1:{port} --name campus --yes --fingerprint {fingerprint(port)}"
    command += f" --environment python:{lab.python(f'3.{sys.version_info[1]}')} --root '~/jobs'"

    shown = terminal.command(command, {PASSWORD: newcomer.password})

    assert "campus is ready." in shown
    text = (laptop.project / "clusterfn.yml").read_text()
    assert text.startswith("# mine\nhosts:\n  here: {scheduler: local}  # this one\n  campus:\n")
    campus = yaml.safe_load(text)["hosts"]["campus"]
    assert (campus["scheduler"], campus["root"]) == ("slurm", "~/jobs")
    assert yaml.safe_load(text)["default_host"] == "here"
    assert "hello from " in terminal.command("python first.py", {})


@pytest.mark.long
def test_a_home_that_others_may_write_to_is_reported(terminal: Terminal, newcomer: Any, address: str) -> None:
    newcomer.home.chmod(0o777)

    shown = terminal.command(f"clusterfn init {address}", {**RETURNS, **TRUSTS, PASSWORD: newcomer.password})

    assert "On the host, run: chmod go-w ~" in shown
    assert f"did not let {newcomer.name} in" in shown or "make your home folder writable only by you" in shown
    newcomer.home.chmod(0o755)
    assert "is ready." in terminal.command(f"clusterfn init {address}", RETURNS)


def test_where_only_ssh_can_go_and_takes_no_password_it_says_what_to_do(
    laptop: Laptop, terminal: Terminal, lab: Any
) -> None:
    port = lab.host("chacha-bash").port

    shown = terminal.command(f"clusterfn init cfbash@127.0.0.1:{port} --name c", TRUSTS)

    assert "did not let cfbash in" in shown and "sent to the administrator" in shown
    assert laptop.files() == {"home/.ssh/known_hosts"}


def test_where_the_home_cannot_be_written_to_the_option_for_the_root_is_named(
    laptop: Laptop, terminal: Terminal, lab: Any
) -> None:
    root = Path(tempfile.mkdtemp(prefix="clusterfn-ro-"))
    root.chmod(0o1777)  # as the administrator makes a /scratch
    use_config(laptop, lab)
    try:
        shown = terminal.command("clusterfn init py36-ro", RETURNS)
        shown += terminal.command(f"clusterfn init py36-ro --root '{root}/of-ada'", RETURNS)
    finally:
        shutil.rmtree(root)

    assert "Read-only file system" in shown and "--root FOLDER" in shown and "py36-ro is ready." in shown
    written = yaml.safe_load((laptop.project / "clusterfn.yml").read_text())
    assert written["hosts"]["py36-ro"]["root"] == f"{root}/of-ada"


def test_a_code_that_is_asked_for_is_asked_once(laptop: Laptop, terminal: Terminal, lab: Any) -> None:
    use_config(laptop, lab)
    asked = lab.totp.prompts("cfdash")

    root = "'~/.clusterfn-first-hour'"  # quoted, for the host; its usual one may hold jobs of SLURM: a warning
    terminal.type(f"clusterfn init totp-dash --yes --root {root}")
    terminal.wait_for(r"code: $")
    terminal.type(lab.totp.code())  # only now: a busy machine may take longer to ask than a code is valid
    terminal.wait_for(PROMPT, timeout_s=200.0)
    shown = terminal.seen

    assert "totp-dash is ready." in shown and "clusterfn login totp-dash" in shown
    assert lab.totp.prompts("cfdash") == asked + 1


def use_config(laptop: Laptop, lab: Any) -> None:
    """The laptop of somebody who has the lab's keys and aliases."""
    (laptop.home / ".ssh").mkdir(mode=0o700)
    shutil.copy(lab.ssh_config, laptop.home / ".ssh" / "config")


def fingerprint(port: int) -> str:
    scanned = subprocess.run(["ssh-keyscan", "-T", "60", "-p", str(port), "127.0.0.1"], capture_output=True, check=True)
    listed = subprocess.run(["ssh-keygen", "-lf", "-"], input=scanned.stdout, capture_output=True, check=True)
    return listed.stdout.decode().split()[1]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ([], "--name"),
        pytest.param(["--yes"], "--fingerprint", marks=pytest.mark.long),
        pytest.param(["--yes", "--fingerprint", "right"], "did not let", marks=pytest.mark.long),
    ],
)
def test_without_a_terminal_what_is_missing_is_named(
    laptop: Laptop, address: str, options: list[str], wanted: str
) -> None:
    given = [fingerprint(int(address.rpartition(":")[2])) if word == "right" else word for word in options]

    ran = subprocess.run(
        laptop.inside("clusterfn", "init", address, *given), cwd=laptop.project, env=laptop.env, timeout=150,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, start_new_session=True, check=False,
    )  # fmt: skip

    assert ran.returncode in (1, 2) and wanted in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr
    assert not [name for name in laptop.files() if name.startswith("project/")]
