"""Who is told of the end of a job: the same words in a call and in clusterfn.yml, and no secret in either."""

from __future__ import annotations

import pytest

from clusterfn.config import config_file
from clusterfn.config.notify import Notify, parse_notify
from clusterfn.config.options import parse_options
from clusterfn.errors import ConfigError

SECRET = "https://hooks.example.com/T0/B0/abc"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ada@example.edu", Notify(mail="ada@example.edu")),
        ("$SLACK_WEBHOOK", Notify(webhook="SLACK_WEBHOOK")),
        ({"command": "touch x", "after": "10min"}, Notify(command="touch x", after_s=600.0)),
        ({"mail": "a.b+c@x.org", "webhook": "$W"}, Notify("a.b+c@x.org", "W")),
        ({}, Notify()),
    ],
)
def test_what_a_call_says(written, meant):
    assert parse_options({"notify": written}).notify == meant


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
        parse_notify(written, "notify")
    assert said in str(caught.value) and "T0/B0" not in str(caught.value)


@pytest.fixture
def host_with(tmp_path, monkeypatch):
    def host(lines):
        path = tmp_path / "clusterfn.yml"
        path.write_text(f"hosts:\n  box:\n    scheduler: bare\n{lines}")
        monkeypatch.setenv("CLUSTERFN_CONFIG", str(path))
        return config_file.load().hosts["box"]

    return host


def test_a_host_tells_only_of_long_jobs_unless_it_says_after(host_with):
    assert host_with("    notify: $HOOK\n").notify == Notify(webhook="HOOK", after_s=600.0)
    below = "    notify:\n      mail: ada@example.edu\n      after: 1s\n"
    assert host_with(below).notify == Notify(mail="ada@example.edu", after_s=1.0)


def test_an_address_in_the_file_is_rejected_and_its_line_not_shown(host_with):
    with pytest.raises(ConfigError) as caught:
        host_with(f"    notify: {{webhook: '{SECRET}'}}\n")
    assert "clusterfn.yml:4" in str(caught.value) and "T0/B0" not in str(caught.value)
