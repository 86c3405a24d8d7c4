"""What is no request of Jupyter has no type."""

from __future__ import annotations

import sys

import pytest

from clusterfn.bridge.kernel.zmtp import request_of

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="runs on hosts alone")


def test_what_is_no_request_has_no_type():
    whole = [b"<IDS|MSG>", b"", b'{"msg_type": "a"}', b"{}", b"{}", b"{}"]

    assert request_of(whole) == ("a", {})
    assert [request_of(whole[:length])[0] for length in range(6)] == [""] * 6
    assert request_of([b"\x01kernel.1"]) == ("", {})
    assert request_of([*whole[:5], b"{"]) == ("", {})
