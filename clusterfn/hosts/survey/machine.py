"""nvidia-smi, logind, the C library and the modules of the login shell, read. Pure."""

from __future__ import annotations

import re

from clusterfn.hosts.survey.answers import NOT_THERE, Section, number
from clusterfn.hosts.survey.site import Cards

SILENT = "it did not answer in time"
_MB = 2**20
_GLIBC = re.compile(r"(?:glibc|GLIBC|GNU libc)\D*(?:\d\S*\)\s+)?(\d+\.\d+)")
_KILLS = re.compile(r"\s*(#?)\s*KillUserProcesses\s*=\s*(\w+)")
_BY_BUS = re.compile(r"b (true|false)")
_YES = ("yes", "true", "on", "1")


def cards(section: Section) -> Cards | None:
    """What nvidia-smi says; the second time without compute_cap, which old drivers do not know."""
    if section.rc == NOT_THERE:
        return None
    if section.rc is None:
        return Cards(trouble=SILENT)
    lines = section.parts.get("again", section.lines)
    rows = [row for row in ([cell.strip() for cell in line.split(", ")] for line in lines) if _is_card(row)]
    if section.rc != 0 or not rows:
        return Cards(trouble="\n".join(lines[-5:]) or f"it ended with status {section.rc}")
    return Cards(
        names=tuple(row[0] for row in rows),
        memory_bytes=min((number(row[1]) or 0) * _MB for row in rows),
        driver=rows[0][2],
        capabilities=tuple(row[3] for row in rows if len(row) > 3),
    )


def _is_card(row: list[str]) -> bool:
    return len(row) in (3, 4) and bool(row[0]) and (number(row[1]) is not None or row[1].startswith("["))


def lingering(section: Section) -> bool | None:
    """Whether what we start outlives our logout; None where logind has not put us into a session, or does not say.

    Lingering alone does not save it: it keeps the user's own manager, and logind kills the session's processes.
    """
    if not any("/user.slice/" in line for line in section.lines):
        return None
    killed: bool | None = None
    for line in section.part("kill"):
        bus, match = _BY_BUS.fullmatch(line.strip()), _KILLS.match(line)
        if bus:
            killed = bus[1] == "true"
        elif match and (not match[1] or killed is None):
            killed = match[2].lower() in _YES
    return None if killed is None else not killed


def glibc(section: Section) -> str:
    """From "glibc 2.17" or "ldd (GNU libc) 2.17"; "" on another libc."""
    match = _GLIBC.search("\n".join(section.lines[:2]))
    return match[1] if match else ""


def has_modules(login: Section) -> bool:
    """Environment modules and Lmod are a function or an alias, and tell their shell where they are."""
    return "module" in login.parts or any(
        line.startswith(("MODULESHOME=", "LMOD_CMD=", "LMOD_PKG=")) for line in login.part("env")
    )
