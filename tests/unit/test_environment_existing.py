"""Environments that are on a host already, and the steps of CONTRIBUTING.md that add a kind of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import clusterfn

PACKAGE = Path(clusterfn.__file__).parent
STEPS = PACKAGE.parent / "CONTRIBUTING.md"
# What a contributor changes for `environment="project:~/work"`, a folder with a virtual environment in `.venv`.
EDITS = {
    "clusterfn/config/options.py": (
        'ENVIRONMENT_KINDS = ("python", ',
        'ENVIRONMENT_KINDS = ("project", "python", ',
    ),
    "clusterfn/environment/existing.py": (
        '        if kind == "conda":\n',
        '        if kind == "project":\n'
        '            return [posixpath.join(value, ".venv", "bin", "python")]\n'
        '        if kind == "conda":\n',
    ),
}
CALL = """
import json, sys
from clusterfn import cluster

@cluster(host="local", environment=sys.argv[1])
def describe():
    import os, subprocess, sys
    started = subprocess.run(["python", "-c", "import sys; print(sys.prefix)"], stdout=subprocess.PIPE, text=True)
    return sys.prefix, os.environ["PATH"], started.stdout.strip()

print(json.dumps(describe()))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="a local host is Unix")
def test_a_kind_of_environment_is_added_by_the_steps_of_the_guide(tmp_path: Path):
    section = STEPS.read_text(encoding="utf-8").split("## Add an environment kind")[1].split("\n## ")[0]
    assert set(re.findall(r"`(clusterfn/[\w/]+\.py)`", section)) == EDITS.keys()
    shutil.copytree(PACKAGE, tmp_path / "clusterfn", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(PACKAGE.parent / "templates", tmp_path / "templates")
    for name, (before, after) in EDITS.items():
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert text.count(before) == 1, name
        (tmp_path / name).write_text(text.replace(before, after), encoding="utf-8")
    folder = tmp_path / "work" / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    script = tmp_path / "script.py"  # beside the copy, which is imported from there
    script.write_text(CALL, encoding="utf-8")
    named = f"project:{folder.parent}"
    (tmp_path / "clusterfn.yml").write_text(
        f'hosts:\n  local:\n    scheduler: local\n    root: {tmp_path}/root\n    environment: "{named}"\n',
        encoding="utf-8",
    )

    environ = {**os.environ, "CLUSTERFN_CONFIG": str(tmp_path / "clusterfn.yml")}
    done = subprocess.run(
        [sys.executable, script, named], stdout=subprocess.PIPE, text=True, timeout=60, env=environ
    )  # fmt: skip

    prefix, path, started = json.loads(done.stdout)
    assert prefix == started == str(folder)
    assert path.split(os.pathsep)[0] == str(folder / "bin")
