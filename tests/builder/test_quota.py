"""What a quota leaves, from the words of `quota` and `lfs quota` as they are on real hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from clusterfn.bridge.builder import space
from clusterfn.bridge.builder.errors import BuildFailed

NFS = """Disk quotas for user ann (uid 1001):
     Filesystem   space   quota   limit   grace   files   quota   limit   grace
server:/home 2345678  5000000 5500000       0   12345   20000   22000       0
server:/proj  900*    800 1000 6days 10 0 0
"""
LUSTRE = "     /lustre 1000  0 5000 - 10 0 100 -\n"
NO_GRACE = "/dev/sda1 1000 4000 0 20 50 0\nserver:/x none\n"


@pytest.mark.parametrize(
    ("said", "name", "left"),
    [
        (NFS, "server:/home", ((5500000 - 2345678) * 1024, 22000 - 12345)),
        (NFS, "server:/proj", (100 * 1024, None)),
        (NFS, "server:/other", (None, None)),
        (LUSTRE, "/lustre", (4000 * 1024, 90)),
        ("quota: no quotas\n", "server:/home", (None, None)),
        ("", "server:/home", (None, None)),
    ],
)
def test_what_is_left(said: str, name: str, left: tuple[int | None, int | None]) -> None:
    assert space.parse_quota(said, ("", name)) == left


def test_the_file_system_is_the_innermost_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    inner = tmp_path / "a b"
    inner.mkdir()
    named = str(inner).replace(" ", "\\040")
    mounts.write_text(f"/dev/root / ext4 rw 0 0\nserver:/home {tmp_path} nfs4 rw 0 0\nserver:/in {named} nfs4 rw 0 0\n")
    monkeypatch.setattr(space, "MOUNTS", str(mounts))

    assert space.mount_of(str(inner)) == ("server:/in", str(inner), "nfs4")
    assert space.mount_of(str(tmp_path / "other"))[0] == "server:/home"
    assert space.mount_of("/usr")[0] == "/dev/root"


@pytest.mark.fault("33")
def test_both_numbers_of_a_quota_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "quota_left", lambda _: (5 << 20, None))

    with pytest.raises(BuildFailed, match=r"it needs at least 10\.0 MB, and your quota leaves 5\.0 MB"):
        space.refuse_too_little(str(tmp_path), [(10 << 20, 1)])
    monkeypatch.setattr(space, "quota_left", lambda _: (None, 3))
    with pytest.raises(BuildFailed, match="it needs at least 7, and your quota leaves 3"):
        space.refuse_too_little(str(tmp_path), [(0, 7)])
