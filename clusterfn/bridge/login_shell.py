"""Find a scheduler's commands on this host as its user's login shell finds them, and what says that it has one.

The client sends this file as text, `python -I -S -c TEXT QUESTIONS`, when the host has nothing of clusterfn yet: it
needs no other module. It tries what sites do, in this order, and stops at the first that shows a scheduler: a login
shell, PATH as it is, an interactive login shell (a guard in ~/.bashrc), `module load`, usual folders. Prints JSON.
"""

import contextlib
import glob
import json
import os
import pwd
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Variables = dict[str, str]

# Shells that are login shells if their name begins with a dash; it can be combined with -i, as -l of tcsh cannot.
_BY_NAME = ("sh", "ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "tcsh", "zsh")
_OUTPUT_LIMIT = 4 << 20
_LIBRARIES = "LD_LIBRARY_PATH"
# The words of a dynamic linker that does not find the libraries of a program.
_NO_LOADER = re.compile("shared librar", re.IGNORECASE)
# The words by which shells say that there is no such program.
_UNKNOWN = re.compile("not found|could not find|no such|unknown", re.IGNORECASE)
_PROBE_S = 5


class LoginShell:
    """What this user's login shell says when it is asked."""

    def __init__(self, patience_s: float, programs: "list[str]") -> None:
        self.path = _shell()
        self.patience_s = patience_s
        self.programs = programs
        self.aliases: "dict[str, str]" = {}

    def variables(self, interactive: bool, modules: "Any" = ()) -> "list[Variables]":
        """Return its variables, and those after each of these modules was loaded."""
        tag = "clusterfn-%s" % os.urandom(12).hex()
        # The tag is put together by the probe: a shell that echoes its input must not print the whole tag.
        probe = "%s -I -S -c %s" % (
            shlex.quote(sys.executable),
            _quoted("import json,os; print(chr(10) + %r + %r + json.dumps(dict(os.environ)))" % (tag[:9], tag[9:])),
        )
        lines = [probe]
        for name in modules:
            lines += ["module load %s" % name, probe]
        for name in self.programs:
            lines.append("echo %s.about; type %s; alias %s; echo %s.end" % (tag, name, name, tag))
        printed = self.ask(interactive, lines)
        decoder = json.JSONDecoder()
        environments = []
        for piece in printed.split(tag + "{")[1:]:
            with contextlib.suppress(ValueError):
                # The output is cut off if the shell did not end in time.
                environments.append(decoder.raw_decode("{" + piece)[0])
        for program, about in zip(self.programs, printed.split("%s.about" % tag)[1:]):
            description = [line.strip() for line in about.partition(tag)[0].splitlines() if not _UNKNOWN.search(line)]
            self.aliases[program] = " ".join(description) or self.aliases.get(program, "")
        return environments

    def ask(self, interactive: bool, lines: "list[str]") -> str:
        """Give it these lines, and return what it prints. An rc file may read what is meant for it: empty lines.

        It is killed after the last line: an interactive one that finds the end of its input may add these lines to its
        history. Alone fish runs nothing before that end, and then keeps no history.
        """
        name, options = os.path.basename(self.path), ["-i"] if interactive else []
        argv = ["-" + name] + options if name in _BY_NAME else [self.path, "-l"] + options
        environ = dict(os.environ, TERM="dumb", SHELL=self.path)
        over = "clusterfn-%s.over" % os.urandom(12).hex()
        home = os.path.expanduser("~")
        try:
            # In a session of its own, `_end` reaches all that the shell has started. Without a buffer, `read` returns
            # what is there.
            process = subprocess.Popen(
                argv,
                executable=self.path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
                cwd=home if os.path.isdir(home) else "/",
                bufsize=0,
            )
        except OSError:
            return ""
        timer = threading.Timer(self.patience_s, _end, [process.pid])
        timer.daemon = True
        timer.start()
        printed = b""
        try:
            # An rc file may read lines that are meant for the shell. The empty lines are for such a file.
            text = "\n" * 8 + "".join(line + "\n" for line in lines) + "echo %s\n" % over
            with contextlib.suppress(OSError):
                process.stdin.write(os.fsencode(text))  # type: ignore[union-attr]
            if not interactive or name == "fish":
                process.stdin.close()  # type: ignore[union-attr]
            while over.encode() not in printed and len(printed) < _OUTPUT_LIMIT:
                piece = process.stdout.read(1 << 16)  # type: ignore[union-attr]
                if not piece:
                    break
                printed += piece
        finally:
            timer.cancel()
            _end(process.pid)
            process.wait()
        return printed.decode("utf-8", "surrogateescape")


def _shell() -> str:
    if os.environ.get("SHELL"):
        return os.environ["SHELL"]
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    return "/bin/sh"


def _quoted(text: str) -> str:
    """Return a word that sh, csh and fish read alike; the text has no single quote left."""
    return "'%s'" % text.replace("'", '"')


def _end(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def which(program: str, path: str) -> str:
    """Return where a PATH has a program; "" if nowhere."""
    places = (os.path.join(folder, program) for folder in path.split(os.pathsep) if os.path.isabs(folder))
    return next((place for place in places if os.access(place, os.X_OK) and not os.path.isdir(place)), "")


def find(schedulers: "dict[str, Any]", shell: LoginShell) -> "dict[str, Any]":
    """Return where each scheduler's commands are, by its word, in so far as PATH here does not show them.

    Args:
        schedulers: By the word, its `programs` (the first submits), the `variables` that these read, `modules` and
            `usual` folders that may have them; `probe`, a command that asks it, and `bare`, what that says where it has
            no configuration: then its programs are installed, and it is not there.
    """
    path_here = os.environ.get("PATH", os.defpath)
    ways = [("in PATH", [dict(os.environ)]), ("by a login shell", shell.variables(False))]
    commands = _first_with(schedulers, ways)
    if not commands:
        ways.append(("by an interactive login shell", shell.variables(True)))
        commands = _first_with(schedulers, ways)
    login = next((variables[0] for _, variables in reversed(ways) if variables), dict(os.environ))
    if not commands:
        names = [name for scheduler in schedulers.values() for name in scheduler["modules"]]
        if any(name in login for name in ("MODULESHOME", "LMOD_CMD", "LMOD_PKG", "MODULEPATH")):
            for name, variables in zip([""] + names, shell.variables(len(ways) > 2, names)):
                ways.append(("by `module load %s`" % name, [variables]))
            commands = _first_with(schedulers, ways)
    if not commands:
        path = os.pathsep.join([login.get("PATH", ""), *_usual(schedulers, shell, login)])
        ways.append(("in a usual folder", [dict(login, PATH=path)]))
        commands = _first_with(schedulers, ways)
    answers = {}
    for word, (how, variables) in commands.items():
        folders = _folders(schedulers[word]["programs"], path_here, variables["PATH"])
        answers[word] = {"how": how, "path": folders, "env": _needed(schedulers[word], folders, variables)}
    return {"found": answers, "login": login}


def _first_with(schedulers: "dict[str, Any]", ways: "list[Any]") -> "dict[str, Any]":
    """Return for each scheduler the variables with which it is there: a login shell's before those here."""
    first: "dict[str, Any]" = {}
    for word, scheduler in schedulers.items():
        for how, several in ways[1:] + ways[:1]:
            for variables in several:
                if word not in first and _is_there(scheduler, variables):
                    first[word] = (how, variables)
    return first


def _is_there(scheduler: "dict[str, Any]", variables: "Variables") -> bool:
    path = variables.get("PATH", "")
    if not which(scheduler["programs"][0], path):
        return False
    return not re.search(scheduler["bare"], _answer_of(scheduler["probe"], variables), re.IGNORECASE)


def _answer_of(argv: "list[str]", variables: "Variables") -> str:
    """Run a program with these variables and return what it says; nothing if it does not answer in time."""
    program = which(argv[0], variables.get("PATH", ""))
    try:
        return subprocess.run(
            [program, *argv[1:]],
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_S,
        ).stdout.decode("utf-8", "replace")
    except (OSError, subprocess.SubprocessError):
        return ""


def _folders(programs: "list[str]", path_here: str, path: str) -> "list[str]":
    """Return the folders of PATH, in its order, that hold a program which PATH here lacks or has another file for."""
    differing = []
    for program in programs:
        place, before = which(program, path), which(program, path_here)
        if place and (not before or os.path.realpath(place) != os.path.realpath(before)):
            differing.append(os.path.dirname(place).rstrip("/"))
    return [folder for folder in dict.fromkeys(path.split(os.pathsep)) if folder.rstrip("/") in differing]


def _needed(scheduler: "dict[str, Any]", folders: "list[str]", variables: "Variables") -> "Variables":
    """Return the variables that its commands need and do not have here."""
    variables_here = dict(os.environ)
    extra = {
        name: variables[name]
        for name in scheduler["variables"]
        if variables.get(name, "") not in ("", variables_here.get(name))
    }
    path = os.pathsep.join([*folders, variables_here.get("PATH", os.defpath)])
    differ = variables.get(_LIBRARIES, "") not in ("", variables_here.get(_LIBRARIES))
    if differ and _NO_LOADER.search(_answer_of(scheduler["probe"], dict(variables_here, PATH=path, **extra))):
        extra[_LIBRARIES] = variables[_LIBRARIES]
    return extra


def _usual(schedulers: "dict[str, Any]", shell: LoginShell, login: "Variables") -> "list[str]":
    """Return folders in which sites keep such commands, and those that an alias or a function names."""
    folders = []
    for scheduler in schedulers.values():
        for program in scheduler["programs"][:1]:
            folders += re.findall(r"(/[^\s'\"`;:=]*)/%s\b" % re.escape(program), shell.aliases.get(program, ""))
        for pattern in scheduler["usual"]:
            text = re.sub(r"\$(\w+)", lambda name: login.get(name.group(1), "/nowhere"), pattern)
            paths = sorted(glob.glob(os.path.expanduser(text)), reverse=True)
            folders += [path if os.path.isdir(path) else os.path.dirname(path) for path in paths]
    return folders


def _has_some(folder: str, schedulers: "dict[str, Any]") -> bool:
    """Return whether a folder of clusterfn.yml has a command of one of the schedulers."""
    path = os.path.expanduser(folder)
    return any(which(program, path) for scheduler in schedulers.values() for program in scheduler["programs"])


def look_for_signs(signs: "dict[str, Any]", shell: LoginShell, login: "Variables") -> "dict[str, Any]":
    """Return what hints at a login node: files, variables, programs, words about the machine."""
    path = os.pathsep.join([login.get("PATH", ""), os.environ.get("PATH", os.defpath)])
    return {
        "files": [paths[0] for paths in (sorted(glob.glob(pattern)) for pattern in signs["files"]) if paths],
        "variables": {name: login[name] for name in signs["variables"] if login.get(name)},
        "programs": [name for name in signs["programs"] if which(name, path)],
        "hostname": socket.gethostname(),
        "motd": "\n".join(_read(name) for name in signs["motd"])[:20000],
        "aliases": {name: text[:300] for name, text in shell.aliases.items() if re.search(signs["aliases"], text)},
    }


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(20000)
    except OSError:
        return ""


def main(questions: str) -> None:
    request = json.loads(questions)
    programs = [scheduler["programs"][0] for scheduler in request["wanted"].values()]
    shell = LoginShell(request["patience_s"], programs)
    answer = find(request["wanted"], shell)
    login = answer.pop("login")
    answer["empty"] = [folder for folder in request.get("folders", ()) if not _has_some(folder, request["wanted"])]
    if request.get("signs") and not answer["found"]:
        answer["signs"] = look_for_signs(request["signs"], shell, login)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(sys.argv[1])
