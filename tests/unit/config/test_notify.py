"""Who is told of the end of a job: the same words in a call and in clusterfn.yml, and no secret in either."""

from __future__ import annotations

import pytest

from clusterfn import ConfigError, cluster
from tests.programs import main

SECRET = "https://hooks.example.com/T0/B0/abc"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ada@example.edu", {"mail": "ada@example.edu"}),
        ("$SLACK_WEBHOOK", {"webhook": "SLACK_WEBHOOK"}),
        ({"command": "touch x", "after": "10min"}, {"command": "touch x", "after_s": 600.0}),
        ({"mail": "a.b+c@x.org", "webhook": "$W"}, {"mail": "a.b+c@x.org", "webhook": "W"}),
        ({}, {}),
    ],
)
def test_what_a_call_says(written, meant):
    notify = cluster(notify=written)(abs).options.notify
    assert {name: value for name, value in notify._asdict().items() if value} == meant


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (SECRET, "a webhook is given by a variable"),
        ({"webhook": SECRET}, "a webhook is given by a variable"),
        ({"webhook": "SLACK"}, "a webhook is given by a variable"),
        ("ada", "is not a mail address"),
        ("-oQ/tmp@x", "is not a mail address"),
        ("a@x\nBcc: b@x", "is not a mail address"),
        ({"slack": "x"}, "has no key 'slack'"),
        ({"command": " "}, "is not a text"),
        ({"mail": "a@x", "after": 10}, "is not a duration"),
        (True, "does not say whom to tell"),
    ],
)
def test_what_it_cannot_say_is_rejected_without_a_word_of_a_secret(written, said):
    with pytest.raises(ConfigError) as caught:
        cluster(notify=written)(abs)
    assert said in str(caught.value) and "T0/B0" not in str(caught.value)


def test_an_address_in_the_file_is_rejected_and_its_line_not_shown(tmp_path, monkeypatch, capsys):
    (tmp_path / "clusterfn.yml").write_text(
        f"hosts:\n  box:\n    scheduler: bare\n    notify: {{webhook: '{SECRET}'}}\n"
    )
    monkeypatch.setenv("CLUSTERFN_CONFIG", str(tmp_path / "clusterfn.yml"))
    assert main(["hosts"]) == 2
    said = capsys.readouterr().err
    assert "clusterfn.yml:4" in said and "T0/B0" not in said
