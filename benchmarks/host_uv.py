"""uv's static program against the builder, on a host: `python -m benchmarks.host_uv`.

Both make environments of the same wheels on the same interpreter: as an ordinary user of the lab's host with Python
3.6, without network. The first part measures time and disk, in turns. The second part tries what goes wrong on real
hosts, and says how each of the two ends. The report goes to benchmarks/results.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Series, seconds, use_free_memory
from benchmarks.report import aligned, keep
from tests.bridge.host import clean_environ, layout_bridge
from tests.builder.host import Host, entry
from tests.lab import Lab

USER, MINOR = "cfbash", "3.11"
WHEELS, FEW = ("numpy", "pandas", "tqdm"), ("numpy", "tqdm")
IMPORT = "import numpy, tqdm"
MACHINES = {"x86_64": ("musllinux_1_1_x86_64", 62), "aarch64": ("musllinux_1_1_aarch64", 183)}
ROUNDS = 2

Done = subprocess.CompletedProcess[bytes]
Make = Callable[..., Done]


def download(folder: Path, *words: str) -> list[Path]:
    """Download wheels from the index that pip is configured for."""
    argv = [sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "-d", str(folder), *words]
    subprocess.run(argv, check=True, env=clean_environ())
    return sorted(folder.glob("*.whl"))


def program(folder: Path, machine: str) -> Path:
    """Unpack uv for a machine from its wheel, and check that it is for that machine and needs no libc."""
    tag, number = MACHINES[machine]
    (wheel,) = download(folder / f"uv-{machine}", "uv", "--no-deps", "--platform", tag)
    shutil.unpack_archive(wheel, folder / f"unpacked-{machine}", "zip")
    (found,) = (folder / f"unpacked-{machine}").glob("uv-*.data/scripts/uv")
    head = found.read_bytes()[:4096]
    assert head[:4] == b"\x7fELF" and int.from_bytes(head[18:20], "little") == number, "another machine's"
    assert b"/ld-" not in head, "it needs a libc"
    found.chmod(0o755)
    return found


@dataclass
class There:
    """A folder of the user's on the host."""

    lab: Lab
    folder: Path
    bridge: Path
    base: Path
    wheels: Sequence[Path]
    uv: Path

    def root(self, name: str) -> Path:
        """Make a folder of the user's."""
        return owned(self.folder / name)

    def run(self, *argv: str | Path, limit_s: float | None = None) -> Done:
        """Run a program as the user, without network; kill it, and what it has started, after `limit_s`."""
        found = pwd.getpwnam(USER)
        ids = ["setpriv", f"--reuid={found.pw_uid}", f"--regid={found.pw_gid}", "--clear-groups"]
        words = ["unshare", "-n", *ids, *map(str, argv)]
        with subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/",
            env=clean_environ(HOME=str(self.folder)), start_new_session=True,
        ) as process:  # fmt: skip
            try:
                out, _ = process.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, _ = process.communicate()
        return subprocess.CompletedProcess(words, process.returncode, out)

    def builder(self, *words: str | Path, limit_s: float | None = None) -> Done:
        """Run a command of the builder, with the host's old Python."""
        argv = [self.lab.python("3.6"), "-I", "-S", self.bridge / "build.py", *words]
        return self.run(*argv, limit_s=limit_s)

    def ours(self, root: Path, name: str, limit_s: float | None = None) -> Done:
        """Make an environment with the builder."""
        version = self.run(self.base, "-c", "from platform import *; print(python_version())").stdout.decode().strip()
        base = {"path": str(self.base), "version": version}
        host = Host(root, self.bridge, "")
        plan = host.plan(map(entry, self.wheels), python=[3, 11], base=base, id=name, verify=["numpy"])
        (self.folder / f"{name}.json").write_text(json.dumps(plan))
        return self.builder("build", self.folder / f"{name}.json", limit_s=limit_s)

    def theirs(self, root: Path, name: str, limit_s: float | None = None, **more: Any) -> Done:
        """Make one with uv: a virtual environment, the wheels by their hashes, byte code, and an import as a check."""
        prefix, uv = root / "envs" / name, more.get("uv", self.uv)
        hashes = [hashlib.sha256(more.get("before", b"") + each.read_bytes()).hexdigest() for each in self.wheels]
        lines = [f"{each.name.split('-')[0]} @ {each.as_uri()} --hash=sha256:{sha256}"
                 for each, sha256 in zip(self.wheels, hashes)]  # fmt: skip
        listed = self.folder / f"{name}.txt"
        listed.write_text("\n".join(lines))
        common = ["-q", "--offline", "--no-config", "--cache-dir", more.get("cache", root / "cache")]
        make = [uv, "venv", *common, "--python", self.base, *more.get("venv", ()), prefix]
        fill = [uv, "pip", "install", *common, "--python", prefix / "bin/python", "--no-deps", "--require-hashes",
                *more.get("code", ["--compile-bytecode"]), "--link-mode", "hardlink", "-r", listed]  # fmt: skip
        check = [prefix / "bin/python", "-I", "-B", "-c", "import numpy"]
        steps = [" ".join(f"'{word}'" for word in argv) for argv in ([] if prefix.exists() else make, fill, check)]
        return self.run("sh", "-ec", "\n".join(steps), limit_s=limit_s)


def owned(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.chown(folder, USER)
    return folder


@contextlib.contextmanager
def there() -> Iterator[There]:
    """Lay out everything in a folder of the user's; all of it is removed."""
    lab = Lab()
    folder = owned(Path(tempfile.mkdtemp(prefix="clusterfn-bench-")))
    folder.chmod(0o755)
    try:
        platforms = ("manylinux2014_x86_64", "manylinux_2_27_x86_64", "manylinux_2_28_x86_64")
        tags = [word for each in platforms for word in ("--platform", each)]
        wheels = download(folder / "shelf", *WHEELS, "--python-version", MINOR, "--implementation", "cp", *tags)
        uv = program(folder, "x86_64")
        program(folder, "aarch64")
        bridge = layout_bridge(folder / "bridge")
        subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)
        subprocess.run(["chown", "-R", USER, str(bridge)], check=True)
        yield There(lab, folder, bridge, lab.python(MINOR), wheels, uv)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cpu_seconds() -> float:
    """CPU seconds of all programs that have ended: others on the machine hardly disturb them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def disk_bytes(folder: Path) -> int:
    """What a folder takes, each file counted once."""
    out = subprocess.run(["du", "-s", "--block-size=1", str(folder)], stdout=subprocess.PIPE, check=True).stdout
    return int(out.split()[0])


def succeed(done: Done) -> None:
    assert done.returncode == 0, done.stdout.decode()[-3000:]


def measured(place: There) -> str:
    """Measure a first and a second environment, and what each adds to the disk, in turns; medians."""
    without = functools.partial(place.theirs, code=())
    sides: dict[str, Make] = {"clusterfn": place.ours, "uv": place.theirs, "uv without byte code": without}
    wall: dict[tuple[str, str], tuple[float, ...]] = {}
    cpu: dict[tuple[str, str], tuple[float, ...]] = {}
    disk: dict[tuple[str, str], int] = {}

    def take(what: str, side: str, work: Callable[[], Done]) -> None:
        before = cpu_seconds()
        wall[what, side] = (*wall.get((what, side), ()), seconds(lambda: succeed(work())))
        cpu[what, side] = (*cpu.get((what, side), ()), cpu_seconds() - before)

    for _ in range(ROUNDS):
        for side, make in sides.items():
            root, before = place.root(side), 0
            use_free_memory()
            for what, name in (("a first environment", "first001"), ("a second one, same packages", "second02")):
                take(what, side, lambda: make(root, name))  # noqa: B023
                disk[what, side], before = disk_bytes(root) - before, disk_bytes(root)
            python = root / "envs/second02/bin/python"
            take("its first import of pandas", side, lambda: place.run(python, "-I", "-c", "import pandas"))  # noqa: B023
            shutil.rmtree(root)
    rows = []
    for what in dict.fromkeys(what for what, _ in wall):
        cells = [what]
        for side in sides:
            used, ours, whole = Series(cpu[what, side]), Series(cpu[what, "clusterfn"]), Series(wall[what, side])
            size = f", {disk[what, side] / 1e6:.1f} MB" if (what, side) in disk else ""
            cells.append(f"{used.median:.2f} s ({used.over(ours):.2f} ×), {whole.median:.2f} s{size}")
        rows.append(cells)
    size = sum(each.stat().st_size for each in place.wheels) / 1e6
    said = f"{len(place.wheels)} wheels, {size:.0f} MB; uv itself has {place.uv.stat().st_size / 1e6:.0f} MB."
    said += " Each cell: CPU seconds with the ratio to clusterfn, seconds, and what was added to the disk."
    return f"{said}\n\n{aligned(['what', *sides], rows)}"


def ending(done: Done, lines: int = 3) -> str:
    """Say how a program ended, in a cell of a table."""
    last = [line.strip() for line in done.stdout.decode(errors="replace").splitlines() if line.strip()][-lines:]
    with contextlib.suppress(ValueError, IndexError):
        told = json.loads(last[-1])
        last = [f"{told.get('at', told['stage'])}: {told['message']}"] if "message" in told else [told.get("stage", "")]
    said = re.sub(r"/\S*/clusterfn-bench-\w+", "...", " / ".join(last))
    return f"{done.returncode} {said}".replace("|", "/")[:300]


@contextlib.contextmanager
def mounted(place: There, options: str) -> Iterator[Path]:
    """Mount a file system of the user's."""
    folder = place.root("mounted")
    own = f"{options},uid={pwd.getpwnam(USER).pw_uid},mode=755"
    subprocess.run(["mount", "-t", "tmpfs", "-o", own, "none", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def tried(place: There) -> str:
    """Try what is unusual on a host, with few wheels; a table of how both end."""
    place = replace(place, wheels=[each for each in place.wheels if each.name.startswith(FEW)])
    tries = (noexec, small, hashes, killed, apart, purged, renamed, at_once)
    rows = []
    for each in tries:
        for row in each(place):
            print(*row, sep=" | ", flush=True)
            rows.append(row)
    return aligned(["what", "clusterfn", "uv"], rows)


def noexec(place: There) -> Iterator[list[str]]:
    """Nothing in the root can be executed."""
    with mounted(place, "noexec") as root:
        uv = Path(shutil.copy(place.uv, root / "uv"))
        ours = ending(place.ours(root, "noexec03"))
        own, elsewhere = place.theirs(root, "noexec01", uv=uv), place.theirs(root, "noexec02")
        yield ["root without exec", ours, f"{ending(own)}; with uv elsewhere {ending(elsewhere)}"]


def small(place: There) -> Iterator[list[str]]:
    """The disk has too few bytes or files."""
    for options in ("size=50m", "nr_inodes=400"):
        cells = []
        for make in (place.ours, place.theirs):
            with mounted(place, options) as root:
                cells.append(f"{ending(make(root, 'small001'))}; leaves {remains(root)}")
        yield [f"a disk of {options}", *cells]


def hashes(place: There) -> Iterator[list[str]]:
    """The wheels have other hashes than demanded."""
    root = place.root("hashes")
    fresh = ending(place.theirs(root, "hashes01", before=b"x"))
    succeed(place.theirs(root, "hashes02"))
    cached = ending(place.theirs(root, "hashes03", before=b"x"))
    yield ["another hash", "rejected: tests/builder/test_fetch.py", f"{fresh}; with the wheel in its cache {cached}"]


def apart(place: There) -> Iterator[list[str]]:
    """There are no hard links from the cache to the environment."""
    with mounted(place, "size=2g") as other:
        ours, theirs = place.root("apart-1"), place.root("apart-2")
        (ours / "pkgs").symlink_to(owned(other / "pkgs"))
        first, second = place.ours(ours, "apart001"), place.theirs(theirs, "apart002", cache=other / "cache")
        size = [f"{disk_bytes(root / 'envs') / 1e6:.0f} MB" for root in (ours, theirs)]
        yield ["no hard links from the cache", f"{ending(first)}, {size[0]}", f"{ending(second)}, {size[1]}"]


def remains(root: Path) -> str:
    """Say what a failed build has left in the folder of environments, and how much in all."""
    names = [path.name for path in root.glob("envs/*")]
    return f"{', '.join(names) or 'no environment'}, {disk_bytes(root) / 1e6:.0f} MB"


def killed(place: There) -> Iterator[list[str]]:
    """Kill a build on its way; what seems to be there then, and whether the next build completes it."""
    cells = []
    for make in (place.ours, place.theirs):
        found, whole_s = [], seconds(lambda: succeed(make(place.root(f"whole-{make.__name__}"), "whole001")))  # noqa: B023
        for share in (0.1, 0.2, 0.6):
            root = place.root(f"killed-{make.__name__}-{share}")
            make(root, "killed01", limit_s=share * whole_s)
            python, ready = root / "envs/killed01/bin/python", root / "envs/killed01/READY"
            there = python.exists() and (make == place.theirs or ready.exists())
            works = there and place.run(python, "-I", "-c", IMPORT).returncode == 0
            seems = ("imports" if works else "is there and broken") if there else "absent"
            again = make(root, "killed01")
            whole = again.returncode == 0 and place.run(python, "-I", "-c", IMPORT).returncode == 0
            found.append(f"{seems}, then {'whole' if whole else ending(again)}")
        cells.append("; ".join(found))
    yield ["killed at 10, 20 and 60 %, then again", *cells]


def purged(place: There) -> Iterator[list[str]]:
    """Remove a file, ask for the same environment again, and say whether the file is back."""
    cells = []
    for make in (place.ours, place.theirs):
        root = place.root(f"purged-{make.__name__}")
        succeed(make(root, "purged01"))
        (lost,) = (root / "envs/purged01").glob("lib/python*/site-packages/tqdm/std.py")
        lost.unlink()
        again = make(root, "purged01") if make == place.theirs else place.builder("repair", root, "purged01")
        cells.append(f"{again.returncode}, {'back' if lost.exists() else 'still lost'}")
    yield ["a file is lost, and the same is asked for again", *cells]


def renamed(place: There) -> Iterator[list[str]]:
    """Rename an environment of uv's, as one is that was made aside, and start one of its programs."""
    found = []
    for words in ((), ("--relocatable",)):
        root = place.root(f"renamed{'-'.join(words)}")
        succeed(place.theirs(root, "aside001", venv=words))
        (root / "envs/aside001").rename(root / "envs/final001")
        script = root / "envs/final001/bin/f2py"
        found.append(f"{' '.join(words) or 'as it is'}: {ending(place.run(script, '-v'), 1)[:100]}")
    yield ["renamed when it is complete", "is made under its final name, and renamed", "; ".join(found)]


def at_once(place: There) -> Iterator[list[str]]:
    """Start two builds of one environment at once."""
    cells = []
    for make in (place.ours, place.theirs):
        root = place.root(f"both-{make.__name__}")
        with ThreadPoolExecutor(2) as pool:
            done = pool.map(lambda _: make(root, "both0001"), range(2))  # noqa: B023
            cells.append("; ".join(ending(each) for each in done))
    yield ["two at once", *cells]


def main() -> None:
    began = time.monotonic()
    with there() as place:
        text = measured(place)
        print(text, flush=True)
        text = f"{text}\n\n{tried(place)}\n"
    print(f"{text}\n{time.monotonic() - began:.0f} s; {keep('host-uv-', 'uv on the host', text)}")


if __name__ == "__main__":
    main()
