"""pip's settings and conda's .condarc, as the solver needs them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from clusterfn.config import places
from clusterfn.environment.solve import condarc
from clusterfn.environment.solver_tools import PYPI, PipConfig, Tool, own_interpreter, parse_pip_config, pip_config


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("", PipConfig((PYPI,))),
        ("global.index-url='https://m.example/simple/'", PipConfig(("https://m.example/simple",))),
        ("global.extra-index-url='\\nhttps://a.example\\nhttps://b.example'",
         PipConfig((PYPI, "https://a.example", "https://b.example"))),
        (":env:.index-url='https://env.example'\nglobal.index-url='https://m.example'\ninstall.index-url='https://i.example'",
         PipConfig(("https://env.example",))),
        ("global.no-index='true'\nglobal.find-links='/wheels /more'", PipConfig((), ("/wheels", "/more"))),
        ("global.cert='/ca.pem'\nlist.format='json'", PipConfig((PYPI,), (), (("REQUESTS_CA_BUNDLE", "/ca.pem"),))),
    ],
)  # fmt: skip
def test_pips_settings_mean(listing: str, expected: PipConfig):
    assert parse_pip_config(listing) == expected


def test_pip_itself_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    path = tmp_path / "pip.conf"
    path.write_text("[global]\nindex-url = https://file.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(path))
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")

    found = pip_config()

    assert found.indexes[0] == "https://file.example/simple"
    assert found.find_links == ("/wheels",)


RC = {
    "channel_alias": "https://mirror.example/",
    "custom_channels": {"secret": "https://inside.example/channels"},
    "custom_multichannels": {"ours": ["secret", "https://x.example/y"]},
    "default_channels": ["https://d.example/main"],
}


@pytest.mark.parametrize(
    ("name", "urls"),
    [
        ("conda-forge", ["https://mirror.example/conda-forge"]),
        ("secret/label/dev", ["https://inside.example/channels/secret/label/dev"]),
        ("ours", ["https://inside.example/channels/secret", "https://x.example/y"]),
        ("defaults", ["https://d.example/main"]),
        ("https://z.example/c", ["https://z.example/c"]),
        ("/srv/channel", ["file:///srv/channel"]),
    ],
)
def test_where_a_channel_is(name: str, urls: list[str]):
    assert condarc.urls(name, RC) == urls


def test_without_condarc_channels_are_where_everybody_has_them():
    assert condarc.urls("conda-forge", {}) == ["https://conda.anaconda.org/conda-forge"]
    assert condarc.urls("defaults", {}) == ["https://repo.anaconda.com/pkgs/main", "https://repo.anaconda.com/pkgs/r"]


def test_later_files_count_and_unreadable_ones_do_not(tmp_path: Path):
    first, broken, last = (tmp_path / name for name in ("first", "broken", "last"))
    first.write_text("channels: [a]\nchannel_alias: https://a.example\n")
    broken.write_text("channels: [")
    last.write_text("channels: [b, nodefaults]\nproxy_servers: {https: 'http://p.example:3128'}\n")

    found = condarc.settings([first, broken, tmp_path / "missing", last])

    assert condarc.channels(found) == ("b",)
    assert found["channel_alias"] == "https://a.example"
    assert condarc.proxies(found) == {"HTTPS_PROXY": "http://p.example:3128"}


@pytest.mark.skipif(os.name == "nt", reason="the Pythons are shell scripts")
def test_a_solver_whose_python_was_removed_or_replaced_is_installed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(places, "cache_folder", lambda: tmp_path / "cache")
    tool, python = Tool("a solver", ("solver",), "1 MB", "pip install solver"), tmp_path / "python"
    for minor in (11, 12):
        base = tmp_path / f"python3.{minor}"
        base.write_text('#!/bin/sh\nmkdir -p "$3/bin" && ln -s /bin/true "$3/bin/python"\n')
        base.chmod(0o755)
    said: list[str] = []
    python.symlink_to("python3.11")
    first = own_interpreter(tool, str(python), said.append)

    first.unlink()
    first.symlink_to("python that was removed")
    assert own_interpreter(tool, str(python), said.append) == first
    assert first.exists() and own_interpreter(tool, str(python), said.append) == first
    assert len(said) == 2

    python.unlink()
    python.symlink_to("python3.12")
    assert own_interpreter(tool, str(python), said.append) != first
