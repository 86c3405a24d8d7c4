"""The supervisor's other commands: conclude a job, fail items of a group, and ask about a root.

job.sh calls `after`, the spooler and the agent the others; docs/reference/protocol.md says what each takes and prints.
"""

import os
import sys

from ..queue import launch, report, spooler, users
from . import conclude, end_stuck, expire, group, listing, notify, remove, shell, takers
from .verdict import say


def run_command(argv: "list[str]") -> int:
    """Run one command; return the exit code of the process."""
    command, count = "".join(argv[:1]), len(argv)
    if command == "after" and count == 3:
        return conclude.conclude_for_dead(argv[1], argv[2])
    if command == "conclude" and count in (2, 3):
        return conclude.conclude_on_request(argv[1])
    if command == "withdraw" and count == 3:
        from . import withdraw  # one job is concluded

        return withdraw.withdraw_jobs(*argv[1:])
    if command == "alter" and count == 2:
        from . import alter  # few jobs are altered

        return alter.alter_job(argv[1])
    if command == "notify" and count == 2:
        return notify.tell_again(argv[1])
    if command == "tunnel" and count == 2:
        from ..kernel import tunnel  # it is the only one that carries bytes

        return tunnel.carry_to_port(int(argv[1]))
    if command == "end" and count == 2:
        return end_stuck.end_stuck(argv[1])
    if command == "bury" and count == 2:
        return group.fail_unfinished_items(argv[1])
    if command == "register" and count == 6:
        return takers.register_array(*argv[1:])
    if command == "list" and count in (2, 3):
        launch.revive_spooler(argv[1], os.path.dirname(os.path.abspath(sys.argv[0])))
        return listing.listing(argv[1], "".join(argv[2:]))
    if command == "gpus" and count == 3:
        return report.print_gpus(argv[1], argv[2])
    if command == "top" and count == 5:
        from ..queue import overview  # few are asked for it

        return overview.print_looks(argv[1], argv[2], float(argv[3]), int(argv[4]))
    if command == "users" and count in (1, 2):
        return users.print_users(*argv[1:])
    if command == "clean" and count == 5:
        return expire.clean(*argv[1:])
    if command == "sizes" and count >= 2:
        return remove.print_sizes(argv[1], argv[2:])
    if command == "remove" and count >= 3:
        return remove.remove_jobs(argv[1], argv[3:], argv[2] == "dry")
    if command == "shell" and count == 3:
        return shell.start_shell(argv[1], argv[2])
    if command == "queue" and count == 2:
        return report.print_queue(argv[1], os.path.dirname(os.path.abspath(sys.argv[0])))
    if command == "spool" and count >= 4:
        return spooler.run_spooler(argv[1], argv[2], int(argv[3]), *argv[4:])
    say("usage: supervise.py run JOB [STATUS] | after JOB STATUS | conclude JOB | end JOB | bury ELEMENT"
        " | withdraw ROOT HOST | alter JOB | notify JOB | tunnel PORT"
        " | node JOB ATTEMPT | register GROUP NUMBER FIRST COUNT BESIDES"
        " | list ROOT | gpus ROOT LEASE | users [LEASE] | clean ROOT KEEP OLDER dry | queue ROOT"
        " | top ROOT LEASE SECONDS LOOKS | sizes ROOT [JOB...]"
        " | remove ROOT dry [JOB...] | shell JOB FACTS"
        " | hold FOLDER FACTS | enter FOLDER WANTED SUBMIT..."
        " | spool ROOT LEASE FD [JOB UNTIL FD]")  # fmt: skip
    return 2
