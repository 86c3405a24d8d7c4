"""pip's settings and conda's .condarc, as the solver needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clusterfn.environment import conda_solver, package_sources
from clusterfn.environment.package_sources import PYPI, PipConfig, pip_config


@pytest.fixture
def pip_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without settings of pip."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "xdg"))
    return tmp_path


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        ("", {}, PipConfig((PYPI,))),
        ("[global]\nindex-url = https://m.example/simple/", {}, PipConfig(("https://m.example/simple",))),
        ("[global]\nextra_index_url =\n  https://a.example\n  https://b.example", {},
         PipConfig((PYPI, "https://a.example", "https://b.example"))),
        ("[install]\nindex-url = https://i.example\n[global]\nindex-url = https://m.example",
         {"PIP_INDEX_URL": "https://env.example"}, PipConfig(("https://env.example",))),
        ("[install]\nindex-url = https://i.example\n[global]\nindex-url = https://m.example", {"PIP_INDEX_URL": ""},
         PipConfig(("https://i.example",))),
        ("[global]\nno-index = false", {}, PipConfig((PYPI,))),
        ("[global]\nno-index = true\nfind-links = /wheels /more", {}, PipConfig((), ("/wheels", "/more"))),
        ("[global]\ncert = /ca.pem\n[list]\nformat = json", {},
         PipConfig((PYPI,), (), (("REQUESTS_CA_BUNDLE", "/ca.pem"),))),
        ("[global", {}, PipConfig((PYPI,))),
    ],
)  # fmt: skip
def test_pips_settings_mean(
    pip_files: Path, monkeypatch: pytest.MonkeyPatch, text: str, variables: dict[str, str], expected: PipConfig
):
    (pip_files / "config" / "pip").mkdir(parents=True)
    (pip_files / "config" / "pip" / "pip.conf").write_text(text)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    found = pip_config()  # /etc/pip.conf of this machine counts, too

    assert (found.indexes, found.find_links) == (expected.indexes, expected.find_links)
    assert set(expected.variables) <= set(found.variables)


@pytest.mark.parametrize("named", [False, True])
def test_pip_itself_reads_the_same_files_in_the_same_order(
    pip_files: Path, monkeypatch: pytest.MonkeyPatch, named: bool
):
    keys = ("index-url", "extra-index-url", "find-links", "cert")
    places = ("xdg/pip/pip.conf", ".pip/pip.conf", "config/pip/pip.conf", "named.conf")
    for number, place in enumerate(places):
        (pip_files / place).parent.mkdir(parents=True, exist_ok=True)
        (pip_files / place).write_text("[global]\n" + "".join(f"{key} = /{number}-{key}\n" for key in keys[number:]))
    if named:
        monkeypatch.setenv("PIP_CONFIG_FILE", str(pip_files / "named.conf"))

    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    values = dict(line.removeprefix("global.").split("=", 1) for line in listed.stdout.splitlines())
    found = pip_config()

    ours = [*found.indexes, *found.find_links, *(value for _, value in found.variables)]
    assert ours == [values[key].strip("'") for key in keys]


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
    assert package_sources.channel_urls(name, RC) == urls


def test_without_condarc_channels_are_where_everybody_has_them():
    assert package_sources.channel_urls("conda-forge", {}) == ["https://conda.anaconda.org/conda-forge"]
    assert package_sources.channel_urls("defaults", {}) == [
        "https://repo.anaconda.com/pkgs/main",
        "https://repo.anaconda.com/pkgs/r",
    ]


def test_later_files_count_and_unreadable_ones_do_not(tmp_path: Path):
    first, broken, last = (tmp_path / name for name in ("first", "broken", "last"))
    first.write_text("channels: [a]\nchannel_alias: https://a.example\n")
    broken.write_text("channels: [")
    last.write_text("channels: [b, nodefaults]\nproxy_servers: {https: 'http://p.example:3128'}\n")

    found = package_sources.read_condarc([first, broken, tmp_path / "missing", last])

    assert package_sources.channels(found) == ("b",)
    assert found["channel_alias"] == "https://a.example"
    assert package_sources.conda_proxies(found) == {"HTTPS_PROXY": "http://p.example:3128"}


@pytest.mark.parametrize(
    ("given", "public"),
    [
        ("https://ada:secret@x.org/t/tk-1/c/linux-64/y-1-0.conda", "https://x.org/c/linux-64/y-1-0.conda"),
        ("https://x.org/t/tk-1/t/linux-64/y-1-0.conda", "https://x.org/t/linux-64/y-1-0.conda"),  # a channel "t"
        ("https://x.org/of/t/linux-64/y-1-0.conda", "https://x.org/of/t/linux-64/y-1-0.conda"),
        ("file:///srv/t/linux-64/y-1-0.conda", "file:///srv/t/linux-64/y-1-0.conda"),
        ("conda-forge", "conda-forge"),
    ],
)
def test_an_address_in_a_lock_has_neither_password_nor_token(given: str, public: str):
    assert conda_solver.public(given) == public


def test_of_credentials_for_one_server_the_nearest_count_and_of_these_the_first(pip_files: Path):
    known = [("", f"https://{user}@e.example/{path}") for user, path in (("a", "x"), ("b", "x/y"), ("c", "x/y"))]

    assert package_sources.with_credentials("https://e.example/x/y/z.whl", known) == "https://b@e.example/x/y/z.whl"
    assert package_sources.with_credentials("http://e.example/x/y/z.whl", known) == "", "never without TLS"
