"""The encodings of the files that users write, whichever program wrote them."""

from __future__ import annotations

import codecs

import pytest

from clusterfn import ConfigError
from tests.unit.environment.shelf import Shelf

ENCODINGS = [
    ("utf-8", b""), ("utf-8", codecs.BOM_UTF8), ("utf-16-le", codecs.BOM_UTF16_LE), ("utf-16-be", codecs.BOM_UTF16_BE),
]  # fmt: skip
FILES = {
    "requirements.txt": "# größer\r\nnumpy>=2\r\n",
    "environment.yml": "# größer\r\ndependencies:\r\n- pip:\r\n  - numpy>=2\r\n",
}


@pytest.mark.parametrize("encoding, mark", ENCODINGS)
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_by_its_bom(shelf: Shelf, name: str, encoding: str, mark: bytes):
    (shelf.project / name).write_bytes(mark + FILES[name].encode(encoding))

    assert [each.text for each in shelf.read(name).pip] == ["numpy>=2"]


@pytest.mark.parametrize(
    "data, message",
    [
        (b"numpy\nrich # gr\xf6\xdfer\n", ":2:10: this byte is not UTF-8"),
        (codecs.BOM_UTF16_LE + b"n\0u", ":1:2: this byte is not UTF-16"),
        ("numpy\n".encode("utf-32"), ":1: the file is not text, it has a zero byte"),
        ("numpy\n".encode("utf-16-le"), ":1: the file is not text, it has a zero byte"),
        (b"PK\3\4\0\0", ":1: the file is not text, it has a zero byte"),
    ],
)
@pytest.mark.parametrize("name", [*FILES, "pyproject.toml"])
def test_what_is_not_text_is_refused_with_its_place(shelf: Shelf, name: str, data: bytes, message: str):
    (shelf.project / name).write_bytes(data)

    with pytest.raises(ConfigError) as caught:
        shelf.read(name)

    in_toml = f"{name} is in UTF-16, and its format allows UTF-8 alone"
    assert message in caught.value.message or (name == "pyproject.toml" and in_toml in caught.value.message)
    assert caught.value.hint == "save the file as UTF-8"


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(shelf: Shelf):
    (shelf.project / "requirements.txt").mkdir()

    with pytest.raises(ConfigError, match=r"requirements.txt cannot be read: Is a directory"):
        shelf.read("requirements.txt")
