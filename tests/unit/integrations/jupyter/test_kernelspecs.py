"""What a kernelspec says of the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.errors import ConfigError
from clusterfn.integrations.jupyter.jupyter_files import absolute_environment


def test_a_file_is_named_by_its_whole_path_with_its_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)

    assert absolute_environment("pyproject.toml[gpu]") == f"{tmp_path}/pyproject.toml[gpu]"
    assert absolute_environment("conda:torch") == "conda:torch"
    with pytest.raises(ConfigError, match="there is no file"):
        absolute_environment("absent.toml[gpu]")
