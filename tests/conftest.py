"""Fixtures of every test, which tests run, which of them run one after the other, and the end of the report."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import clusterfn
from tests.faults.fault_table import PROPERTY, fault_table
from tests.processes import connections

if TYPE_CHECKING:
    from tests.lab import Lab
    from tests.lab.channel import Channel

# A shell has what it starts with `&` ignore Ctrl-C. All programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until thousands of tests are collected, through which it would look again and again

# The lab's own code needs Unix modules; the fixture below imports it only where it can be.
collect_ignore = ["lab"] if sys.platform == "win32" else []
_LONG_S = 600
UMASK = os.umask(0o022)
os.umask(UMASK)
PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests marked `long` too (make test-long)")
    parser.addoption("--seed", type=int, help="run files, and the tests of each, in a random order (make test-hard)")


# Tests on the lab that share nothing with another group's: GPUs, limits of an sshd, a look at all of SLURM's queue.
APART = {
    "environments": "lock builder faults e2e/test_compare_models.py e2e/test_environment.py "
    "e2e/test_environment_seams.py e2e/test_environments.py e2e/test_environments_elsewhere.py e2e/test_files.py "
    "e2e/test_installer.py e2e/test_large_values.py e2e/test_libraries.py e2e/test_live.py e2e/test_payload.py "
    "e2e/test_projects.py e2e/test_untrusted_hosts.py e2e/test_values.py",
    "connections": "chaos contract lab/test_own_slurm.py e2e/test_cable.py e2e/test_cable_scripts.py "
    "e2e/test_delay.py e2e/test_first_hour.py e2e/test_grid_engine.py e2e/test_hostile.py e2e/test_minors.py "
    "e2e/test_notebook.py e2e/test_fairness.py e2e/test_qos.py e2e/test_queue.py e2e/test_size.py "
    "e2e/test_slurm_sites.py e2e/test_ssh_matrix.py",
    "jobs": "e2e/test_call_seams.py e2e/test_dask.py e2e/test_dependencies.py e2e/test_future.py "
    "e2e/test_interrupt.py e2e/test_interrupt_seams.py e2e/test_map.py e2e/test_nodes.py "
    "e2e/test_recipes.py e2e/test_requeue.py",
}
# The longest of the other files begin next: the last to begin should be short, as then nobody waits for one process.
LONGEST = (
    "bridge/test_queue.py builder/test_wheel_builds.py e2e/test_cli.py e2e/test_commands.py e2e/test_dask.py "
    "unit/hosts/survey/test_survey.py unit/test_examples_of_docs.py unit/test_platforms.py"
)
ORDER = {"lab": 0, "unit/calls/test_many_jobs.py": -1, **dict.fromkeys(APART, 0), **dict.fromkeys(LONGEST.split(), 1)}
TABLES = pytest.StashKey[list[tuple[str, str]]]()
FAILED = pytest.StashKey[bool]()  # of a test, for its fixtures


def pytest_collection_finish() -> None:
    gc.freeze()  # each `gc.collect()` would still look through them
    gc.enable()


def group_of(item: pytest.Item) -> str:
    """What runs one after the other in one process (pytest-xdist): a file, or all tests that share parts of the lab."""
    if "gpubox_reset" in getattr(item, "fixturenames", ()):
        return "lab"  # whose tests change what tensor01's GPUs say, and count those that are free
    return _group_of(item.path, item.get_closest_marker("lab") is not None)


@functools.cache  # asked twice for each of thousands of tests, in each process
def _group_of(path: Path, on_lab: bool) -> str:
    name = path.relative_to(Path(__file__).parent).as_posix()
    if not on_lab:
        return name
    for group, paths in APART.items():
        if any(name == each or name.startswith(f"{each}/") for each in paths.split()):
            return group
    return "lab"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in its own hook of this name
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked `long` out unless --long is given; then each may take ten minutes, or what it says."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
        fault = item.get_closest_marker("fault")
        if fault is not None and fault.args:
            name, _, parameters = item.name.partition("[")
            what = name.removeprefix("test_").replace("_", " ") + (f" ({parameters[:-1]})" if parameters else "")
            item.user_properties.append((PROPERTY, {"fault": fault.args[0], "what": what, "host": ""}))
    if config.getoption("--seed") is not None:
        shuffle(items, config.getoption("--seed"))
    items.sort(key=lambda item: ORDER.get(group_of(item), 2))
    if config.getoption("--long"):
        for item in items:
            if item.get_closest_marker("long") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(_LONG_S))
        return
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        parts[item.get_closest_marker("long") is not None].append(item)
    items[:], left_out = parts
    if left_out:
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)  # before the fixtures of a session, too
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let the accounts of the lab read what its tests lay out for them, whatever the umask is."""
    os.umask(0o022 if item.get_closest_marker("lab") else UMASK)


def shuffle(items: list[pytest.Item], seed: int) -> None:
    """Put files into a random order, and the tests of each, which share what was made for their file."""
    dice = random.Random(seed)
    places = {path: dice.random() for path in sorted({item.path for item in items})}
    dice.shuffle(items)
    items.sort(key=lambda item: places[item.path])


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["tables"] = session.config.stash.get(TABLES, [])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over the tables of a worker of pytest-xdist."""
    node.config.stash.setdefault(TABLES, []).extend(getattr(node, "workeroutput", {}).get("tables", []))


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many tests ran, and first the tables that tests made, unless they would hide what failed."""
    ends = [report for name in ("passed", "failed", "skipped") for report in terminalreporter.stats.get(name, [])]
    failed = terminalreporter.stats.get("error", [])
    tables = config.getoption("--long") or not (failed or terminalreporter.stats.get("failed"))
    for heading, text in config.stash.get(TABLES, []) if tables else []:
        terminalreporter.section(heading)
        terminalreporter.write_line(text)
    told = [
        (report.passed, facts)
        for report in [*ends, *failed]
        if not report.skipped
        for name, facts in getattr(report, "user_properties", ())  # a failed collection has none
        if name == PROPERTY
    ]
    if told and tables:
        terminalreporter.section("faults")
        terminalreporter.write_line(f"clusterfn from {Path(clusterfn.__file__).parent}\n{fault_table(told)}")
    # A module that is skipped or fails at collection has a report without keywords.
    flaky = {report.nodeid for report in ends if "flaky" in getattr(report, "keywords", ())}
    skipped = len(terminalreporter.stats.get("skipped", []))
    terminalreporter.write_line(f"{len(ends) - skipped} tests run, {skipped} skipped, {len(flaky)} marked flaky")


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Put a text at the end of the report, below the name of the test's folder."""
    tables, heading = request.config.stash.setdefault(TABLES, []), request.path.parent.name
    return lambda text: tables.append((heading, text))


@pytest.fixture(scope="session")
def _numbered_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Paths for the XDG folders of each test. `mktemp` would list those of all earlier tests each time."""
    base = tmp_path_factory.mktemp("xdg")
    return (base / str(number) for number in itertools.count())


@pytest.fixture(scope="session")
def _runtime() -> Iterator[str]:
    """A folder for held logins, which are others than the person's; its path is short, as those of sockets must be."""
    path = f"/tmp/cf-{os.getpid()}"
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, _numbered_folders: Iterator[Path], _runtime: str) -> None:
    """No test sees the person's configuration, state, logins or proxies; each has its own XDG folders."""
    names = [name for name in os.environ if name.startswith("CLUSTERFN_") or name.lower() in PROXIES]
    for name in names:
        monkeypatch.delenv(name)
    folder = next(_numbered_folders)
    folder.mkdir()
    for kind in ("config", "cache", "state", "data"):
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(folder / kind))
    monkeypatch.setenv("CLUSTERFN_RUNTIME", _runtime)
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(folder / "config" / "clusterfn" / "config.yml"))
    # Connections to hosts that ended with earlier tests would retry during this one, and use what it replaces.
    for opened in [each for each in connections() if each.link.state.name != "connected"]:
        opened.close()
    # A program runs one script; tests in one process run several.
    monkeypatch.setattr("clusterfn.config.config_file.running_file", None)
    monkeypatch.setattr("clusterfn.hosts.transports.prompts.person", lambda: None)  # the tester is not asked for codes


REQUIRED = os.environ.get("CLUSTERFN_REQUIRE_LAB") == "1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Where the lab is demanded, nothing is skipped but what needs a GPU or a browser: a skip there is a failure."""
    report = yield
    excused = any(map(item.get_closest_marker, ("gpu", "browser"))) or hasattr(report, "wasxfail")
    if REQUIRED and report.skipped and not excused:
        report.outcome = "failed"
        report.longrepr = f"skipped, although everything must run here: {report.longrepr}"
    item.stash[FAILED] = report.failed or item.stash.get(FAILED, False)
    return report


@pytest.fixture(scope="session")
def _bridge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bridge` of a root below which a call has run: its modules have been compiled."""
    folder = tmp_path_factory.mktemp("compiled")
    bridge = folder / "root" / "bridge"
    if sys.platform == "win32":  # jobs cannot run there
        bridge.mkdir(parents=True)
        return bridge
    host = f"{{scheduler: local, root: {folder / 'root'}, limits: {{cores: 64}}}}"  # other tests hold this machine's
    (folder / "clusterfn.yml").write_text(f"hosts:\n  here: {host}\n")
    env = {**os.environ, "CLUSTERFN_CONFIG": str(folder / "clusterfn.yml"), "XDG_STATE_HOME": str(folder)}
    subprocess.run([sys.executable, "-c", "import clusterfn\nclusterfn.cluster(abs)(-1)"], env=env, check=True)
    return bridge


@pytest.fixture
def warm_root(tmp_path: Path, _bridge: Path) -> Path:
    """A root of this machine, as a call before has left it. The files of its bridge are those of other tests too."""
    unfinished = shutil.ignore_patterns("*.pyc.*")  # as the supervisor of that call may still compile a module
    shutil.copytree(_bridge, tmp_path / "root" / "bridge", ignore=unfinished, copy_function=os.link)  # links are fast
    return tmp_path / "root"


@pytest.fixture(scope="session")
def lab() -> Lab:
    """The lab if it is up. Otherwise the test is skipped, or fails where CLUSTERFN_REQUIRE_LAB=1 asks for a lab."""
    if sys.platform == "win32":
        pytest.skip("the lab needs Debian")
    from tests.lab import Lab, LabMissing

    try:
        return Lab()
    except LabMissing as missing:
        if REQUIRED:
            pytest.fail(str(missing))
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def channel(lab: Lab) -> Channel:
    """The lab's conda channel, made first where it is missing (16 s)."""
    from tests.lab.channel import provide

    return provide()


@pytest.fixture
def gpubox_reset(lab: Lab) -> Iterator[None]:
    """Eight idle cards before and after."""
    lab.gpubox.reset()
    yield
    lab.gpubox.reset()
