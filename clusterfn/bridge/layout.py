"""Every name that clusterfn gives to a file on a host, and the kinds of outcomes, in one place.

Both sides read it: the library (Python 3.9 and newer) and the bridge on the host (3.6 and newer). So it imports nothing
but the standard library and keeps to old syntax. It only names things: it never touches a file.
"""

import posixpath

FORMAT = 1

SITE_RULES = "/etc/clusterfn.yml"  # what an administrator allows each user: agent/site_rules.py reads it

# below a host's root
BRIDGE = "bridge"
BLOBS = "blobs"
SOURCES = "sources"
FILES = "files"
SHIMS = "shims"  # <hash>: a folder in which `python` is an interpreter that has no such name beside it
JOBS = "jobs"
MACHINES = "machines"
PACKAGES = "pkgs"  # <sha256 of the archive>: unpacked once, shared by hard links
ENVIRONMENTS = "envs"
BUILDS = "builds"
USES = "uses"
OBSERVED_GPUS = "cards"  # <partition>.json: what the last job there saw
DEFAULT = "default"  # SLURM's own partition
ASIDE = ".aside-"  # before its name: what may have to go, and is looked at once more
REMOVED = ".expired-"  # before its name: what is being removed
CACHE = "cache"  # of Hugging Face, PyTorch and others, where the home directory has no room
LOOKED, LOOKED_SOON = "expired", "expired-soon"  # dated when it was last looked for what is no longer needed

# below machines/<machine>
QUEUE = "queue"  # <job>: one that waits; of an element <job>.<k>
DAMAGED_TICKETS = "damaged"  # <job>: what stood in the queue and was no ticket
INTERRUPTED = "interrupted"  # <job>: the ticket of one that runs, and waits again after a restart of the machine
QUEUE_STATUS = "queue.jsonl"  # why each of them waits

# below pkgs/<sha256>
PACKAGE_FILES = "files"
MANIFEST = "manifest.json"

# below envs/<id>
READY = "READY"  # what was built; if it exists, the environment is complete
ABOUT = ".clusterfn"  # what the builder keeps: the plan, a copy of READY, and the size of every file
SIZES = "manifest"

# below builds/<id>
PLAN = "plan.json"
LOCK = "lock"
PROGRESS = "progress.jsonl"
# and OUTCOME: of the last build that failed

# below jobs/<id>
SPEC = "spec.json"
PAYLOAD = "payload.pkl"
SCRIPT = "job.sh"
STARTED = "started"  # which process job.sh is: boot id and its line of /proc/PID/stat
REFUSED = "refused"  # why its scheduler does not take it for now; the client that submits it later renews this
CLAIM = "claim"
CANCEL = "cancel"
STACK = "stack"  # a request for its stacks, 16 hex digits; answered by stack.<digits>
SECRETS = "secrets"
NOTIFY = "notify"  # whom to notify of the end; removed afterwards, because it may have the address of a webhook
NOTIFIED = "notified.json"  # who was told, and what went wrong
BUILDER_LOG = "builder.jsonl"  # what the builder of its environment has said, also below attempts/<n>
SCHEDULER_LOG = "scheduler.log"
CHECKPOINT = "checkpoint"
TAKERS = "takers"  # <id>, or <id>.<number of its array>: a group whose items start as values appear here
ATTEMPTS = "attempts"

# below jobs/<id> of a group
ITEMS = "items.pkl"  # the arguments of each item, one after another
ITEMS_INDEX = "items.json"  # where each of them ends
LABELS = "labels.json"  # what a person calls each of them
ARGUMENTS = "arguments.json"  # the plain arguments of each of them, by parameter
ITEM_INPUTS = "item_inputs.json"  # the jobs whose values each item takes
RELEASED = "released"  # <k>: the scheduler was told that this element need not wait any longer, or why it was not
RETRIED = "retried.json"  # of a retry: the group that it continues, and the indices of the items there
CLAIMS = "claims"  # <chunk>, <chunk>.2, ...: the element that has it, or took it over; its first item, and how many
DONE = "done"  # <chunk>: each of its items has a line
ELEMENTS = "elements"  # <k>: what belongs to one job in jobs/<id>, from `started` to `attempts`
VERDICT = "verdict.json"  # of an element that runs nothing: what it says of each item that it gives up

# below jobs/<id> of a session
CALLS = "calls"  # <n>: what belongs to one call, payload.pkl and `attempts` as in jobs/<id>
CALL = "call.json"  # of a call: its modules; of an actor's its `actor`, the call that constructs it, and a `name`
TAKEN = "taken"  # of a call: a second name of call.json, by the process that runs it, or where there can be none a
# folder; a symbolic link, by the client that withdraws it
CLOSE = "close"  # no more calls are to come
DOOR = "door.json"  # the socket, on the machine of the job, that takes calls without files

# below jobs/<id> of a kernel
KERNEL = "kernel.json"  # the socket, on the machine of the job, to which the kernel's proxy connects

# below jobs/<id>/attempts/<n>
OWNER = "owner"
WAITING = "waiting"  # for GPUs, on the host itself
BEGUN = "begun"  # "started" or "withdrawn": whichever was linked first, if it had to wait
FOLLOWED = "followed"  # its supervisor died, and `after` has left the job to another try of it
STDOUT = "stdout"
STDERR = "stderr"
WORK = "work"
EVENTS = "events.jsonl"
HEARTBEAT = "heartbeat"
VALUE = "value.pkl"
USAGE = "usage.json"  # what it had used so far, a while ago; of a running item of an element usage-<index>.json
STACKS = "stacks"  # what the worker's processes answered when asked where they are
FAILED_RANK = "failed-rank"  # the error of a further rank of the function, while the attempt lasts
OUTCOME = "outcome.json"
JOURNAL = "journal.jsonl"  # of an element: a line when an item begins, one when it has ended
NODES = "nodes"  # of a job on several: <rank> of each but the first, with its stdout, stderr and outcome.json
LAUNCH_LOG = "srun.log"  # what srun said, which started them
VALUES = "values"  # of an element: value.pkl of each item, one after another
INPUTS = "inputs.json"  # where the values of other jobs are that its arguments name

# below bridge/<hash>
SUPERVISE = "supervise.py"
HOLD = "held"  # below the root, of an allocation that is held for many calls; there as long as it takes jobs
HOLD_RECORD = "record"  # in it: what it has
HOLD_ENVIRONMENT = "environment"  # the variables of a batch job on its node
HOLD_RELEASE = "release"  # asks it to end
STEP = "CLUSTERFN_STEP"  # the variable of a job that is a step of such an allocation
BUILD = "build.py"
WORKER = "worker.py"
TEMPLATE = "template"  # its word for a process that forks workers

HEARTBEAT_S = 5.0
STALE_AFTER_S = 90.0
REFUSED_FOR_S = 900.0  # after which a note that was not renewed no longer says that a client will submit the job
QUIET_S = 600.0  # without output and use of a CPU, after which a waiting call says so

# Makes the worker and what it forks write their stacks; a process that does not expect it ignores it.
STACK_SIGNAL = "SIGURG"

# Exit codes of the supervisor that job.sh understands; anything else makes job.sh call `supervise.py after`.
EXIT_RETURNED = 0
EXIT_PUBLISHED = 10
EXIT_QUEUED = 20  # it waits in the queue of a machine without a scheduler, which will start job.sh again
EXIT_AGAIN = 12  # of `after`: nothing was published, `run` may try again

# In the environment of a job.sh whose turn in the queue of a machine has come.
TURN = "CLUSTERFN_TURN"
# The environment variable by which every process of an attempt is found: CLUSTERFN_JOB=<id>/<attempt>.
TAG = "CLUSTERFN_JOB"
# What `clusterfn.checkpoint()` returns, and in a map the name of the item's own folder in it.
CHECKPOINT_VARIABLE = "CLUSTERFN_CHECKPOINT"
INDEX_VARIABLE = "CLUSTERFN_INDEX"

# Variables by which numerical libraries choose how many threads they start.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# Kinds of outcomes (mechanisms: which error a fault gives). The library maps each to one class of its error tree.
RETURNED = "returned"
RAISED = "raised"
COMMAND = "command"  # the command that a job ran has failed: its `code`, or the `signal` that ended it
RESULT = "result"  # ran to its end, but its value cannot be pickled
PAYLOAD_BROKEN = "payload"  # the call could not be loaded in the environment
ENVIRONMENT = "environment"  # the environment's interpreter is missing or another one
EXITED = "exited"  # the process ended without a word: os._exit
SIGNAL = "signal"
MEMORY = "memory"
TIME = "time"
STALLED = "stalled"
NODE = "node"
DISK = "disk"  # full while the function ran
HOST_DISK = "host_disk"  # full before it started
LOST = "lost"  # the supervisor itself was killed
ACTOR_LOST = "actor_lost"  # the actor whose method it calls is gone, so the call did not run
CANCELLED = "cancelled"
UNSATISFIABLE = "unsatisfiable"
DEPENDENCY = "dependency"  # a job whose value it takes has none
PREEMPTED = "preempted"  # not final: the scheduler, or the queue of the machine, starts it again
SUPERSEDED = "superseded"  # not final: a later attempt took over

NOT_FINAL = frozenset([PREEMPTED, SUPERSEDED])
KINDS = frozenset(
    [
        RETURNED, RAISED, COMMAND, RESULT, PAYLOAD_BROKEN, ENVIRONMENT, EXITED, SIGNAL, MEMORY, TIME, STALLED, NODE,
        DISK, HOST_DISK, LOST, ACTOR_LOST, CANCELLED, UNSATISFIABLE, DEPENDENCY, PREEMPTED, SUPERSEDED,
    ]
)  # fmt: skip

# Stages of a job, in order: an error names the one in which it happened.
GPU_STAGE = "cards"
STAGES = (
    "submit", "queue", "start", "environment", "lease", GPU_STAGE, "load", "function", "result", "supervisor",
    "scheduler",
)  # fmt: skip


# Paths below a host's root. What is named by a digest has the SHA-256 of its bytes, or of the archive it came from.


def blob(root, digest):  # type: (str, str) -> str
    return posixpath.join(root, BLOBS, digest)


def sources_dir(root, digest):  # type: (str, str) -> str
    """The folder, put on sys.path, of the user's own modules as they were at one call."""
    return posixpath.join(root, SOURCES, digest)


def package_dir(root, digest):  # type: (str, str) -> str
    return posixpath.join(root, PACKAGES, digest)


def environment_dir(root, env_id):  # type: (str, str) -> str
    return posixpath.join(root, ENVIRONMENTS, env_id)


def build_dir(root, env_id):  # type: (str, str) -> str
    """The folder in which an environment's builders meet."""
    return posixpath.join(root, BUILDS, env_id)


def uses_dir(root, env_id):  # type: (str, str) -> str
    """The folder with a file for each job that uses an environment."""
    return posixpath.join(root, USES, env_id)


def job_dir(root, job_id):  # type: (str, str) -> str
    return posixpath.join(root, JOBS, job_id)


def attempt_dir(job, attempt):  # type: (str, int) -> str
    """The folder of one attempt, given the job's folder. The only attempt of a session's call is in the call's own.

    To make a folder takes longer than any other step of a short call.
    """
    if posixpath.basename(posixpath.dirname(job)) == CALLS:
        return job
    return posixpath.join(job, ATTEMPTS, str(attempt))


def element_dir(job, number):  # type: (str, int) -> str
    """The folder of one element, given the group's folder."""
    return posixpath.join(job, ELEMENTS, str(number))


def call_dir(job, number):  # type: (str, int) -> str
    """The folder of one call, given the session's folder."""
    return posixpath.join(job, CALLS, str(number))


def element_log(number):  # type: (object) -> str
    """The scheduler.log of one element, by SLURM's number of it, or by its own where there is no scheduler."""
    return "scheduler-%s.log" % number


def item_usage(index):  # type: (int) -> str
    """The file of what a running item of an element has used so far."""
    return "usage-%d.json" % index


def stack_answer(token):  # type: (str) -> str
    """Name the answer to a request, with these digits, for the stacks of the job."""
    return "%s.%s" % (STACK, token)


def job_name(name, job_id):  # type: (str, str) -> str
    """The name by which a scheduler knows the job: its own, "_" for blanks and letters outside ASCII, and its id."""
    if name and (max(name) >= "\x80" or " " in name):
        name = "_".join("".join(sign if sign < "\x80" else " " for sign in name).split()).strip("_.-") or "function"
        name = "_" + name if name[0].isdigit() else name
    return "%s.%s" % (name, job_id)
