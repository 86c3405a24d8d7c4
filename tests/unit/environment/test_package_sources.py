"""conda's .condarc, as the solver needs it, and credentials for servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.environment import conda_solver, package_sources

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


def test_of_credentials_for_one_server_the_nearest_count_and_of_these_the_first():
    known = [("", f"https://{user}@e.example/{path}") for user, path in (("a", "x"), ("b", "x/y"), ("c", "x/y"))]

    assert package_sources.with_credentials("https://e.example/x/y/z.whl", known) == "https://b@e.example/x/y/z.whl"
    assert package_sources.with_credentials("http://e.example/x/y/z.whl", known) == "", "never without TLS"
