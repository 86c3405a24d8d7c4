"""A held connection before a new one, and nobody asked twice: the rule that stands above all transports by SSH.

A stream goes through the connection that `clusterfn login` holds, if there is one. Else the host's own transport opens
it; but where that, or the login that was held, has needed a person, it is not tried again without one: no host sees a
login of which it is known that it cannot succeed.
"""

from __future__ import annotations

from clusterfn.config.spec import Host
from clusterfn.errors import HostError
from clusterfn.hosts.transports import asking, held, holding, logins, master
from clusterfn.hosts.transports.asking import Asker, Question
from clusterfn.hosts.transports.base import Stream, Transport
from clusterfn.hosts.transports.held import Held
from clusterfn.hosts.transports.sshconfig import Settings, resolve


class ReusingTransport:
    """A way to one host through what is held, else by `own`."""

    def __init__(self, host: Host, own: Transport) -> None:
        self.host = host
        self.via = ""
        self._own = own
        self._by_person = False

    def open(self, command: str, asker: Asker | None = None) -> Stream:
        """See `Transport.open`.

        Raises:
            AuthenticationError: Also where a person has logged in before, and nobody can be asked now.
        """
        through = self._through_held(command) if held.any_there() else None
        if through is not None:
            return through
        if self._by_person and asker is None:
            raise asking.needs_you(self.host.name)
        return self._anew(command, asker)

    def _anew(self, command: str, asker: Asker | None) -> Stream:
        def ask(question: Question) -> str:
            assert asker is not None
            self._by_person = True
            return asker(question)

        stream = self._own.open(command, ask if asker is not None else None)
        self.via = self._own.via
        return stream

    def _through_held(self, command: str) -> Stream | None:
        settings = resolve(self.host)
        found = logins.of_host(self.host, settings)
        if found is None:
            return None
        self._by_person = self._by_person or found.asked
        stream = self._session(settings, found, command)
        if stream is not None:
            self.via = f"{'openssh' if found.kind == held.MASTER else 'paramiko'} (clusterfn login)"
        return stream

    def _session(self, settings: Settings, found: Held, command: str) -> Stream | None:
        open_session = master.open_session if found.kind == held.MASTER else holding.open_session
        try:
            stream: Stream | None = open_session(self.host, settings, found, command)
        except HostError:
            if found.asked:
                raise
            return None  # it takes no further session; where no person is needed there can be another connection
        # A process that was stopped still listens, and `logout` must find it; a pid may by now be another program's.
        if stream is None and not (logins.is_alive(found) and held.listens(found)):
            held.forget(found)
        return stream
