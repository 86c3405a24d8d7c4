"""The lab's Grid Engine: a master and two execution hosts on this machine, beside the lab's SLURM.

Grid Engine knows a host by its name, whose address must lead back to that name, and never by 127.0.0.1. So each of its
hosts has a hostname of its own and an /etc/hosts of its own (both seen by its processes alone), and the execution hosts
have network namespaces at a bridge. Debian's packages are unpacked, not installed: their scripts would bring a mail
server, a user and services.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from . import hosts
from .layout import (
    EXECUTION_HOSTS,
    GRID_ENGINE,
    GRID_ENGINE_ENV,
    GRID_ENGINE_HOST,
    GRID_ENGINE_LIBRARIES,
    GRID_ENGINE_NETWORK,
    GRID_ENGINE_PROGRAMS,
    HOST_BY_NAME,
    LOGS,
    QMASTER_PORT,
)
from .processes import LabError, Record, State, is_alive, run, start
from .slurm import wait_until

PACKAGES = ("gridengine-master", "gridengine-exec", "gridengine-client", "gridengine-common", "libjemalloc2")
UNPACKED = GRID_ENGINE / "packages"
SHARED = UNPACKED / "usr" / "share" / "gridengine"
ROOT = Path(GRID_ENGINE_ENV["SGE_ROOT"])
CELL = ROOT / "default" / "common"
SPOOL = GRID_ENGINE / "spool"
SETTINGS = GRID_ENGINE / "settings"  # what qconf was given
CONFIGURED = GRID_ENGINE / "configured"
ETC_HOSTS = GRID_ENGINE / "hosts"
BRIDGE = "cf-ge"
SLOTS, GPUS, MEMORY = 8, 4, "64G"
TASKS = 1000  # of one array

# admin_user none: the daemons stay root, and no account has to be made for them.
BOOTSTRAP = f"""\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {CELL};{SPOOL}/qmaster
binary_path {ROOT}/bin
qmaster_spool_dir {SPOOL}/qmaster
security_mode none
listener_threads 2
worker_threads 2
scheduler_threads 1
"""
# Changes to Debian's own settings. A site has 15 s and more where this has 1 s; an accounting that lags, too.
GLOBAL = {
    "execd_spool_dir": str(SPOOL),
    "mailer": "/bin/true",
    "gid_range": "20000-20099",
    "min_uid": "500",
    "load_report_time": "00:00:05",
    "max_unheard": "00:01:00",
    "max_aj_tasks": str(TASKS),
    "reporting_params": "accounting=true reporting=false flush_time=00:00:01 accounting_flush_time=00:00:00 "
    "joblog=false sharelog=00:00:00",
}
SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1", "schedd_job_info": "true"}
QUEUE = {
    "qname": "all.q",
    "hostlist": "@allhosts",
    "slots": str(SLOTS),
    "pe_list": "smp",
    "shell": "/bin/bash",
    "shell_start_mode": "unix_behavior",
    "load_thresholds": "NONE",
    "notify": "00:00:05",
}
# SGE's own name for it: the processors' architecture.
ARCHITECTURES = ("lx-amd64", "lx-arm64")


class NotDownloaded(LabError):
    """Its packages cannot be had: the rest of the lab does without it, and its tests fail by name."""


def apart(name: str) -> list[str]:
    """Words before a command that make it run on the host of this name."""
    network = [] if name == GRID_ENGINE_HOST else ["/usr/bin/nsenter", f"--net=/run/netns/{namespace(name)}"]
    script = f'hostname "$0" && mount --bind {ETC_HOSTS} /etc/hosts && exec "$@"'
    unshare = ["/usr/bin/unshare", "--uts", "--mount", "--propagation", "slave"]
    return [*network, *unshare, "/bin/sh", "-c", script, name]


def namespace(name: str) -> str:
    return f"clusterfn-lab-{name}"


def address(name: str) -> str:
    """The master has the bridge's address."""
    return f"{GRID_ENGINE_NETWORK}.{[GRID_ENGINE_HOST, *EXECUTION_HOSTS].index(name) + 1}"


def unpack() -> None:
    """Fetch the packages and lay their files out where Grid Engine looks for them."""
    if not CELL.exists():
        archives = GRID_ENGINE / "archives"
        for folder in (archives, UNPACKED):
            folder.mkdir(parents=True, exist_ok=True)
        _download(archives)
        for archive in sorted(archives.glob("*.deb")):
            run(["dpkg", "-x", str(archive), str(UNPACKED)])
        libraries = UNPACKED / "usr" / "lib"
        for folder in (ROOT / "bin", SPOOL / "qmaster" / "job_scripts", SETTINGS, *map(_spool, EXECUTION_HOSTS)):
            folder.mkdir(parents=True, exist_ok=True)
        for name in ARCHITECTURES:
            (ROOT / "bin" / name).symlink_to(GRID_ENGINE_PROGRAMS)
            (libraries / name).mkdir()  # where its programs look for them
            for library in (*libraries.glob("*-linux-gnu/*.so.*"), *GRID_ENGINE_PROGRAMS.glob("*.so")):
                (libraries / name / library.name).symlink_to(library)
        (ROOT / "util").symlink_to(SHARED / "util")
        CELL.mkdir(parents=True)
    ETC_HOSTS.write_text(
        "127.0.0.1 localhost\n" + "".join(f"{address(name)} {name}\n" for name in (GRID_ENGINE_HOST, *EXECUTION_HOSTS))
    )
    (CELL / "act_qmaster").write_text(f"{GRID_ENGINE_HOST}\n")
    (CELL / "bootstrap").write_text(BOOTSTRAP)


def _spool(name: str) -> Path:
    return SPOOL / name


def _download(folder: Path) -> None:
    command = ["apt-get", "download", "-q", *PACKAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:  # the lists of packages are missing or stale
        subprocess.run(["apt-get", "update", "-q"], capture_output=True, check=False)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotDownloaded(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-500:]}")


def link_libraries(state: State) -> None:
    """Grid Engine loads its spooling library from one fixed place."""
    if not os.path.lexists(GRID_ENGINE_LIBRARIES):
        state.claim(GRID_ENGINE_LIBRARIES)
        GRID_ENGINE_LIBRARIES.symlink_to(GRID_ENGINE_PROGRAMS)


def lay_network() -> None:
    """A bridge, and a network namespace with one address at it for each execution host."""
    if not Path("/sys/class/net", BRIDGE).exists():
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
        run(["ip", "address", "add", f"{address(GRID_ENGINE_HOST)}/24", "dev", BRIDGE])
        run(["ip", "link", "set", BRIDGE, "up"])
    for name in EXECUTION_HOSTS:
        if Path("/run/netns", namespace(name)).exists():
            continue
        inside = ["ip", "-n", namespace(name)]
        run(["ip", "netns", "add", namespace(name)])
        run(["ip", "link", "add", f"cf-{name}", "type", "veth", "peer", "name", "eth0", "netns", namespace(name)])
        run(["ip", "link", "set", f"cf-{name}", "master", BRIDGE, "up"])
        run([*inside, "link", "set", "lo", "up"])
        run([*inside, "address", "add", f"{address(name)}/24", "dev", "eth0"])
        run([*inside, "link", "set", "eth0", "up"])


def remove() -> None:
    """The network, and whatever still runs in it: jobs outlive the daemon that started them."""
    for name in EXECUTION_HOSTS:
        if Path("/run/netns", namespace(name)).exists():
            while found := run(["ip", "netns", "pids", namespace(name)]).split():
                for pid in map(int, found):
                    if os.path.exists(f"/proc/{pid}"):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
            subprocess.run(["ip", "link", "delete", f"cf-{name}"], capture_output=True, check=False)
            run(["ip", "netns", "delete", namespace(name)])
    subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True, check=False)


def is_laid() -> bool:
    """Whether any of its network is there."""
    return Path("/sys/class/net", BRIDGE).exists()


def command(program: str, *args: str) -> list[str]:
    """One of Grid Engine's programs, run on its own host as root."""
    settings = [f"{name}={value}" for name, value in GRID_ENGINE_ENV.items()]
    return [*apart(GRID_ENGINE_HOST), "/usr/bin/env", *settings, str(GRID_ENGINE_PROGRAMS / program), *args]


def qconf(*args: str) -> str:
    return run(command("qconf", *args))


def _changed(text: str, values: dict[str, str]) -> str:
    """Settings as qconf prints them, with other values for some."""
    lines = [line for line in text.splitlines() if line.split(" ")[0] not in values]
    return "\n".join([*lines, *(f"{name} {value}" for name, value in values.items()), ""])


def _given(name: str, text: str) -> str:
    """A file for qconf with this text."""
    place = SETTINGS / name
    place.write_text(text)
    return str(place)


def spool_defaults() -> None:
    """What the master needs before it can be asked for anything."""
    if (SPOOL / "qmaster" / "managers").exists():
        return
    run(command("spoolinit", "classic", "libspoolc", f"{CELL};{SPOOL}/qmaster", "init"))
    settings = _changed((SHARED / "default-configuration").read_text(), GLOBAL)
    defaults = (
        ("configuration", _given("global", settings)),
        ("complexes", str(SHARED / "util" / "resources" / "centry")),
        ("usersets", str(SHARED / "util" / "resources" / "usersets")),
        ("managers", "root"),
    )
    for kind, value in defaults:
        run(command("spooldefaults.bin", kind, value))


def configure() -> None:
    """Execution hosts, one queue, one parallel environment, and GPUs and memory that are counted."""
    complexes = [line for line in qconf("-sc").splitlines() if line.split()[:1] not in (["h_vmem"], ["gpu"])]
    complexes += ["h_vmem h_vmem MEMORY <= YES YES 1G 0", "gpu gpu INT <= YES YES 0 0", ""]
    qconf("-Mc", _given("complexes", "\n".join(complexes)))
    qconf("-Msconf", _given("scheduler", _changed(qconf("-ssconf"), SCHEDULER)))
    qconf("-as", GRID_ENGINE_HOST)
    for number, name in enumerate(EXECUTION_HOSTS):
        qconf("-ah", name)
        qconf("-as", name)
        # On one kernel each must have groups of its own, or it would count, and kill, the other's jobs.
        first = 20100 + 100 * number
        local = f"mailer /bin/true\nxterm /bin/true\ngid_range {first}-{first + 99}\n"
        (SETTINGS / "local").mkdir(exist_ok=True)
        (SETTINGS / "local" / name).write_text(local)
        qconf("-Aconf", str(SETTINGS / "local" / name))
        nothing = ("user_lists", "xuser_lists", "projects", "xprojects", "usage_scaling", "report_variables")
        capacity = f"complex_values slots={SLOTS},gpu={GPUS},h_vmem={MEMORY}\nload_scaling NONE\n"
        text = f"hostname {name}\n{capacity}" + "".join(f"{word} NONE\n" for word in nothing)
        qconf("-Ae", _given(f"{name}.host", text))
    qconf("-Ahgrp", _given("group", f"group_name @allhosts\nhostlist {' '.join(EXECUTION_HOSTS)}\n"))
    environment = (
        "pe_name smp\nslots 999\nuser_lists NONE\nxuser_lists NONE\nstart_proc_args NONE\nstop_proc_args NONE\n"
        "allocation_rule $pe_slots\ncontrol_slaves FALSE\njob_is_first_task TRUE\nurgency_slots min\n"
        "accounting_summary TRUE\nqsort_args NONE\n"
    )
    qconf("-Ap", _given("smp", environment))
    qconf("-Aq", _given("queue", _changed(qconf("-sq"), QUEUE)))


def ensure_daemon(name: str, host: str, program: str, state: State) -> None:
    """Start a daemon on its host unless it runs, in the foreground, as SGE_ND asks.

    Jobs inherit the environment of the daemon that starts them."""
    record = state.daemons.get(name)
    if record is None or not is_alive(record):
        argv = [*apart(host), str(GRID_ENGINE_PROGRAMS / program)]
        environment = {**GRID_ENGINE_ENV, "SGE_ND": "1", "LANG": "C.UTF-8"}
        state.remember(start(Record(name, argv, env=environment)))


def queue_takes_jobs() -> bool:
    """No instance of the queue is unreachable."""
    done = subprocess.run(command("qstat", "-f"), capture_output=True, text=True, check=False)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith("all.q@")]
    return len(rows) == len(EXECUTION_HOSTS) and all(len(row) == 5 for row in rows)


def build(state: State) -> None:
    """Programs, network, master, execution hosts and the sshd of its login host; returns when the queue takes jobs."""
    try:
        unpack()
    except NotDownloaded as error:
        print(f"  no Grid Engine: {error}")
        return
    link_libraries(state)
    lay_network()
    spool_defaults()
    ensure_daemon("sge_qmaster", GRID_ENGINE_HOST, "sge_qmaster", state)
    wait_until(lambda: hosts.listens(QMASTER_PORT, address(GRID_ENGINE_HOST)), "sge_qmaster does not listen")
    if not CONFIGURED.exists():
        configure()
        CONFIGURED.touch()
    for name in EXECUTION_HOSTS:
        ensure_daemon(f"sge_execd-{name}", name, "sge_execd", state)
    hosts.start_host(HOST_BY_NAME[GRID_ENGINE_HOST], state, apart(GRID_ENGINE_HOST))
    wait_until(queue_takes_jobs, f"the queue of Grid Engine takes no jobs: see {SPOOL} and {LOGS}", timeout_s=150)
