"""What a session rejects before it connects to a host."""

from __future__ import annotations

from typing import Any

import pytest

from clusterfn import ConfigError, Session


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": 0}, "workers=0 is not a number of workers"),
        ({"workers": True}, "workers=True is not a number of workers"),
        ({"workers": 2, "gpus": 3}, "workers=2 cannot share gpus=3 equally"),
        ({"workers": 4, "cores": 3}, "workers=4 cannot share cores=3"),
    ],
)
def test_workers_that_cannot_share_what_the_session_has_are_rejected(options: dict[str, Any], says: str):
    with pytest.raises(ConfigError) as rejected:
        Session("tensor01", **options)

    assert says in str(rejected.value)
    assert "next:" in str(rejected.value)
