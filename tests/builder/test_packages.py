"""What packages bring is in its place: prefixes, scripts, entry points, records, byte code; what is evil is refused."""

from __future__ import annotations

import bz2
import io
import json
import marshal
import os
import struct
import sys
import tarfile
import zipfile
from importlib.util import MAGIC_NUMBER
from pathlib import Path

import pytest

from tests.builder import toys
from tests.builder.host import Host, entry
from tests.builder.toys import MINOR, PLACEHOLDER, SITE
from tests.interpreters import interpreter
from tests.lab.condapackage import MOMENT, Entry, Package, write
from tests.processes import named

SCRIPT = f"#!{PLACEHOLDER}/bin/python\nprint('{PLACEHOLDER}')\n".encode()


def test_text_and_binary_prefixes(host: Host, shelf: Path, python: dict):
    blob = b"\x7f" + PLACEHOLDER.encode() + b"/a:" + PLACEHOLDER.encode() + b"/b\0rest" + PLACEHOLDER.encode() + b"\0"
    files = {
        "bin/where": Entry(SCRIPT, 0o755, placeholder=PLACEHOLDER),
        "lib/blob": Entry(blob, placeholder=PLACEHOLDER, binary=True),
        "lib/other": Entry(b"as it is"),
        "lib/link": Entry(link="other"),
    }
    plan = host.plan([python, toys.conda(shelf, "places", files)])

    assert host.build(plan).last["ok"]

    prefix = host.prefix(plan)
    raw = os.fsencode(prefix)
    assert host.run(plan, "where") == str(prefix)
    found = (prefix / "lib/blob").read_bytes()
    assert len(found) == len(blob)
    assert found.startswith(b"\x7f" + raw + b"/a:" + raw + b"/b\0")
    assert b"rest" + raw + b"\0" in found and b"placehold" not in found
    assert (prefix / "lib/link").read_bytes() == b"as it is" and os.readlink(prefix / "lib/link") == "other"
    assert (prefix / "lib/other").stat().st_nlink == 2


@pytest.mark.parametrize("name", ["a blank 'q' \"d\" $x ü", "long-" * 40])
def test_a_root_that_no_first_line_can_hold(bridge: Path, tmp_path: Path, shelf: Path, python: dict, name: str):
    host = Host(tmp_path / name[:150], bridge, interpreter("3.6") or sys.executable)
    text = f"#!{PLACEHOLDER}/bin/python\nimport sys\nprint(sys.argv[1], sys.prefix)\n".encode()
    files = {"bin/where": Entry(text, 0o755, placeholder=PLACEHOLDER)}
    plan = host.plan([python, toys.conda(shelf, "places", files)])

    answer = host.build(plan, LC_ALL="C")

    assert answer.rc == 0, answer
    assert host.run(plan, "where", "an argument") == f"an argument {host.prefix(plan)}"


def test_a_prefix_too_long_for_a_binary_names_file_and_lengths(bridge: Path, tmp_path: Path, shelf: Path, python: dict):
    host = Host(tmp_path / ("x" * 200), bridge, interpreter("3.6") or sys.executable)
    blob = Entry(PLACEHOLDER[:100].encode() + b"\0", placeholder=PLACEHOLDER[:100], binary=True)
    plan = host.plan([python, toys.conda(shelf, "tight", {"lib/blob": blob})])

    answer = host.build(plan)

    assert answer.rc == 1
    assert "lib/blob" in answer.last["message"] and "100" in answer.last["message"]
    assert str(len(os.fsencode(host.prefix(plan)))) in answer.last["message"]
    assert not host.prefix(plan).exists() and host.leftovers() == []


def test_noarch_python(host: Host, shelf: Path, python: dict):
    files = {
        "site-packages/greeter/__init__.py": b"class G:\n    @staticmethod\n    def main():\n        print('hello')\n",
        "python-scripts/again": Entry(SCRIPT, 0o755, placeholder=PLACEHOLDER),
        "share/text": b"there",
    }
    package = toys.conda(shelf, "greeter", files, noarch="python", entry_points=("greet = greeter:G.main",))
    plan = host.plan([python, package], verify=["greeter"])

    assert host.build(plan).last["ok"]

    assert host.run(plan, "greet") == "hello"
    assert host.run(plan, "again") == str(host.prefix(plan))
    assert (host.prefix(plan) / "share/text").exists() and (host.prefix(plan) / SITE / "greeter/__init__.py").exists()
    record = json.loads((host.prefix(plan) / "conda-meta/greeter-1.0-h0_0.json").read_text())
    assert record["name"] == "greeter" and "bin/greet" in record["files"] and record["url"].endswith(".tar.bz2")


def test_a_wheel(host: Host, shelf: Path, python: dict):
    files = {
        "thing/__init__.py": b"def main():\n    print('from a wheel')\n",
        "thing-1.0.data/scripts/tool": b"#!python\nimport sys\nprint(sys.prefix)\n",
        "thing-1.0.data/scripts/shell": b"#!/bin/sh\necho shell\n",
        "thing-1.0.data/headers/thing.h": b"/* */\n",
        "thing-1.0.data/data/share/thing.txt": b"data\n",
        "thing-1.0.data/platlib/native.py": b"x = 1\n",
    }
    points = b"[console_scripts]\nThing = thing:main\n[other]\nx = y\n"
    package = toys.wheel(shelf, "thing", files, entry_points__txt=points)
    plan = host.plan([python, package], verify=["thing", "native"])

    assert host.build(plan).last["ok"]

    prefix = host.prefix(plan)
    assert [host.run(plan, name) for name in ("Thing", "tool", "shell")] == ["from a wheel", str(prefix), "shell"]
    assert (prefix / f"include/python{MINOR}/thing/thing.h").exists() and (prefix / "share/thing.txt").exists()
    code = (
        "import importlib.metadata as m; d = m.distribution('thing'); print(d.read_text('INSTALLER').strip(),"
        "all(f.locate().exists() for f in d.files), sorted(str(f) for f in d.files if f.suffix in ('', '.h')))"
    )
    seen = host.run(plan, "python", "-c", code)
    outside = [f"../../../bin/{name}" for name in ("Thing", "shell", "tool")]
    headers, about = [f"../../../include/python{MINOR}/thing/thing.h"], ["INSTALLER", "METADATA", "RECORD", "WHEEL"]
    assert seen == f"clusterfn True {[*outside, *headers, *(f'thing-1.0.dist-info/{name}' for name in about)]}"


def test_byte_code_is_there_and_never_written_again(host: Host, shelf: Path, python: dict):
    files = {f"{SITE}/good.py": b"X = 1\n", f"{SITE}/bad.py": b"def (\n"}
    files[f"{SITE}/placed.py"] = Entry(f"P = '{PLACEHOLDER}'\n".encode(), placeholder=PLACEHOLDER)
    plan = host.plan([python, toys.conda(shelf, "good", files)], verify=["good", "placed"])
    host.build(plan)
    cache = host.prefix(plan) / SITE / "__pycache__"
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}

    assert sorted(path.name.split(".")[0] for path in before) == ["good", "placed"]
    os.utime(host.prefix(plan) / SITE / "good.py", (1, 1))
    code = "import good, placed; print(good.__cached__ and placed.P, good.__spec__.loader.get_code('good').co_filename)"
    assert host.run(plan, "python", "-c", code) == f"{host.prefix(plan)} {host.prefix(plan)}/{SITE}/good.py"

    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before


def test_byte_code_that_a_package_brings_is_compiled_again(host: Host, shelf: Path, python: dict):
    code = MAGIC_NUMBER + struct.pack("<LLL", 0, MOMENT, 6) + marshal.dumps(compile("X = 2\n", "x.py", "exec"))
    cached = f"{SITE}/__pycache__/fresh.cpython-{MINOR.replace('.', '')}.pyc"
    files = {f"{SITE}/fresh.py": b"X = 1\n", cached: code, f"{SITE}/bare.pyc": code}
    plan = host.plan([python, toys.conda(shelf, "kept", files)])

    assert host.build(plan).last["ok"]

    assert host.run(plan, "python", "-c", "import bare, fresh; print(bare.X, fresh.X)") == "2 1"
    assert (host.prefix(plan) / cached).read_bytes()[4:8] == b"\1\0\0\0", "a date of the source is compared"


def test_activation_scripts_set_variables_and_no_post_link_script_runs(host: Host, shelf: Path, python: dict):
    files = {
        "bin/.linked-post-link.sh": Entry(b'touch "$PREFIX/linked"\n', 0o755),
        "etc/conda/activate.d/a.sh": b"export TOLD=$CONDA_PREFIX/x\n",
    }
    plan = host.plan([python, toys.conda(shelf, "linked", files)])

    ready = host.build(plan).last["ready"]

    assert ready["told"] == {"set": {"TOLD": f"{host.prefix(plan)}/x"}}
    assert not (host.prefix(plan) / "linked").exists()


@pytest.mark.parametrize(
    "hangs",
    [
        pytest.param("sleep 600", id="idle", marks=pytest.mark.long),
        pytest.param("while :; do sleep 0.05; done", id="busy"),
    ],
)
def test_an_activation_script_that_hangs_is_ended_with_all_that_it_started(
    host: Host, shelf: Path, python: dict, hangs: str
):
    child = f"(trap '' TERM HUP; exec -a left-by-{os.getpid()} sleep 600) &\n"
    files = {"etc/conda/activate.d/a.sh": f"{child}{hangs}\n".encode()}
    plan = host.plan([python, toys.conda(shelf, "linked", files)], timeout_s=6.0)

    answer = host.build(plan)

    assert answer.last["at"] == "script"
    assert "the environment cannot be activated: it " in answer.last["message"]
    assert "6 s, and was ended" in answer.last["message"]
    assert not named(f"left-by-{os.getpid()}")
    assert not os.path.lexists(host.prefix(plan)) and host.leftovers() == []


def test_an_environment_that_does_not_import_what_was_asked_for(host: Host, shelf: Path, python: dict):
    package = toys.conda(shelf, "broken", {f"{SITE}/broken.py": b"raise OSError('libcuda.so.1: not found')\n"})
    plan = host.plan([python, package], verify=["broken"])

    last = host.build(plan).last

    assert last["at"] == "verify"
    assert last["message"].endswith("does not import broken: OSError: libcuda.so.1: not found")
    assert last["evidence"][-1] == "OSError: libcuda.so.1: not found"
    assert json.loads((host.root / "builds" / plan["id"] / "outcome.json").read_text())["message"] == last["message"]
    assert not os.path.lexists(host.prefix(plan)) and host.leftovers() == []


def test_another_python_than_the_locks(host: Host, shelf: Path, python: dict):
    last = host.build(host.plan([python], python=[3, 4])).last

    assert "the lock wants 3.4" in last["message"]


def tar_of(path: Path, *members: tuple[str, bytes | str], listed: tuple[str, ...] | None = ()) -> dict:
    """A .tar.bz2 with these files, or symbolic links where the content is a string; it lists others, too, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    index = json.dumps({"name": "evil", "version": "1.0", "build": "0"}).encode()
    names = [*(name for name, _ in members), *(listed or ())]
    paths = json.dumps({"paths": [{"_path": name} for name in names]}).encode()
    about = {"info/index.json": index} if listed is None else {"info/index.json": index, "info/paths.json": paths}
    with tarfile.open(path, "w:bz2") as archive:
        for name, data in {**about, **dict(members)}.items():
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                info.type, info.linkname = tarfile.SYMTYPE, data
            else:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data if isinstance(data, bytes) else b""))
    return entry(path)


@pytest.mark.parametrize(
    "members",
    [
        [("../../outside", b"x")],
        [("/tmp/clusterfn-outside", b"x")],
        [("lib/up", "../../outside")],
        [("lib/away", "/nowhere-clusterfn"), ("lib/away/file", b"x")],
    ],
)
def test_an_archive_that_leads_out_of_its_folder(host: Host, shelf: Path, python: dict, members: list):
    plan = host.plan([python, tar_of(shelf / "evil-1.0-0.tar.bz2", *members)])

    answer = host.build(plan)

    assert answer.rc == 1 and "evil" in answer.last["message"], answer
    assert not (host.root / "outside").exists() and not Path("/tmp/clusterfn-outside").exists()
    assert not os.path.lexists(host.prefix(plan)) and host.leftovers() == []


@pytest.mark.parametrize("name", ["READY", ".clusterfn/plan.json"])
def test_no_package_says_that_its_environment_is_whole(host: Host, shelf: Path, python: dict, name: str):
    plan = host.plan([python, toys.conda(shelf, "sly", {name: b"{}"})])

    assert f"a package brings {name}" in host.build(plan).last["message"]
    assert not os.path.lexists(host.prefix(plan))


def test_a_second_name_of_a_link_is_a_link(host: Host, shelf: Path, python: dict):
    path = shelf / "linked-1.0-0.tar.bz2"
    tar_of(path, ("lib/first", "aim"), ("lib/aim", b"x"), listed=("lib/second",))
    with bz2.open(path) as packed:
        data = io.BytesIO(packed.read())
    with tarfile.open(fileobj=data, mode="a") as archive:
        info = tarfile.TarInfo("lib/second")
        info.type, info.linkname = tarfile.LNKTYPE, "lib/first"
        archive.addfile(info)
    path.write_bytes(bz2.compress(data.getvalue()))
    plan = host.plan([python, entry(path)])

    assert host.build(plan).rc == 0
    assert os.readlink(host.prefix(plan) / "lib/second") == "aim"


def test_one_package_does_not_write_through_the_link_of_another(host: Host, shelf: Path, python: dict, tmp_path: Path):
    (tmp_path / "aim").mkdir()
    link = tar_of(shelf / "evil-1.0-0.tar.bz2", ("lib/away", str(tmp_path / "aim")))
    plan = host.plan([python, link, toys.conda(shelf, "after", {"lib/away/file": b"x"})])

    last = host.build(plan).last

    assert "lib/away/file would be written to" in last["message"]
    assert list((tmp_path / "aim").iterdir()) == []


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ('exec /usr/bin/zstd "$@"', None),
        ("head -c 100 >/dev/null; echo too little memory >&2; exit 1", "zstd: too little memory"),
    ],
)
def test_a_host_whose_python_cannot_read_zstd_takes_its_program(
    host: Host, shelf: Path, python: dict, program: str, told: str | None
):
    if "3.6" not in host.python and sys.version_info >= (3, 14):
        pytest.skip("this machine has no Python that cannot read zstd")
    write(Package("mine", "1.0", "h0_0", {f"{SITE}/mine.py": Entry(b"X = 1\n" * 50000)}, formats=(".conda",)), shelf)
    plan = host.plan([python, entry(next(shelf.rglob("mine*.conda")))], verify=["mine"])
    (shelf / "zstd").write_text(f"#!/bin/sh\n{program}\n")
    (shelf / "zstd").chmod(0o755)

    last = host.build(plan, PATH=f"{shelf}:/usr/bin:/bin").last

    assert last["ok"] if told is None else last["message"].endswith(told), last


def test_a_wheel_that_leads_out_of_its_folder(host: Host, shelf: Path, python: dict):
    shelf.mkdir(exist_ok=True)
    with zipfile.ZipFile(shelf / "evil-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("../../../outside", "x")
    plan = host.plan([python, entry(shelf / "evil-1.0-py3-none-any.whl")])

    assert "leads out of its folder" in host.build(plan).last["message"]


def test_the_command_says_how_it_is_used(host: Host):
    answer = host.call("burn")

    assert answer.rc == 2 and answer.err.startswith("usage: build.py build PLAN")


@pytest.mark.parametrize("wrong", [{"id": "../x"}, {"format": 9}, {"root": "relative"}, {"python": "3"}])
def test_a_plan_that_is_none(host: Host, python: dict, wrong: dict, tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({**host.plan([python]), **wrong}))

    answer = host.call("build", str(path))

    assert (answer.rc, answer.last["stage"], answer.last["at"]) == (1, "failed", "plan")


def test_nothing_of_the_builders_surroundings_leaks_into_what_it_runs(host: Host, shelf: Path, python: dict):
    text = b'echo "${PYTHONPATH-} ${LD_PRELOAD-} ${CONDA_EXE-} $CONDA_PREFIX" > "$CONDA_PREFIX/seen"\n'
    plan = host.plan([python, toys.conda(shelf, "linked", {"etc/conda/activate.d/a.sh": text})])

    assert host.build(plan, PYTHONPATH="/leak", LD_PRELOAD="", CONDA_EXE="/leak/conda").rc == 0

    assert (host.prefix(plan) / "seen").read_text() == f"   {host.prefix(plan)}\n"


def test_a_package_of_an_old_conda_is_named(host: Host, shelf: Path, python: dict):
    old = tar_of(shelf / "old-1.0-0.tar.bz2", ("lib/file", b"x"), listed=None)

    assert "old-1.0-0.tar.bz2 is of a conda before 2017" in host.build(host.plan([python, old])).last["message"]


def test_a_package_that_nobody_thought_of_is_an_outcome_too(host: Host, shelf: Path, python: dict):
    odd = tar_of(shelf / "odd-1.0-0.tar.bz2", ("info/paths.json", b'{"paths": 7}'))
    plan = host.plan([python, odd])

    last = host.build(plan).last

    assert last["at"] == "builder" and "the builder itself failed: TypeError" in last["message"]
    assert "TypeError" in last["evidence"][-1]
    assert json.loads((host.root / "builds" / plan["id"] / "outcome.json").read_text())["ok"] is False
