"""What kind of host this is."""

import os
import re
import sys

from . import logout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .frames import Header
    from .loop import Agent


def facts(agent: "Agent") -> "Header":
    """What the client may want to know of this host."""
    import pwd

    name, user = os.uname(), user_name(pwd)
    return {
        "root": agent.root,
        "python": sys.executable,
        "version": list(sys.version_info[:3]),
        "platform": sys.platform + "-" + name.machine,
        "machine": agent.machine,
        "boot_id": first_line("/proc/sys/kernel/random/boot_id"),
        "hostname": name.nodename,
        "uid": os.geteuid(),
        "user": user,
        "home": os.path.expanduser("~"),
        "umask": agent.umask,
        "pid": os.getpid(),
        "cpus": cpus(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "net_ns": link_text("/proc/self/ns/net"),
        "glibc": glibc(),
        "ends_jobs": logout.ends_jobs(user),
    }


def glibc() -> str:
    """The version of the C library, such as "2.17"; empty where it is another one, or none that says."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return ""
    return version if name == "glibc" else ""


def user_name(pwd: "Any") -> str:
    try:
        return str(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:
        return str(os.geteuid())


def cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_line(path: str) -> str:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return ""


def link_text(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def machine() -> str:
    """A name for this machine alone: cloned images share a machine-id, a home may be shared by many hosts."""
    number = first_line("/etc/machine-id") or first_line("/var/lib/dbus/machine-id") or "unknown"
    return re.sub(r"[^A-Za-z0-9._-]", "_", "%s-%s" % (number, os.uname().nodename))
