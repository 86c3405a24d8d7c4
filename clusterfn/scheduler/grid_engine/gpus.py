"""GPUs in Grid Engine: a resource that it counts on each host, and the jobs that wait for some. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from clusterfn.scheduler.base import NodeGpus, Waiting

# $1 the resource. qhost knows what is left of it, and the configuration of a host what there is.
_NODES = """\
qhost -F "$1" -xml || exit
for host in $(qconf -sel); do
    qconf -se "$host"
done
"""
WAITING_COMMAND = ("qstat", "-s", "p", "-r", "-u", "*")
_JOB = re.compile(r"\s*([0-9]+)\s+[0-9.]+\s+\S+\s+(\S+)\s+(\S+)\s+([0-9]+)/([0-9]+)/([0-9]+)\s+([0-9:]+)\s")
_LABEL = re.compile(r"\s+([A-Z][\w ]+):\s+(.*)")


def nodes_command(resource: str) -> tuple[str, ...]:
    """Show what each host has of this resource, and what of it is left."""
    return ("/bin/sh", "-c", _NODES, "sh", resource)


def nodes(text: str, resource: str) -> list[NodeGpus]:
    """The GPUs of each host that has some."""
    document, _, settings = text.partition("</qhost>")
    totals = dict(_totals(settings, resource))
    found = []
    for host in ElementTree.fromstring(f"{document}</qhost>").iter("host"):
        name = host.get("name", "")
        if name in totals:
            free = [float(each.text or 0) for each in host.iter("resourcevalue") if each.get("name") == resource]
            load = next((each.text for each in host.iter("hostvalue") if each.get("name") == "load_avg"), "-")
            used = totals[name] - int(free[0]) if free else None
            found.append(NodeGpus(name, "no answer" if load == "-" else "up", "", totals[name], used))
    return found


def _totals(settings: str, resource: str) -> Iterator[tuple[str, int]]:
    """Host and amount, of the texts that `qconf -se` prints; a line that continues ends with a backslash."""
    host = ""
    for line in settings.replace("\\\n", "").splitlines():
        key, _, value = line.partition(" ")
        host = value.strip() if key == "hostname" else host
        amount = _amount(re.sub(r"\s", "", value), resource)
        if key == "complex_values" and amount:
            yield host, int(amount)


def _amount(text: str, resource: str) -> str:
    found = re.search(rf"(?:^|,){re.escape(resource)}=([0-9]+)", text)
    return found[1] if found else ""


def waiting(text: str, resource: str) -> list[Waiting]:
    """The jobs that wait for GPUs, in the order of the text; what one slot of them asks for."""
    found: list[Waiting] = []
    job, name, label = None, "", ""
    for line in text.splitlines():
        first, labelled = _JOB.match(line), _LABEL.match(line)
        if first:
            job = first
            continue
        label, value = (labelled[1], labelled[2]) if labelled else (label, line.strip())
        name = value if label == "Full jobname" else name
        amount = _amount(value, resource) if label == "Hard Resources" else ""
        if job and amount:
            submitted = f"{job[6]}-{job[4]}-{job[5]}T{job[7]}"
            found.append(Waiting(job[1], job[2], f"{resource}:{amount}", submitted, job[3], name))
    return found
