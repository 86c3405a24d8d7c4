"""What the host answers when it is asked to conclude a job."""

from __future__ import annotations

import pytest

from clusterfn.calls.liveness import parse_conclusion
from clusterfn.config.spec import Host
from clusterfn.errors import ClusterfnError
from clusterfn.hosts.connection import Completed

HOST = Host("tensor01", "tensor01", "bare", "clusterfn.yml:3")


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Completed(None, 9, b"", b""), "its program printed nothing and ended with signal 9"),
        (Completed(1, None, b"", b""), "its program printed nothing and ended with exit status 1"),
        (Completed(1, None, b"", b"No module named os"), "No module named os"),
    ],
)
def test_an_answer_that_cannot_be_read_is_the_evidence(answer: Completed, says: str) -> None:
    with pytest.raises(ClusterfnError, match="could not conclude the job") as rejected:
        parse_conclusion(answer, HOST, "/root/jobs/7f3a")

    assert list(rejected.value.evidence) == [says]
