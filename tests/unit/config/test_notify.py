"""What a host runs at the end of a job: the same words in a call and in clusterfn.yml, and an address is no command."""

from __future__ import annotations

import pytest

from clusterfn import ConfigError, cluster
from tests.programs import main

SECRET = "https://hooks.example.com/T0/B0/abc"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("mail -s done ada@example.edu", {"command": "mail -s done ada@example.edu"}),
        ({"command": "touch x", "after": "10min"}, {"command": "touch x", "after_s": 600.0}),
        ({}, {}),
    ],
)
def test_what_a_call_says(written, meant):
    notify = cluster(notify=written)(abs).options.notify
    assert {name: value for name, value in notify._asdict().items() if value} == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (SECRET, "this is an address"),
        ({"command": SECRET}, "this is an address"),
        ("$SLACK_WEBHOOK", "this is an address"),
        ("ada@example.edu", "this is an address"),
        ({"mail": "ada@example.edu"}, "has no key 'mail'"),
        ({"command": " "}, "is not a text"),
        ({"command": "x", "after": 10}, "is not a duration"),
        (True, "is no command"),
    ],
)
def test_what_it_cannot_say_is_rejected_without_a_word_of_a_secret(written, said):
    with pytest.raises(ConfigError) as caught:
        cluster(notify=written)(abs)
    assert said in str(caught.value) and "T0/B0" not in str(caught.value)


def test_an_address_in_the_file_is_rejected_and_its_line_not_shown(tmp_path, monkeypatch, capsys):
    (tmp_path / "clusterfn.yml").write_text(
        f"hosts:\n  box:\n    scheduler: bare\n    notify: {{command: '{SECRET}'}}\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    assert main(["hosts"]) == 2
    said = capsys.readouterr().err
    assert "clusterfn.yml:4" in said and "T0/B0" not in said
