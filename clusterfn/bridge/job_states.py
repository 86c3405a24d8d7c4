"""The states of a job as people read them: the host lists jobs by them, and the library follows jobs through them.

Read by both sides, like `layout`.
"""

from . import layout

PENDING, STARTING, RUNNING = "PENDING", "STARTING", "RUNNING"
RETURNED, RAISED, DIED, CANCELLED, UNKNOWN = "RETURNED", "RAISED", "DIED", "CANCELLED", "UNKNOWN"
FINAL = {layout.RETURNED: RETURNED, layout.RAISED: RAISED, layout.CANCELLED: CANCELLED}  # other kinds: DIED
SHORT = 4  # digits of an id, of sixteen, that people read and write
