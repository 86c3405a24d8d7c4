"""Who is told when a job ends: what `notify=` of a call and `notify:` of a host may say.

The address of a webhook lets everybody write there. So it is never written down: `$NAME` names the variable with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from clusterfn.config.units import VARIABLE, parse_time
from clusterfn.errors import ConfigError, did_you_mean

KEYS = ("mail", "webhook", "command", "after")
# No address may begin with a hyphen, because the host's mail program would take it for an option.
_MAIL = re.compile(r"[\w.+][\w.+-]*@[\w][\w.-]*")
_USUAL = '"ada@example.edu", "$SLACK_WEBHOOK", or a dict with mail, webhook, command and after'


class Notify(NamedTuple):
    """Who is told.

    Attributes:
        mail: An address, which the host's own mail program writes to.
        webhook: The name of a variable of this process that holds the address to which JSON is posted.
        command: A line of shell for the host.
        after_s: Only if the job ended at least so long after it was sent.
    """

    mail: str = ""
    webhook: str = ""
    command: str = ""
    after_s: float = 0.0


def parse_notify(value: Any, name: str) -> Notify:
    """Return what `notify=` says; with an empty dict, no notice is sent.

    Raises:
        ConfigError: It says something else.

    Example:
        >>> parse_notify("$SLACK_WEBHOOK", "notify").webhook
        'SLACK_WEBHOOK'
        >>> parse_notify({"mail": "ada@example.edu", "after": "10min"}, "notify").after_s
        600.0
    """
    if isinstance(value, Notify):
        return value
    if isinstance(value, str):
        # An address on the web counts as a webhook, so that the error below explains how to pass it safely.
        value = {"webhook" if value.startswith(("$", "http")) else "mail": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name}={value!r:.60} does not say whom to tell", hint=f"write {_USUAL}")
    for key, each in value.items():
        if key not in KEYS:
            near = did_you_mean(key, KEYS) if isinstance(key, str) else ""
            raise ConfigError(f"{name}= has no key {key!r}{near}", hint=f"the keys are {', '.join(KEYS)}")
        if key != "after" and (not isinstance(each, str) or not each.strip() or "\0" in each):
            raise ConfigError(f"{name}[{key!r}] is not a text", hint=f"write {_USUAL}")
    if "mail" in value and not _MAIL.fullmatch(value["mail"]):
        raise ConfigError(f"{name}: {value['mail']!r:.80} is not a mail address", hint=f"write {_USUAL}")
    after_s = parse_time(value["after"], f"{name} after") if "after" in value else 0.0
    webhook = _variable(value["webhook"], name) if "webhook" in value else ""
    return Notify(value.get("mail", ""), webhook, value.get("command", ""), after_s)


def _variable(text: str, name: str) -> str:
    """Return the name of the variable; the text, which may be the secret address itself, is not shown."""
    variable = text.removeprefix("$")
    if not text.startswith("$") or not VARIABLE.fullmatch(variable):
        problem = f"{name}: a webhook is given by a variable that holds its address, which is a secret"
        raise ConfigError(problem, hint="export SLACK_WEBHOOK=https://…, and write webhook: $SLACK_WEBHOOK")
    return variable
