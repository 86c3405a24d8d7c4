"""`clusterfn init [ADDRESS]`: from a host's address to a script that has run on it, without editing a file.

    address → host key → login → what the host offers → clusterfn.yml → first.py → check

Each part is a module next to this one, which calls them in order. A part that is
done says so and changes nothing, so you can repeat the command after Ctrl-C or a failure.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from clusterfn.cli import check
from clusterfn.cli.check.step import CheckState
from clusterfn.cli.init import choices, pythons
from clusterfn.cli.init.choices import Answers, say
from clusterfn.cli.init.host import Begun, begin, connected, say_way
from clusterfn.cli.login import trust_hosts
from clusterfn.config import writing
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError
from clusterfn.hosts.connection import HostConnection
from clusterfn.hosts.host_state import open_host
from clusterfn.hosts.survey import survey
from clusterfn.scheduler.job_script import read_template
from clusterfn.scheduler.site import AdvanceAnswers

SCRIPT = "first.py"
# Options that say what the lines of a new host will be.
_OF_LINES = ("scheduler", "scheduler_path", "root", "environment", "partition", "gpu_partition", "account")
_TIMEOUT_S = 60.0
# The host expands `~`, because only it knows the home folder. Other users must not read the files of jobs.
_MAKE_ROOT = """
case $1 in "~/"*) set -- "$HOME/${1#??}" ;; esac
umask 077; mkdir -p -- "$1" && [ -w "$1" ]
"""


class Done:
    """What was done so far, for the message after Ctrl-C."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def __call__(self, what: str) -> None:
        self.notes.append(what)
        say(what[:1].upper() + what[1:])


def init(args: argparse.Namespace) -> int:
    """Set a host up; 0 once a function has returned from it."""
    done = Done()
    try:
        return _story(args, Answers(args.yes), done)
    except KeyboardInterrupt:
        summary = "; ".join(done.notes) or "nothing was written"
        print(f"\nStopped: {summary}. Run the same command again to continue.", file=sys.stderr)
        raise


def _story(args: argparse.Namespace, answers: Answers, done: Done) -> int:
    begun = begin(args.address, args.name, answers)
    say_way(begun.host)
    command = f"clusterfn init {begun.host.address}"
    remembered = trust_hosts(begun.host, args.fingerprint, command, replace=args.replace)
    if remembered is None:
        return 1
    done.notes += [f"wrote the host's key to {path}" for path in remembered]
    if begun.is_configured:
        given = [f"--{name.replace('_', '-')}" for name in _OF_LINES if getattr(args, name) is not None]
        unused = f" {', '.join(given)}: not used; edit these lines instead." if given else ""
        say(f"{begun.host.name} is already in {begun.host.source}, and is left unchanged.{unused}")
        connected(begun.host, answers, args.no_key, done)
    else:
        _add(begun, args, answers, done)
    return check_like_command(begun.host, leave_script(begun.host, done))


def _add(begun: Begun, args: argparse.Namespace, answers: Answers, done: Done) -> None:
    """Survey the host, and write what was found and answered into clusterfn.yml."""
    draft = begun.host._replace(root=args.root or begun.host.root)
    connection = connected(draft, answers, args.no_key, done)
    say(f"Looking at what {draft.name} offers …")
    site = survey(connection, folder=args.scheduler_path or "")
    choices.say_site(site)
    if args.scheduler is None:
        site = choices.ask_about_signs(site, draft.name, answers, lambda folder: survey(connection, folder=folder))
    advance = AdvanceAnswers(args.partition, args.gpu_partition, args.account)
    user = connection.facts.user
    keys = choices.keys(
        site, user, args.scheduler, args.root, advance, answers, lambda root: make_root(connection, root)
    )
    make_root(connection, keys["root"])
    environment = pythons.environment(open_host(connection.host), args.environment, answers)
    if keys["root"] != connection.host.root:
        # The agent that has surveyed the host made this folder, which no
        # job needs now. `rmdir` removes it only if empty.
        connection.run(["rmdir", "--", connection.facts.root])
    lines = {"address": draft.address, **keys, **({"environment": environment} if environment else {})}
    change = writing.adding(draft.name, lines, begun.path, choices.suggestion(site))
    writing.write(change)
    done(f"wrote {change.path}, with these lines added:")
    for line in change.added:
        print(f"    {line}")


def make_root(connection: HostConnection, root: str) -> None:
    """Make the root before it is written to clusterfn.yml; one with a variable is left to the agent.

    Raises:
        ConfigError: It cannot be made, or not be written to.
    """
    if "$" in root or root == connection.host.root:
        return
    answer = connection.run(["/bin/sh", "-c", _MAKE_ROOT, "sh", root], timeout_s=_TIMEOUT_S).result(_TIMEOUT_S)
    if answer.rc != 0:
        reason = answer.err.decode("utf-8", "replace").strip() or "you may not write there"
        raise ConfigError(f"{root} cannot be used: {reason}", hint="name another folder")


def leave_script(host: Host, done: Done) -> str:
    """Write a script that runs on the host; keep a file of that name, which is the user's own.

    Returns:
        The command that runs a function on that host.
    """
    path = Path(SCRIPT)
    text = read_template(SCRIPT)
    text = text.replace("HOST", host.name)
    if path.exists():
        existing = path.read_text(encoding="utf-8", errors="replace")
        say(f"{SCRIPT} already exists{'' if existing == text else ', and is left unchanged'}.")
        called = f"{SCRIPT}::where hello" if "\ndef where(greeting):" in existing else "FILE.py::FUNCTION"
        return f"python {SCRIPT}" if existing == text else f"clusterfn run {host.name} {called}"
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    done(f"wrote {SCRIPT}, a function that runs on {host.name}")
    return f"python {SCRIPT}"


def check_like_command(host: Host, command: str) -> int:
    say()
    say(f"clusterfn check {host.name}")
    code = check.check_host(CheckState(host.name))
    if code == 0:
        say(f"Now: {command}")
    else:
        say(f"Fix the FAIL lines, then run clusterfn check {host.name} again. Then: {command}")
    return code
