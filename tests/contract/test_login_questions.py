"""What a person is asked at the first connection of a process: codes, passwords and passphrases."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from clusterfn import AuthenticationError, HostKeyError
from tests.contract.conftest import WAYS, Connect, Counted, Person
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("runtime")]


@pytest.mark.parametrize("way", WAYS)
def test_a_code_is_asked_for_once_and_the_question_says_who_asks(
    totp: Any, person: Person, connect_to: Connect, prompts: Counted, way: str
) -> None:
    there = connect_to(totp(way))

    assert there.run(["echo", "hi"]).result(WAIT_S).out == b"hi\n"
    assert person.asked == ["(cfsecond@127.0.0.1) Verification code: "]
    assert (prompts(), there.via) == (1, way)


@pytest.mark.fault("48")
@pytest.mark.parametrize("way", WAYS)
def test_wrong_codes_end_in_an_error_that_says_what_was_tried(
    totp: Any, prompts: Counted, way: str, open_to: Any
) -> None:
    wrong = Person(lambda: "000000")

    with pytest.raises(AuthenticationError, match="accepts the key of cfsecond, but rejected the rest") as caught:
        open_to(totp(way, "NumberOfPasswordPrompts 2"), "true", wrong)

    question = "(cfsecond@127.0.0.1) Verification code: "
    assert wrong.asked == [question, f"Permission denied, please try again.\n{question}"]
    assert prompts() == 2
    assert any("accepted" in line for line in caught.value.evidence)
    assert "clusterfn login totp-second" in (caught.value.hint or "")


def test_a_person_may_take_longer_than_a_host(
    totp: Any, lab: Any, monkeypatch: pytest.MonkeyPatch, open_to: Any
) -> None:
    taken_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + taken_s[0])
    monkeypatch.setattr("clusterfn.hosts.transports.openssh.time", clock)

    def slowly(question: object) -> str:
        taken_s[0] += 600.0
        return str(lab.totp.code())

    open_to(totp("openssh"), "true", slowly).close()


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_at_the_question_ends_the_login(totp: Any, way: str, open_to: Any) -> None:
    def interrupted(question: object) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_to(totp(way), "true", interrupted)


@pytest.mark.parametrize("way", WAYS)
def test_a_password_alone_is_enough_where_the_host_wants_one(lab: Any, totp: Any, way: str, open_to: Any) -> None:
    with lab.newcomer() as newcomer:
        somebody = Person(lambda: newcomer.password)
        lines = f"Host password\nUser {newcomer.name}\nPubkeyAuthentication no"
        stream = open_to(totp(way, lines, "password"), "echo $USER", somebody)

        assert stream.read(100).decode().strip() == newcomer.name
        stream.close()
    assert len(somebody.asked) == 1
    assert "assword: " in somebody.asked[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_jump_host_may_ask_too(totp: Any, person: Person, connect_to: Connect, prompts: Counted, way: str) -> None:
    there = connect_to(totp(way, "Host py38-bash\nProxyJump totp-second", "py38-bash"))

    assert there.facts.version[:2] == (3, 8)
    assert (len(person.asked), prompts()) == (1, 1)
    assert "(cfsecond@127.0.0.1)" in person.asked[0]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("lines", ["Host totp-second", "Host totp-second\nProxyJump unknown-key\nHost unknown-key"])
def test_an_unknown_host_key_is_never_a_question(
    totp: Any, person: Person, way: str, lines: str, connect_to: Connect
) -> None:
    strange = "\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking ask"

    with pytest.raises(HostKeyError, match="is unknown"):
        connect_to(totp(way, lines + strange))

    assert person.asked == []


@pytest.mark.parametrize("way", WAYS)
def test_the_passphrase_of_a_key_is_asked_for_where_no_other_key_is_taken(
    lab: Any, totp: Any, ssh_folder: Path, way: str, open_to: Any
) -> None:
    key = ssh_folder / "locked"
    shutil.copy(lab.client / "id_ed25519", key)
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", str(key)], check=True, capture_output=True)
    host = totp(way, f"Host py38-bash\nIdentityFile {key}", "py38-bash")
    Path(host.ssh_config).write_text(
        Path(host.ssh_config).read_text().replace(f"IdentityFile {lab.client / 'id_ed25519'}\n", "")
    )
    answers = iter(["wrong", "open sesame"])
    somebody = Person(lambda: next(answers))

    open_to(host, "true", somebody).close()

    assert len(somebody.asked) == 2
    assert all(str(key) in asked for asked in somebody.asked)
