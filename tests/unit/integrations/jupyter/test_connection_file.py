"""What a client may ask of a kernel: loopback ports and a key, and nothing by which others could reach it."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from clusterfn.errors import ConfigError
from clusterfn.integrations.jupyter.jupyter_files import listen, read_connection_file

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
FACTS = {"transport": "tcp", "ip": "127.0.0.1", "key": "k", **{f"{name}_port": 0 for name in CHANNELS}}


def written(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({**FACTS, **changes}))
    return path


def test_the_ports_are_listened_on_in_the_order_of_the_channels(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        taken = probe.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {taken} of 127.0.0.1"):
            listen(read_connection_file(written(tmp_path / "file", stdin_port=taken)))
    wanted = read_connection_file(written(tmp_path / "file", stdin_port=taken))

    listeners = list(listen(wanted).values())

    assert [listener.getsockname()[1] == taken for listener in listeners] == [False, False, True, False, False]
    assert {listener.getsockname()[0] for listener in listeners} == {"127.0.0.1"}
    assert (wanted.key, wanted.signature_scheme) == ("k", "hmac-sha256")
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"transport": "ipc"}, "its transport is 'ipc'"),
        ({"ip": "0.0.0.0"}, "not a loopback address"),
        ({"ip": "tensor01"}, "not a loopback address"),
        ({"key": ""}, "it has no key"),
        ({"curve_publickey": "x"}, "CurveZMQ"),
        ({"hb_port": None}, "TypeError"),
    ],
)
def test_what_others_could_reach_is_rejected(changes: dict[str, object], why: str, tmp_path: Path):
    with pytest.raises(ConfigError, match=why):
        read_connection_file(written(tmp_path / "file", **changes))


def test_a_file_that_is_missing_or_no_json_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_connection_file(tmp_path / "missing")
    (tmp_path / "text").write_text("no")
    with pytest.raises(ConfigError, match="text cannot be used: JSONDecodeError"):
        read_connection_file(tmp_path / "text")
