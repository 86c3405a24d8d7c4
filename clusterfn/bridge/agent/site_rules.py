"""Read /etc/clusterfn.yml, in which the administrator of a machine without a scheduler sets limits for each user.

It is the strict part of YAML that this reads without a library: two levels, one key in each line.

    defaults:
      memory: 8GB        # of a job that asks for none
      time: 12h
    limits:
      gpus: 2            # of all running jobs of one user together
      cores: 16
      memory: 64GB
      jobs: 8
      time: 2d           # of one job

The agent tells the client what it says, and supervisors obey it themselves.
"""

import os
import re
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# The path is fixed, because an option or a variable for it would be a way around the limits.
PATH = "/etc/clusterfn.yml"
OWNER = 0
_LARGEST = 1 << 16

_SECTION = re.compile(r"(defaults|limits)\s*:\s*\Z")
_ENTRY = re.compile(r"""[ ]+([a-z_]+)\s*:\s+(['"]?)([^'"#]+?)\2\s*\Z""")
_AMOUNT = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*([A-Za-z]+)\Z")
_MEMORY = {"MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_TIME = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def _count(text: str) -> int:
    if not re.match(r"[0-9]{1,6}\Z", text):
        raise ValueError("is not a whole number")
    return int(text)


def _jobs(text: str) -> int:
    if _count(text) < 1:
        raise ValueError("is not a number of at least 1")
    return _count(text)


def _memory(text: str) -> int:
    return int(_times(text, _MEMORY))


def _time(text: str) -> float:
    return _times(text, _TIME)


def _times(text: str, units: "dict[str, int]") -> float:
    amount = _AMOUNT.match(text)
    if not amount or amount.group(2) not in units or not float(amount.group(1)):
        raise ValueError("is not an amount in %s" % ", ".join(units))
    return float(amount.group(1)) * units[amount.group(2)]


# A key of the file -> its name in spec.json, and the function that reads its value.
_KEYS = {
    "defaults": {"memory": ("memory_bytes", _memory), "time": ("time_s", _time)},
    "limits": {
        "gpus": ("gpus", _count),
        "cores": ("cores", _jobs),
        "memory": ("memory_bytes", _memory),
        "jobs": ("jobs", _jobs),
        "time": ("time_s", _time),
    },
}  # type: dict[str, dict[str, Any]]


def read_rules() -> "dict[str, Any]":
    """Return `defaults`, `limits`, and in `trouble` the lines that were left out and why; {} without a file."""
    try:
        with open(PATH, "rb") as file:
            status, data = os.fstat(file.fileno()), file.read(_LARGEST + 1)
    except OSError as error:
        missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
        return {} if missing else {"defaults": {}, "limits": {}, "trouble": [str(error)]}
    if status.st_uid != OWNER or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or len(data) > _LARGEST:
        why = "it is ignored: it must belong to root, be writable for root alone, and have at most 64 KB"
        return {"defaults": {}, "limits": {}, "trouble": [why]}
    return parse(data.decode("utf-8", "replace"))


def parse(text: str) -> "dict[str, Any]":
    """Parse the text of the file, as `read_rules`."""
    rules = {"defaults": {}, "limits": {}, "trouble": []}  # type: dict[str, Any]
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        # As in YAML, only a # after a blank begins a comment.
        line = re.sub(r"(\A|\s)#.*", "", line).rstrip()
        if not line:
            continue
        head, entry = _SECTION.match(line), _ENTRY.match(line)
        if head:
            section = head.group(1)
            continue
        if not line.startswith(" "):
            section = ""
        rule = _KEYS.get(section, {}).get(entry.group(1)) if entry else None
        try:
            if entry is None or rule is None:
                raise ValueError("is not known here")
            rules[section][rule[0]] = rule[1](entry.group(3))
        except ValueError as error:
            # The line is left out and reported, because a typing error must not stop the work of all users.
            rules["trouble"].append("line %d: %r %s" % (number, line.strip()[:60], error))
    return rules


def obeyed(spec: "Any", rules: "dict[str, Any]") -> "Any":
    """Return a job's spec.json with these rules applied: no limit of it is wider, and what it leaves open is set."""
    if not rules:
        return spec
    defaults, most = rules["defaults"], dict(rules["limits"])
    longest, resources = most.pop("time_s", None), dict(spec["resources"])
    own_limits = dict(spec.get("limits") or {})
    limits = {name: _least(own_limits.get(name), most.get(name)) for name in list(own_limits) + list(most)}
    if resources.get("memory_bytes") is None:
        resources["memory_bytes"] = defaults.get("memory_bytes") or most.get("memory_bytes")
    if resources.get("time_s") is None:
        resources["time_s"] = defaults.get("time_s")
    resources["time_s"] = _least(resources["time_s"], longest)
    return dict(spec, limits=limits, resources=resources)


def _least(one: "Any", other: "Any") -> "Any":
    return min((each for each in (one, other) if each is not None), default=None)
