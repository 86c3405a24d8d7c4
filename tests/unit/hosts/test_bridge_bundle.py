"""What is sent once to every host: its bridge and contents, again only if the host has lost them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from clusterfn.bridge import layout
from clusterfn.errors import HostError
from clusterfn.hosts import bridge_bundle
from clusterfn.hosts.bridge_bundle import HostContents
from clusterfn.hosts.rpc.reply import Reply
from tests.fixtures import roundtrip
from tests.interpreters import interpreter


def test_the_digest_is_of_names_and_contents_not_of_their_order():
    assert bridge_bundle.make({"a": b"1", "b": b"2"}).digest == bridge_bundle.make({"b": b"2", "a": b"1"}).digest


@pytest.mark.parametrize(
    "other", [{"a": b"1", "b": b"3"}, {"a": b"1", "c": b"2"}, {"a": b"1"}, {"a": b"12", "b": b""}, {"a1b": b"2"}]
)
def test_other_files_have_another_digest(other):
    assert bridge_bundle.make({"a": b"1", "b": b"2"}).digest != bridge_bundle.make(other).digest


def test_a_name_that_is_no_utf8_is_possible():
    assert bridge_bundle.make({"\udcff": b""}).digest


def test_the_bridge_is_source_alone_and_small():
    files = bridge_bundle.bridge().files

    assert all(name.endswith(".py") or name == "files.json" for name in files)
    assert not any(".." in name or name.startswith("/") for name in files)
    assert sum(map(len, files.values())) < 10 << 18


def run_with_bridge(folder: Path, python: str, code: str, **variables: str) -> str:
    """Run code where only the bridge can be imported; return what it printed."""
    for name, data in bridge_bundle.bridge().files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    argv = [python, "-I", "-S", "-c", f"import sys; sys.path[:0] = sys.argv[1:];{code}", folder, folder / "library"]
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}).stdout


@pytest.mark.parametrize("python", roundtrip.pythons(), ids=lambda path: Path(path).parents[1].name)
def test_the_bridge_alone_is_enough_to_import_wire_and_library(tmp_path, python):
    code = (
        "from _clusterfn_wire import container, exceptions, pickler, stand_ins, unpicklable;"
        "import clusterfn, clusterfn.errors; clusterfn.Job, clusterfn.Executor, str(clusterfn.errors.HostError('x'))"
    )

    run_with_bridge(tmp_path, python, code)


def test_the_library_in_the_bridge_finds_the_wire_beside_it(tmp_path):
    code = (
        "sys.path.remove(sys.argv[1]); from clusterfn.hosts import serialization;"
        "packed = serialization.part('container').pack(lambda: 42); print(packed.pickle and 'packed')"
    )

    assert run_with_bridge(tmp_path, sys.executable, code) == "packed\n"


def test_every_public_name_can_be_imported_in_a_job(tmp_path):
    code = (
        "import clusterfn\nfor name in clusterfn.__all__: getattr(clusterfn, name)\n"
        "for call in (lambda: clusterfn.login('tensor01'), lambda: clusterfn.attach('7f3a'), clusterfn.jobs):\n"
        "    try: call()\n"
        "    except RuntimeError as error: print(error)"
    )

    printed = run_with_bridge(tmp_path, sys.executable, code, **{layout.TAG: "7f3a000011112222/1"})

    told = [f"clusterfn.{name}() inside a job: call it on your own machine" for name in ("login", "attach", "jobs")]
    assert printed.splitlines() == told


@pytest.mark.parametrize(
    "line",
    [
        "session = clusterfn.Session('tensor01', gpus=1); used = lambda: session.call(abs, -1)",
        "session = clusterfn.Session(); used = lambda: session.__enter__()",
        "class Mine(clusterfn.Session): pass\nused = lambda: Mine().submit(abs, -1)",
        "executor = clusterfn.Executor('tensor01'); used = lambda: executor.submit(abs, -1)",
    ],
)
def test_what_a_module_makes_when_it_is_imported_fails_in_a_job_only_where_it_is_used(tmp_path, line):
    code = f"import clusterfn\n{line}\ntry: used()\nexcept RuntimeError as error: print(error)"

    assert "inside a job" in run_with_bridge(tmp_path, sys.executable, code, **{layout.TAG: "7f3a000011112222/1"})


OLD = interpreter("3.6")


@pytest.mark.skipif(OLD is None, reason="there is no Python 3.6 here")
def test_what_runs_in_the_hosts_python_compiles_under_3_6(tmp_path):
    old = [
        "_clusterfn/bridge/layout.py",
        layout.SUPERVISE,
        *(n for n in bridge_bundle.bridge().files if n.startswith("_clusterfn/bridge/supervisor/")),
    ]
    agent = sorted((Path(bridge_bundle.__file__).parents[1] / "bridge" / "agent").glob("*.py"))
    texts = [bridge_bundle.bridge().files[name] for name in old] + [path.read_bytes() for path in agent]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.py").write_bytes(text)

    done = subprocess.run([str(OLD), "-m", "compileall", "-q", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_second_interpreter_makes_the_same_bridge():
    code = "from clusterfn.hosts import bridge_bundle as parcel; print(parcel.bridge().digest)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=roundtrip.LIBRARY.parent
    )

    assert done.stdout.strip() == bridge_bundle.bridge().digest


def test_only_files_of_the_library_itself_are_sent(tmp_path: Path):
    (tmp_path / "below.py").mkdir()
    (tmp_path / "below.py" / "a.py").write_text("1")
    (tmp_path / "elsewhere").symlink_to("/usr/lib/python3")
    (tmp_path / "loop").symlink_to(".")
    (tmp_path / ".#a.py").symlink_to("user@host.123:456")  # as Emacs locks a file

    assert bridge_bundle.python_files(tmp_path, "x/") == {"x/below.py/a.py": b"1"}


class Uploads:
    def __init__(self) -> None:
        self.sent: list[Reply[bool]] = []
        self.cancelled = 0

    def __call__(self) -> Reply[bool]:
        self.sent.append(Reply(self.cancel))
        return self.sent[-1]

    def cancel(self) -> None:
        self.cancelled += 1
        self.sent[-1].reject(HostError("cancelled"))


def asked(contents: HostContents, upload: Any, times: int = 1) -> list[list[Reply[bool]]]:
    return [contents.send("/root/bridge/1", upload) for _ in range(times)]


def test_what_is_on_its_way_is_not_sent_again_and_all_wait_for_it() -> None:
    contents, upload = HostContents(), Uploads()

    waits = asked(contents, upload, 300)

    assert len(upload.sent) == 1
    assert waits == [[upload.sent[0]]] * 300
    contents.expect("/root/envs/2/ready.json", upload.sent[0])
    assert contents.unknown(["/root/bridge/1", "/root/envs/2/ready.json", "/root/x"]) == ["/root/x"]
    upload.sent[0].resolve(True)
    assert asked(contents, upload) == [[]] and "/root/bridge/1" in contents and "/root/envs/2/ready.json" in contents


def test_what_has_failed_is_sent_again() -> None:
    contents, upload = HostContents(), Uploads()
    asked(contents, upload)
    upload.sent[0].reject(HostError("no space left"))

    assert asked(contents, upload) == [[upload.sent[1]]]
    assert "/root/bridge/1" not in contents


def test_a_job_that_is_dropped_stops_only_what_no_other_job_waits_for() -> None:
    contents, upload = HostContents(), Uploads()
    (first,), (second,), (third,) = asked(contents, upload, 3)

    first.cancel()
    second.cancel()
    assert upload.cancelled == 0
    third.cancel()

    assert upload.cancelled == 1
    assert asked(contents, upload) == [[upload.sent[1]]]


def test_a_request_that_all_have_cancelled_is_shared_with_no_other_and_cancelled_once() -> None:
    cancelled: list[str] = []
    request: Reply[bool] = Reply(lambda: cancelled.append("once"))

    request.cancel()

    assert [request.share(), request.share()] == [False, False]
    request.cancel()
    assert cancelled == ["once"]


def test_what_is_gone_is_sent_again_once_it_is_forgotten() -> None:
    contents, upload = HostContents(), Uploads()
    contents.add(["/root/bridge/1", "/root/blobs/2"])

    contents.distrust(["/root/bridge/1"])

    assert asked(contents, upload) == [[upload.sent[0]]]
    assert "/root/blobs/2" in contents


def test_after_an_hour_the_host_is_asked_again_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("clusterfn.hosts.bridge_bundle.time.time", lambda: now[0])
    contents = HostContents()
    contents.add(["/root/bridge/1"])
    now[0] += 3599
    assert "/root/bridge/1" in contents

    now[0] += 2

    assert contents.unknown(["/root/bridge/1"]) == ["/root/bridge/1"]
