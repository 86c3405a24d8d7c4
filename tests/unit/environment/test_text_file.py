"""The encodings of the files that users write, whichever program wrote them."""

from __future__ import annotations

import codecs

import pytest

from clusterfn import ConfigError
from tests.unit.environment.shelf import Shelf

FILES = {
    "requirements.txt": "# größer\r\nnumpy>=2\r\n",
    "environment.yml": "# größer\r\ndependencies:\r\n- pip:\r\n  - numpy>=2\r\n",
}


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_with_and_without_a_bom(shelf: Shelf, name: str, mark: bytes):
    (shelf.project / name).write_bytes(mark + FILES[name].encode())

    assert [each.text for each in shelf.read(name).pip] == ["numpy>=2"]


@pytest.mark.parametrize(
    "data, line", [(b"numpy\nrich # gr\xf6\xdfer\n", 2), ("numpy\n".encode("utf-16"), 1), (b"PK\3\4\0\0", 1)]
)
@pytest.mark.parametrize("name", [*FILES, "pyproject.toml"])
def test_what_is_not_text_is_refused_with_its_place(shelf: Shelf, name: str, data: bytes, line: int):
    (shelf.project / name).write_bytes(data)

    with pytest.raises(ConfigError, match=f":{line}: the file is not text in UTF-8") as caught:
        shelf.read(name)
    assert caught.value.hint == "save the file as UTF-8"


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(shelf: Shelf):
    (shelf.project / "requirements.txt").mkdir()

    with pytest.raises(ConfigError, match=r"requirements.txt cannot be read: Is a directory"):
        shelf.read("requirements.txt")
