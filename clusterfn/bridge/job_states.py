"""The states of a job as people read them: the host lists jobs by them, and the library follows jobs through them.

Read by both sides, like `layout`.
"""

from . import layout

PENDING, STARTING, RUNNING, SUSPENDED = "PENDING", "STARTING", "RUNNING", "SUSPENDED"
RETURNED, RAISED, DIED, CANCELLED, UNKNOWN = "RETURNED", "RAISED", "DIED", "CANCELLED", "UNKNOWN"
# Other kinds: DIED. A value that cannot be pickled is lost, but its function has returned.
FINAL = {
    layout.RETURNED: RETURNED, layout.RESULT: RETURNED, layout.RAISED: RAISED, layout.CANCELLED: CANCELLED,
}  # fmt: skip
SHORT = 4  # digits of an id, of sixteen, that people read and write
