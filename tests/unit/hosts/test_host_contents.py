"""What is sent once to a host: not again while it is on its way, nor lost when one who wants it gives up."""

from __future__ import annotations

from typing import Any

import pytest

from clusterfn.errors import HostError
from clusterfn.hosts.bridge_bundle import HostContents
from clusterfn.hosts.rpc.reply import Reply


class Uploads:
    def __init__(self) -> None:
        self.sent: list[Reply[bool]] = []
        self.cancelled = 0

    def __call__(self) -> Reply[bool]:
        self.sent.append(Reply(self.cancel))
        return self.sent[-1]

    def cancel(self) -> None:
        self.cancelled += 1
        self.sent[-1].reject(HostError("cancelled"))


def asked(contents: HostContents, upload: Any, times: int = 1) -> list[list[Reply[bool]]]:
    return [contents.send("/root/bridge/1", upload) for _ in range(times)]


def test_what_is_on_its_way_is_not_sent_again_and_all_wait_for_it() -> None:
    contents, upload = HostContents(), Uploads()

    waits = asked(contents, upload, 300)

    assert len(upload.sent) == 1
    assert waits == [[upload.sent[0]]] * 300
    assert contents.unknown(["/root/bridge/1", "/root/x"]) == ["/root/x"]
    upload.sent[0].resolve(True)
    assert asked(contents, upload) == [[]] and "/root/bridge/1" in contents


def test_what_has_failed_is_sent_again() -> None:
    contents, upload = HostContents(), Uploads()
    asked(contents, upload)
    upload.sent[0].reject(HostError("no space left"))

    assert asked(contents, upload) == [[upload.sent[1]]]
    assert "/root/bridge/1" not in contents


def test_a_job_that_is_dropped_stops_only_what_no_other_job_waits_for() -> None:
    contents, upload = HostContents(), Uploads()
    (first,), (second,), (third,) = asked(contents, upload, 3)

    first.cancel()
    second.cancel()
    assert upload.cancelled == 0
    third.cancel()

    assert upload.cancelled == 1
    assert asked(contents, upload) == [[upload.sent[1]]]


def test_a_request_that_all_have_cancelled_is_shared_with_no_other_and_cancelled_once() -> None:
    cancelled: list[str] = []
    request: Reply[bool] = Reply(lambda: cancelled.append("once"))

    request.cancel()

    assert [request.share(), request.share()] == [False, False]
    request.cancel()
    assert cancelled == ["once"]


def test_what_is_gone_is_sent_again_once_it_is_forgotten() -> None:
    contents, upload = HostContents(), Uploads()
    contents.add(["/root/bridge/1", "/root/blobs/2"])

    contents.distrust(["/root/bridge/1"])

    assert asked(contents, upload) == [[upload.sent[0]]]
    assert "/root/blobs/2" in contents


def test_after_an_hour_the_host_is_asked_again_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("clusterfn.hosts.bridge_bundle.time.time", lambda: now[0])
    contents = HostContents()
    contents.add(["/root/bridge/1"])
    now[0] += 3599
    assert "/root/bridge/1" in contents

    now[0] += 2

    assert contents.unknown(["/root/bridge/1"]) == ["/root/bridge/1"]
