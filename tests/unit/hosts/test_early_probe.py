"""What is asked for together with the connection: the environment that a first call names, and what is held."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import ConfigError, EnvironmentBuildError
from clusterfn.hosts import connection as hosts
from clusterfn.hosts.environment_choice import EnvironmentRequest
from clusterfn.hosts.host_state import HostState
from tests.fakes.transport import FakeTransport, agent

PYTHON = "/opt/py/bin/python3"
FOUND = {"path": PYTHON, "version": list(sys.version_info[:2]), "prefix": "/opt/py", "named": True, "script": False,
    "missing": [],
         "conda": False, "venv": False, "set": {}}  # fmt: skip


class Host8(agent):
    """Answers each `run` as the interpreter would, or that there is none."""

    def __init__(self) -> None:
        super().__init__(self._ran)
        self.there = True

    def _ran(self, request: dict[str, Any], body: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        out = json.dumps(FOUND).encode() if self.there else b""
        rc = 0 if self.there else 127
        yield {"end": True, "ok": True, "rc": rc, "signal": None, "out": len(out), "truncated": False}, out

    @property
    def probes(self) -> int:
        return sum(request["do"] == "run" for request in self.asked)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Host8:
    far = Host8()
    monkeypatch.setattr(hosts, "transport_for", lambda host: FakeTransport(far))
    return far


def state(environment: str | None, name: str) -> HostState:
    return HostState(Host(name, name, "bare", "clusterfn.yml:3")._replace(environment=environment))


@pytest.mark.parametrize("environment", [f"python:{PYTHON}", "venv:~/v", "conda:torch"])
def test_the_environment_is_asked_for_with_the_connection_and_once(there: Host8, environment: str) -> None:
    host = state(environment, f"once-{environment}")
    wanted = EnvironmentRequest()
    sent: list[object] = []

    host.expect(wanted)
    run = host.connection.run
    host.connection.run = lambda *args, **more: sent.append(args) or run(*args, **more)  # type: ignore[method-assign]

    assert host.environments.find(wanted).interpreter.path == PYTHON
    assert (there.probes, sent) == (1, [])
    host.expect(wanted)
    assert host.environments.find(wanted).interpreter.path == PYTHON
    assert there.probes == 1
    host.connection.close()


@pytest.mark.parametrize("wanted", [EnvironmentRequest(packages=("numpy",)), EnvironmentRequest("environment.yml")])
def test_what_is_built_or_must_be_found_is_not_asked_for(there: Host8, wanted: EnvironmentRequest) -> None:
    host = state(None, f"built-{wanted.text}")

    host.expect(wanted)
    host.expect(EnvironmentRequest())

    assert host.connection.facts.root
    assert there.probes == 0
    host.connection.close()


def test_an_environment_that_another_call_names_is_asked_for_itself(there: Host8) -> None:
    host = state("venv:~/v", "another")
    host.expect(EnvironmentRequest())

    host.environments.find(EnvironmentRequest("conda:torch"))

    assert there.probes == 2
    host.connection.close()


def test_an_environment_that_was_missing_is_looked_for_again(there: Host8) -> None:
    host, wanted = state("venv:~/v", "missing"), EnvironmentRequest()
    there.there = False
    host.expect(wanted)
    with pytest.raises(EnvironmentBuildError, match="no interpreter that runs"):
        host.environments.find(wanted)

    there.there = True

    host.expect(wanted)
    assert host.environments.find(wanted).interpreter.path == PYTHON
    host.connection.close()


def test_an_unknown_kind_is_rejected_before_anything_is_sent(there: Host8) -> None:
    with pytest.raises(ConfigError, match="current") as rejected:
        state(None, "unknown").expect(EnvironmentRequest("current"))
    assert "python:/path" in (rejected.value.hint or "")
    assert there.asked == []
