"""Archives come from where they can be had, whole, once, and no other than the lock's."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.builder import toys
from tests.builder.host import Host


@dataclass
class Server:
    """A server of one folder that may fail on purpose.

    Attributes:
        asked: Path and Range of each request.
        failures: How the next requests end: an HTTP status, or so many bytes and a closed connection.
    """

    folder: Path
    port: int = 0
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    failures: list[tuple[str, int]] = field(default_factory=list)
    resumes: bool = True

    def url(self, package: dict) -> str:
        return f"http://127.0.0.1:{self.port}/t/secret/linux-64/{package['file']}"


@pytest.fixture
def server(shelf: Path) -> Iterator[Server]:
    found = Server(shelf)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            found.asked.append((self.path, wanted))
            kind, number = found.failures.pop(0) if found.failures else ("", 0)
            if kind == "status":
                self.send_error(number)
                return
            data = next(found.folder.rglob(self.path.rpartition("/")[2])).read_bytes()
            start = int(wanted[len("bytes=") : -1]) if wanted and found.resumes else 0
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(data) - start))
            self.end_headers()
            self.wfile.write(data[start:] if kind != "cut" else data[start : start + number])

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        found.port = listening.server_address[1]
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        listening.shutdown()
        thread.join()


def served(server: Server, package: dict) -> dict:
    return {**package, "url": server.url(package)}


def test_the_host_fetches(host: Host, shelf: Path, python: dict, server: Server):
    plan = host.plan([served(server, python), served(server, toys.module(shelf, "mine"))], verify=["mine"])

    answer = host.build(plan)

    assert answer.last["ok"], answer
    assert len(server.asked) == 2
    assert answer.last["ready"]["fetched"] == sum(each["size"] for each in plan["packages"])
    assert list((host.root / "blobs").iterdir()) == []
    assert "fetch" in [line["stage"] for line in answer.lines]


@pytest.mark.parametrize("resumes", [True, False])
def test_what_broke_off_goes_on_where_it_was(host: Host, python: dict, server: Server, resumes: bool):
    server.failures, server.resumes = [("cut", 100), ("status", 503), ("cut", 50)], resumes

    answer = host.build(host.plan([served(server, python)]))

    assert answer.rc == 0, answer
    second = "bytes=150-" if resumes else "bytes=50-"
    assert [wanted for _, wanted in server.asked] == [None, "bytes=100-", "bytes=100-", second]


def test_what_an_earlier_builder_fetched_in_part_is_used(host: Host, python: dict, server: Server):
    whole = next(server.folder.rglob(python["file"])).read_bytes()
    (host.root / "blobs").mkdir(parents=True)
    (host.root / "blobs" / f"{python['sha256']}.part").write_bytes(whole[:77])

    assert host.build(host.plan([served(server, python)])).rc == 0
    assert [wanted for _, wanted in server.asked] == ["bytes=77-"]


def test_a_part_of_another_file_is_fetched_again(host: Host, python: dict, server: Server):
    (host.root / "blobs").mkdir(parents=True)
    (host.root / "blobs" / f"{python['sha256']}.part").write_bytes(b"another")

    assert host.build(host.plan([served(server, python)])).rc == 0
    assert [wanted for _, wanted in server.asked] == ["bytes=7-", None]


def test_what_is_not_there_is_reported_without_the_token(host: Host, python: dict, server: Server):
    server.failures = [("status", 404)]

    last = host.build(host.plan([served(server, python)])).last

    assert last["at"] == "fetch" and last["need"] == [python["sha256"]]
    assert "HTTP 404" in last["message"] and "/t/***/" in last["message"] and "secret" not in str(last)
    assert len(server.asked) == 1


def test_a_damaged_byte_is_found_and_the_next_call_works(host: Host, python: dict, server: Server):
    path = next(server.folder.rglob(python["file"]))
    whole = path.read_bytes()
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    plan = host.plan([served(server, python)])

    last = host.build(plan).last

    assert last["at"] == "fetch" and last["message"].startswith(f"python {python['version']} is damaged")
    assert f"the lock wants {python['sha256']}" in last["message"] and "has SHA-256 " in last["message"]
    assert list((host.root / "blobs").iterdir()) == [] and host.leftovers() == []
    path.write_bytes(whole)
    assert host.build(plan).rc == 0


def test_what_the_client_sent_is_used_and_removed(host: Host, shelf: Path, python: dict):
    packages = [python, toys.module(shelf, "mine")]
    (host.root / "blobs").mkdir(parents=True)
    for each in packages:
        (host.root / "blobs" / each["sha256"]).write_bytes(next(shelf.rglob(each["file"])).read_bytes())
    plan = host.plan([{**each, "url": "https://nowhere.invalid/x"} for each in packages], fetch=False)

    assert host.build(plan).rc == 0
    assert list((host.root / "blobs").iterdir()) == []


def test_a_damaged_archive_that_was_sent_is_removed_so_that_it_can_be_sent_again(host: Host, python: dict):
    (host.root / "blobs").mkdir(parents=True)
    (host.root / "blobs" / python["sha256"]).write_bytes(b"damaged")
    plan = host.plan([{**python, "url": ""}], fetch=False)

    assert "is damaged" in host.build(plan).last["message"]
    last = host.build(plan).last

    assert last["need"] == [python["sha256"]] and "1 archives are missing on the host: python" in last["message"]


def test_a_second_environment_fetches_nothing_and_takes_no_room(host: Host, shelf: Path, python: dict, server: Server):
    first = host.plan([served(server, python), served(server, toys.module(shelf, "one"))])
    host.build(first)
    asked = len(server.asked)
    second = host.plan([*first["packages"], served(server, toys.module(shelf, "two"))], verify=["one", "two"])

    assert host.build(second).last["ok"]

    assert len(server.asked) == asked + 1
    path = f"{toys.SITE}/one/__pycache__/__init__.cpython-{toys.MINOR.replace('.', '')}.pyc"
    assert (host.prefix(first) / path).samefile(host.prefix(second) / path)


def test_a_disk_that_fills_during_a_download_is_not_taken_for_the_network(host: Host, python: dict, server: Server):
    (host.root / "blobs").mkdir(parents=True)
    (host.root / "blobs" / f"{python['sha256']}.part").symlink_to("/dev/full")

    last = host.build(host.plan([served(server, python)])).last

    assert last["at"] == "disk" and "No space left on device" in last["message"]
    assert len(server.asked) == 1
