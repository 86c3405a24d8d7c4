"""A user with an ssh configuration who follows the hints about host keys."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from clusterfn.config.spec import Host
from clusterfn.errors import AuthenticationError, HostKeyError
from clusterfn.hosts.transports import host_keys, ssh_config_file, ssh_errors, trust
from clusterfn.hosts.transports.ssh_config import Settings, resolve
from clusterfn.hosts.transports.trust import HostKeys, ShownKey

KIND = "ssh-ed25519"
NEW, OLD = ShownKey(KIND, b"new"), base64.b64encode(b"old").decode()


def settings_of(address: str, config: Path | None = None) -> Settings:
    """What ssh would do for the host lab8 with this address, by the user's configuration or this one."""
    host = Host("lab8", address, "bare", "clusterfn.yml:3", ssh_config=None if config is None else str(config))
    return resolve(host)


def refusal_of_login(settings: Settings, said: list[str], offers: list[str], **more: Any) -> AuthenticationError:
    """What a call says of a login that lab8 has rejected."""
    return ssh_errors.login_refused("lab8", settings, said, offers, **more)


def fits(patterns: str, name: str) -> bool:
    """Whether the first field of a line of known_hosts means the host of this name."""
    return host_keys.matches(patterns, name)


def aliases() -> list[str]:
    """The hosts that the user's configuration names."""
    return ssh_config_file.aliases()


def live_in(patch: pytest.MonkeyPatch, home: Path, system_file: Path | None = None) -> None:
    """Give the user another home, and this machine another configuration of all users."""
    patch.setattr(ssh_config_file, "home", lambda: home)
    if system_file is not None:
        patch.setattr(ssh_config_file, "system_file", lambda: system_file)


class Desk:
    """A user with an ssh configuration of the lines, who does what hints say."""

    def __init__(self, folder: Path, lines: str) -> None:
        self.folder = folder
        self.config = folder / "config"
        self.known = folder / "ssh" / "known_hosts"
        self.write(lines)
        self.host = Host("lab8", "lab8", "bare", "clusterfn.yml:3", ssh_config=str(self.config))

    def write(self, lines: str) -> None:
        lines = lines.replace("KNOWN", str(self.known)).replace("FOLDER", str(self.folder))
        self.config.write_text(f"Host lab8\n{lines}\n")

    @property
    def settings(self) -> Settings:
        return resolve(self.host)

    def refusal(self, kind: str = KIND) -> HostKeyError:
        """What a call says of the key."""
        with pytest.raises(HostKeyError) as caught:
            host_keys.check(self.settings, "lab8", kind, NEW.blob)
        return caught.value

    def trust(self) -> None:
        """`clusterfn trust lab8` with --replace, whose person says yes."""
        settings = self.settings
        known = host_keys.known_keys(settings.key_name, settings.known_hosts)
        trust.write_known_hosts(self.host, HostKeys(settings, (NEW,), tuple(known)), [NEW])

    def is_accepted(self) -> bool:
        host_keys.check(self.settings, "lab8", KIND, NEW.blob)
        return True
