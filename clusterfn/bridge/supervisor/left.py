"""What a function leaves in its folder."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMED, _LOOKED_AT = 20, 200


def files_in(folder: str) -> "list[list[Any]]":
    """Names and sizes of the first files below a folder; what would take long to find is left out.

    It stands between the function's end and its result, so it looks at few entries, and at links not at all.
    """
    found: "list[list[Any]]" = []
    waiting, looked = [""], 0
    while waiting:
        prefix = waiting.pop(0)
        try:
            with os.scandir(os.path.join(folder, prefix)) as entries:
                for entry in entries:
                    looked += 1
                    if len(found) == _NAMED or looked > _LOOKED_AT:
                        return sorted(found)
                    if entry.is_file(follow_symlinks=False):
                        found.append([prefix + entry.name, entry.stat(follow_symlinks=False).st_size])
                    elif entry.is_dir(follow_symlinks=False):
                        waiting.append(prefix + entry.name + "/")
        except OSError:  # removed by the function, or meanwhile
            continue
    return sorted(found)
