"""ssh_config(5) read without an ssh: the options of one host, by the rules that OpenSSH's own reader follows.

Include (globs, nested, relative to ~/.ssh), Host, Match, `Match final`, quotes and trailing comments are done. What
only ssh itself can decide is refused by file and line. Opens no connection, expands no tokens.
"""

from __future__ import annotations

import contextlib
import getpass
import glob
import os
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from clusterfn.config.options import did_you_mean
from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError

Options = dict[str, list[str]]

DEPTH = 16
LISTED = ("identityfile", "certificatefile")
WHOLE_LINE = ("proxycommand", "localcommand", "remotecommand", "knownhostscommand")
ONE_WORD = (
    *LISTED, "hostname", "user", "port", "proxyjump", "hostkeyalias", "connecttimeout", "addressfamily",
    "stricthostkeychecking", "identityagent", "identitiesonly", "hashknownhosts", "gssapiauthentication", "controlpath",
    "permitlocalcommand", "proxyusefdpass", "numberofpasswordprompts",
)  # fmt: skip
ALONE = ("all", "final", "canonical")
COMPARED = ("host", "originalhost", "user", "localuser")
PROXIES = ("proxyjump", "proxycommand")
_LINE = re.compile(r'\s*"?([^\s="]+)"?\s*=?\s*(.*?)\s*')
_CRITERION = re.compile(r"(!?)([A-Za-z]+)(?:\s*=\s*|\s+|$)")
_VALUE = re.compile(r'(?:"([^"]*)"|(\S+))\s*')
_TIME = re.compile(r"(?:\d+[smhdw]?)+", re.IGNORECASE)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def read(host: Host, name: str, given: Options, config: str | None) -> Options:
    """The options that hold for `name`; those in `given` come first.

    Args:
        config: The only file to be read; None reads the user's and the system's.

    Raises:
        ConfigError: A line cannot be understood, or needs ssh itself; file and line are named.
    """
    first = _Pass(host, name, name, given)
    first.read(config)
    hostname = first.options.get("hostname", ["%h"])[0].replace("%h", name).replace("%%", "%").lower()
    first.options["hostname"] = [hostname]
    if not first.wants_final:
        return first.options
    second = _Pass(host, hostname, name, first.options, final=True)
    second.read(config)
    return second.options


def words(text: str) -> list[str]:
    """A line's words as OpenSSH splits them; a `#` at the beginning of a word ends them.

    Raises:
        ValueError: A quote is not closed.

    Example:
        >>> words('"a b" c#d  # e')
        ['a b', 'c#d']
    """
    found: list[str] = []
    rest = text.lstrip(" \t")
    while rest and not rest.startswith("#"):
        word, rest = _word(rest)
        found.append(word)
        rest = rest.lstrip(" \t")
    return found


def _word(text: str) -> tuple[str, str]:
    word, quote, at = "", "", 0
    while at < len(text):
        sign, following = text[at], text[at + 1 : at + 2]
        if sign == "\\" and following and (following in "'\"\\" or (following == " " and not quote)):
            word, at = word + following, at + 1
        elif not quote and sign in " \t":
            break
        elif sign == quote:
            quote = ""
        elif not quote and sign in "'\"":
            quote = sign
        else:
            word += sign
        at += 1
    if quote:
        raise ValueError("a quote is not closed")
    return word, text[at:]


def matches(patterns: str, text: str) -> bool:
    """Whether a list of patterns with `*`, `?` and `!` means `text`."""
    found = False
    for pattern in patterns.split(","):
        if _fits(pattern.lstrip("!"), text):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _fits(pattern: str, text: str) -> bool:
    """Whether one pattern means the whole text. Only the last `*` is ever tried again, so no pattern takes long."""
    at = place = 0
    star, since = -1, 0
    while at < len(text):
        if place < len(pattern) and pattern[place] == "*":
            star, since = place, at
            place += 1
        elif place < len(pattern) and pattern[place] in ("?", text[at]):
            at, place = at + 1, place + 1
        elif star >= 0:
            since += 1
            at, place = since, star + 1
        else:
            return False
    return not pattern[place:].strip("*")


def home() -> Path:
    """The home in which ssh looks for its files: that of the user database, whatever $HOME says."""
    if sys.platform != "win32":
        import pwd

        with contextlib.suppress(KeyError):
            return Path(pwd.getpwuid(os.getuid()).pw_dir)
    return Path.home()


def expanded(name: str) -> Path:
    """A path of an ssh configuration, with `~` as ssh means it.

    Raises:
        ConfigError: It is `~user`, and this machine has no such user.
    """
    if name == "~" or name.startswith("~/"):
        return home() / name[2:]
    path = os.path.expanduser(name)
    if path.startswith("~"):
        raise ConfigError(f"{name}: this machine has no such user", hint="correct that path in the ssh configuration")
    return Path(path)


def config_file() -> Path:
    """The user's own configuration."""
    return expanded("~/.ssh/config")


def aliases() -> list[str]:
    """The hosts that the user's own configuration, and what it includes, names without a wildcard."""
    found: dict[str, None] = {}

    def look(path: Path, depth: int) -> None:
        with contextlib.suppress(OSError):
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                given = _LINE.fullmatch(line)
                keyword = given[1].lower() if given else ""
                with contextlib.suppress(ValueError, ConfigError):  # a line that a call will complain of
                    if given and keyword == "include" and depth < DEPTH:
                        for name in words(given[2]):
                            for each in included(name, "~/.ssh"):
                                look(each, depth + 1)
                    elif given and keyword == "host":
                        found.update(dict.fromkeys(word for word in words(given[2]) if not set(word) & set("*?!")))

    look(config_file(), 0)
    return list(found)


def included(name: str, folder: str) -> list[Path]:
    """The files that an Include means; a relative one begins in `folder`."""
    pattern = name if name.startswith("~") or Path(name).is_absolute() else f"{folder}/{name}"
    return [Path(path) for path in sorted(glob.glob(str(expanded(pattern))))]


class _Pass:
    """One reading of all files. `final` is the second one, which `Match final` asks for."""

    def __init__(self, host: Host, name: str, original: str, options: Options, final: bool = False) -> None:
        self.host, self.name, self.original, self.final = host, name, original, final
        self.options = {key: list(values) for key, values in options.items()}
        self.wants_final = False

    def read(self, config: str | None) -> None:
        if config:
            path = Path(config).expanduser()
            if not path.is_file():
                self._refuse(str(path), "", "is not there", "correct ssh_config: of the host")
            self._file(path, "~/.ssh", True, 0)
            return
        everybody = system_file()
        for path, folder in ((config_file(), "~/.ssh"), (everybody, str(everybody.parent))):
            if path.is_file():
                self._file(path, folder, True, 0)

    def _file(self, path: Path, folder: str, active: bool, depth: int) -> None:
        allowed = active
        try:
            lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}", host=self.host.name) from error
        for number, line in enumerate(lines, 1):
            found = _LINE.fullmatch(line)
            if found is None or line.lstrip().startswith("#"):
                continue
            place, keyword, rest = f"{path}:{number}", found[1].lower(), found[2]
            if keyword == "include":
                self._include(place, line, self._words(place, line, rest), folder, active, depth)
            elif keyword == "host":
                active = self._is_host(self._words(place, line, rest)) and allowed
            elif keyword == "match":
                active = self._fits(place, line, rest) and allowed
            else:
                self._option(place, line, keyword, rest, active)

    def _include(self, place: str, line: str, names: list[str], folder: str, active: bool, depth: int) -> None:
        if depth >= DEPTH:
            self._refuse(place, line, "includes too deep", "a file may not include itself")
        for name in names:
            for path in included(name, folder):
                self._file(path, folder, active, depth + 1)

    def _is_host(self, patterns: list[str]) -> bool:
        return matches(",".join(patterns), self.name)

    def _words(self, place: str, line: str, rest: str) -> list[str]:
        try:
            found = words(rest)
        except ValueError as error:
            self._refuse(place, line, str(error), "mend that line")
        if not found or not found[0]:
            self._refuse(place, line, "has no value", "mend that line")
        return found

    def _fits(self, place: str, line: str, rest: str) -> bool:
        if not rest:
            self._refuse(place, line, "has no criteria", "mend that line")
        result = True
        while rest and not rest.startswith("#"):
            criterion = _CRITERION.match(rest)
            if criterion is None:
                self._refuse(place, line, "cannot be understood", "mend that line")
            rest = rest[criterion.end() :]
            word, value = criterion[2].lower(), ""
            if word not in ALONE:
                given = _VALUE.match(rest)
                value = (given[1] or given[2] or "") if given else ""
                rest = rest[given.end() :] if given else ""
            if self._holds(place, line, word, value, result) is (criterion[1] == "!"):
                result = False
        return result

    def _holds(self, place: str, line: str, word: str, value: str, undecided: bool) -> bool:
        if word == "all":
            return True
        if word in ALONE:
            self.wants_final = self.wants_final or word == "final"
            return self.final
        if word not in COMPARED and (word != "exec" or undecided):
            hint = "install OpenSSH's client, or give the host a simple file by ssh_config:"
            near = did_you_mean(word, [*ALONE, *COMPARED]) if word != "exec" else ""
            self._refuse(place, line, f"can only be understood by ssh itself, and there is no ssh here{near}", hint)
        if word != "exec" and not value:
            self._refuse(place, line, f"names no {word}", "mend that line")
        return word != "exec" and matches(*self._compared(word, value))

    def _compared(self, word: str, value: str) -> tuple[str, str]:
        if word == "user":
            return value, (self.options.get("user") or [getpass.getuser()])[0]
        if word == "localuser":
            return value, getpass.getuser()
        hostname = self.options.get("hostname", ["%h"])[0].replace("%h", self.name)
        return value.lower(), (hostname if word == "host" else self.original).lower()

    def _option(self, place: str, line: str, keyword: str, rest: str, active: bool) -> None:
        values = [rest] if keyword in WHOLE_LINE and rest else self._words(place, line, rest)
        if keyword in ONE_WORD and len(values) > 1:
            self._refuse(place, line, "has more than one value", "mend that line; quote what has blanks in it")
        if keyword in _CHECKED:
            try:
                values = [_CHECKED[keyword](values[0])]
            except ValueError:
                self._refuse(place, line, f"{values[0]!r} cannot be a value of {keyword}", "mend that line")
        if not active or (keyword in PROXIES and any(proxy in self.options for proxy in PROXIES)):
            return
        if keyword in LISTED:
            known = self.options.setdefault(keyword, [])
            known += [value for value in values if value not in known]
        else:
            self.options.setdefault(keyword, [" ".join(values)])

    def _refuse(self, place: str, line: str, message: str, hint: str) -> NoReturn:
        evidence = [line.strip()] if line else []
        raise ConfigError(f"{place} {message}", host=self.host.name, evidence=evidence, hint=hint)


def system_file() -> Path:
    """The configuration of all users of this machine."""
    if sys.platform == "win32":
        return Path(os.environ.get("PROGRAMDATA", "C:/ProgramData")) / "ssh" / "ssh_config"
    return Path("/etc/ssh/ssh_config")


def _port(text: str) -> str:
    if text.isascii() and text.isdigit():
        number = int(text)
    else:
        try:
            number = socket.getservbyname(text, "tcp")
        except OSError as error:
            raise ValueError(text) from error
    if not 0 < number < 65536:
        raise ValueError(text)
    return str(number)


def _count(text: str) -> str:
    return str(int(text))  # ValueError by itself


def _seconds(text: str) -> str:
    if text.lower() == "none":
        return "none"
    if not _TIME.fullmatch(text):
        raise ValueError(text)
    return str(sum(int(number) * _UNITS[unit.lower()] for number, unit in re.findall(r"(\d+)([a-zA-Z]?)", text)))


def _choice(**known: str) -> Callable[[str], str]:
    names = {name.replace("_", "-"): value for name, value in known.items()}

    def choose(text: str) -> str:
        try:
            return names[text.lower()]
        except KeyError as error:
            raise ValueError(text) from error

    return choose


_YES_OR_NO = _choice(yes="yes", true="yes", no="no", false="no")
_CHECKED: dict[str, Callable[[str], str]] = {
    "port": _port,
    "connecttimeout": _seconds,
    "numberofpasswordprompts": _count,
    "addressfamily": _choice(any="any", inet="inet", inet6="inet6"),
    "stricthostkeychecking": _choice(
        yes="true", true="true", no="false", false="false", off="false", ask="ask", accept_new="accept-new"
    ),
    "identitiesonly": _YES_OR_NO,
    "hashknownhosts": _YES_OR_NO,
    "gssapiauthentication": _YES_OR_NO,
    "permitlocalcommand": _YES_OR_NO,
    "proxyusefdpass": _YES_OR_NO,
}
