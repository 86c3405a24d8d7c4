"""Which versions clusterfn locks for a file, beside those that `uv pip compile` without restrictions gives."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

from benchmarks.files.collect import CACHE
from benchmarks.files.others import PYTHON
from benchmarks.files.read import BOTH, DIFFERS, HOST, RIGHTLY, SAME, TRACEBACK, WRONGLY
from clusterfn.environment import environment_files, source_distributions, uv, wheels
from clusterfn.environment.project import normalize
from clusterfn.errors import ClusterfnError

PATIENCE_S = 90
TOO_LONG = "uv itself takes too long"
MORE = "locked with an older setuptools, without which uv cannot"


@dataclass
class Solved:
    """What came of a file: the versions, or why there are none."""

    word: str
    why: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    ours_s: float = 0.0
    theirs_s: float = 0.0


def compare(path: Path) -> Solved:
    """Solve a file by uv alone, then by clusterfn."""
    kept = CACHE / "plain" / f"{hashlib.sha256(str(path).encode() + path.read_bytes()).hexdigest()[:16]}.json"
    if not kept.exists():
        began = time.monotonic()
        try:
            answer: Any = plain(path)
        except subprocess.TimeoutExpired:
            answer = None
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([answer, time.monotonic() - began]))
    theirs, theirs_s = json.loads(kept.read_text())
    if theirs is None:
        return Solved(TOO_LONG)
    began = time.monotonic()
    told: list[str] = []
    try:
        spec = environment_files.read_file(path)
        assert spec.project is not None
        found = wheels.WheelFinder(spec, spec.project, HOST, told.append).find(PYTHON)
        ours: Any = {each.name: each.version for each in found}
    except ClusterfnError as error:
        ours = error
    except Exception as error:  # what a user would see as a traceback
        return Solved(TRACEBACK, f"{type(error).__name__}: {error}")
    seconds = {"ours_s": round(time.monotonic() - began, 2), "theirs_s": round(theirs_s, 2)}
    if isinstance(ours, dict) and isinstance(theirs, dict):
        theirs = {name: version or ours.get(name, "") for name, version in theirs.items()}
        differing = [f"{name}: {ours.get(name)} by clusterfn, {theirs.get(name)} by uv"
                     for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]  # fmt: skip
        return Solved(DIFFERS if differing else SAME, "; ".join(differing[:12]), ours, **seconds)
    if isinstance(ours, dict) and source_distributions.PKG_RESOURCES in theirs:
        return Solved(MORE, f"uv alone: {theirs[-300:]}", ours, **seconds)
    if isinstance(ours, dict):
        return Solved(DIFFERS, f"uv alone rejects it: {theirs[-300:]}", ours, **seconds)
    said = f"{ours.message} | {' | '.join(map(str, ours.evidence))} | next: {ours.hint}"
    if isinstance(theirs, str):
        return Solved(BOTH, said, **seconds)
    named = source_distributions.way_to_a_wheel(said) or "no wheel" in said
    return Solved(RIGHTLY if named and ours.hint else WRONGLY, said, **seconds)


def plain(path: Path) -> dict[str, str] | str:
    """Return the versions that uv gives for a file, or what it says; the version of an address is ""."""
    variables = {name: value for name, value in uv.plain_variables().items() if name not in uv.OF_CHOICE}
    of_pip = path.name != "pyproject.toml" and "index-url" in path.read_text(errors="replace")
    with tempfile.TemporaryDirectory(prefix="files-") as folder:
        made = Path(folder) / "pylock.toml"
        argv = [
            str(Path(sys.executable).with_name("uv")), "pip", "compile", path.name, "--format", "pylock.toml",
            "--no-header", "--quiet", "--python-platform", uv.platform_of(HOST), "--python-version", PYTHON,
            "--python", sys.executable, "-o", str(made),
        ]  # fmt: skip
        argv += ["--no-config", "--index-strategy", "unsafe-best-match"] if of_pip else []
        ran = subprocess.run(argv, cwd=path.parent, env=variables, capture_output=True, text=True, timeout=PATIENCE_S)
        if ran.returncode:
            return " ".join(ran.stderr.split())
        tree = tomllib.loads(made.read_text())
    return {normalize(each["name"]): str(each.get("version", "")) for each in tree.get("packages", [])
            if "directory" not in each}  # fmt: skip
