"""The channel's index and archives agree, in its folder and over http."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.request

import pytest

from tests.lab.channel import Channel

pytestmark = pytest.mark.lab


def test_every_archive_has_the_hash_that_the_index_says(channel: Channel):
    wrong = []
    for index in channel.root.glob("*/*/repodata.json"):
        told = json.loads(index.read_text())
        for name, line in {**told["packages"], **told["packages.conda"]}.items():
            found = hashlib.sha256((index.parent / name).read_bytes()).hexdigest()
            wrong += [name] if found != line["sha256"] else []

    assert wrong == []


def test_prefixes_in_texts_and_binaries_are_marked(channel: Channel):
    marks = {}
    for name in ("textprefix", "binprefix"):
        (path,) = channel.archives(f"{name}-*.tar.bz2")
        with tarfile.open(path) as archive:
            paths = json.loads(archive.extractfile("info/paths.json").read())["paths"]
            marks |= {line["_path"]: line.get("file_mode") for line in paths}

    assert marks == {
        "bin/textprefix": "text",
        "share/textprefix/where.txt": "text",
        "share/textprefix/plain.txt": None,
        "share/binprefix/blob.bin": "binary",
    }


def test_over_http_it_is_the_same_and_remembers_what_was_asked(channel: Channel):
    with channel.served() as served, urllib.request.urlopen(f"{served.url}/noarch/repodata.json") as answer:
        told = json.load(io.BytesIO(answer.read()))

    assert told == json.loads((channel.root / "main" / "noarch" / "repodata.json").read_text())
    assert served.asked == ["/main/noarch/repodata.json"]
