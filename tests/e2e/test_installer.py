"""A host whose own old conda makes its environments, from archives that are sent to it."""

from __future__ import annotations

import secrets
import shutil
import sys
from pathlib import Path

import pytest

from clusterfn import cluster
from tests.e2e.conftest import MINOR, give_to
from tests.lab import conda36

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(MINOR not in ("3.9", "3.10", "3.11", "3.12", "3.13"), reason="the channel has no such Python"),
]


def compute() -> tuple[str, bool]:
    import greeter
    import six

    return sys.prefix, six.PY3 and callable(greeter.main)


compute.__module__ = "__main__"


@pytest.mark.long
def test_a_conda_of_2017_makes_it_and_a_function_runs_there(lab, hosts, channel, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    root = lab.home("bash") / f"conda-{secrets.token_hex(4)}"
    root.mkdir()
    give_to("cfbash", root)
    lines = f"env_root: {root}\nfetch_on: client\ninstaller: {conda36.provide()}"
    path = hosts.describe(lab, tmp_path / "clusterfn.yml", hosts.python, lines, ("tensor01",))
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
    Path("environment.yml").write_text(
        f"channels: [{channel.url}, nodefaults]\ndependencies: [python={MINOR}, six, greeter]\n"
    )
    try:
        prefix, both = cluster(host="tensor01", environment="environment.yml")(compute)()

        assert (Path(prefix).parent, both) == (root / "envs", True)
        assert f"{conda36.CONDA} create" in (Path(prefix) / "conda-meta" / "history").read_text()
        assert "4 are sent" in capsys.readouterr().err
        assert not list((root / "blobs").iterdir()), "what was sent is removed once it is installed"
        assert cluster(host="tensor01", environment="environment.yml")(compute)()[0] == prefix
    finally:
        shutil.rmtree(root, ignore_errors=True)
