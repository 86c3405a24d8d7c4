"""Every name that clusterfn gives to a file on a host, and the kinds of outcomes, in one place.

Both sides read it: the library (Python 3.9 and newer) and the bridge on the host (3.6 and newer). So it imports nothing
but the standard library and keeps to old syntax. It only names things: it never touches a file.

The agent reaches a host without this module. It repeats the names below the root, `work` and `checkpoint`.
"""

import errno
import posixpath

FORMAT = 1

# -- Names below a host's root

BRIDGE = "bridge"
BLOBS = "blobs"
SOURCES = "sources"
FILES = "files"
# shims/<hash>: a folder in which `python` leads to an interpreter that has no such name beside it.
SHIMS = "shims"
JOBS = "jobs"
# The word after it of one that only says what it could fork, and ends.
LOOK = "look"
MACHINES = "machines"
# pkgs/<sha256 of the archive>: a package, unpacked once and shared by hard links.
PACKAGES = "pkgs"
ENVIRONMENTS = "envs"
BUILDS = "builds"
USES = "uses"
# cards/<partition>.json: the GPUs that the last job there saw.
OBSERVED_GPUS = "cards"
# The name for SLURM's own default partition.
DEFAULT = "default"
# A prefix that takes a thing out of use until a second look decides whether it must go.
ASIDE = ".aside-"
# A prefix of what is being removed; a process that finds one left over removes the rest.
REMOVED = ".expired-"
# The cache of Hugging Face, PyTorch and others, where the home directory has no room.
CACHE = "cache"
# Files whose dates say when a cleanup last looked for what is no longer needed.
LOOKED = "expired"

# -- Names below machines/<machine>

# queue/<job>: the ticket of a job that waits; <job>.<k> for an element of a group.
QUEUE = "queue"
# interrupted/<job>: the ticket of a running job, which puts it back into the queue after a restart of the machine.
INTERRUPTED = "interrupted"
# Who held what, and since when.
HOLDS = "holds.jsonl"
SPOOLER_LOG = "spooler.log"
# What GPUs there are, for the job that is sent next.
GPUS_SEEN = "gpus.json"
# Why each of these jobs waits.
QUEUE_STATUS = "queue.jsonl"
# Its date says when jobs last waited in an agent for their turn to begin.
STARTING = "starting"

# -- Names below pkgs/<sha256>

PACKAGE_FILES = "files"
MANIFEST = "manifest.json"

# -- Names below envs/<id>

# Describes what was built. The environment is complete if and only if this file exists.
READY = "READY"
# The builder's folder in an environment: the plan, a copy of READY, and the size of every file.
ABOUT = ".clusterfn"
SIZES = "manifest"

# -- Names below builds

# The heartbeats of all builders.
BEATS = ".beats"

# -- Names below builds/<id>

PLAN = "plan.json"
LOCK = "lock"
PROGRESS = "progress.jsonl"
# OUTCOME is there too: that of the last build that failed.

# -- Names below jobs/<id>

SPEC = "spec.json"
PAYLOAD = "payload.pkl"
SCRIPT = "job.sh"
# Which processes are the supervisor of a job, or of an element, and its keeper.
PROCESSES = "processes"
# Identifies the process of job.sh, by the boot id and its line of /proc/PID/stat.
STARTED = "started"
# What `module` has said, where a job loads modules.
MODULE_ERRORS = "module.err"
# Why the scheduler does not accept the job for now. The client that will submit it later renews this file.
REFUSED = "refused"
CLAIM = "claim"
CANCEL = "cancel"
# A request for the stacks of the job, by 16 hexadecimal digits; the answer is in stack.<digits>.
STACK = "stack"
SECRETS = "secrets"
# What to run at the end. It is removed afterwards, because it may hold the address of a webhook.
NOTIFY = "notify"
# Who was notified, and what went wrong.
NOTIFIED = "notified.json"
# What the builder of the job's environment has printed. It is also below attempts/<n>.
BUILDER_LOG = "builder.jsonl"
SCHEDULER_LOG = "scheduler.log"
CHECKPOINT = "checkpoint"
ATTEMPTS = "attempts"

# -- Names below jobs/<id> of a group

# The arguments of each item, one after another.
ITEMS = "items.pkl"
# Where each item of ITEMS ends.
ITEMS_INDEX = "items.json"
# What a person calls each item.
LABELS = "labels.json"
# The plain arguments of each item, by parameter.
ARGUMENTS = "arguments.json"
# The jobs whose values each item takes.
ITEM_INPUTS = "item_inputs.json"
# The group that a retry continues, and the indices of its items in that group.
RETRIED = "retried.json"
# Of a group that several hosts share: more/<n>-<id> names a group of items that this host has got later, and
# more/closed-<digits> says that a program has ended the whole.
MORE = "more"
CLOSED = "closed-"
# claims/<chunk>, <chunk>.2, ...: the element that runs the chunk or took it over, its first item, and how many it has.
CLAIMS = "claims"
# done/<chunk>: each item of this chunk has a line in a journal.
DONE = "done"
# elements/<k>: what a single job has in jobs/<id>, from `started` to `attempts`.
ELEMENTS = "elements"
# For an element that runs nothing: the outcome of each item that it gives up.
VERDICT = "verdict.json"
# The same, for as many items as it says, which another host runs.
MOVED = "moved.json"

# -- Names below jobs/<id> of a session

# calls/<n>: what belongs to one call; payload.pkl and `attempts` are as in jobs/<id>.
CALLS = "calls"
# The modules of a call; for an actor also its `actor` (the call that constructs it) and a `name`.
CALL = "call.json"
# A second name of call.json, made by the process that runs the call, or a folder where hard links are impossible. A
# symbolic link means that the client has withdrawn the call.
TAKEN = "taken"
# No more calls will come.
CLOSE = "close"
# The socket, on the machine of the job, that takes calls without files.
DOOR = "door.json"

# -- Names below jobs/<id> of a kernel

# The socket, on the machine of the job, to which the kernel's proxy connects.
KERNEL = "kernel.json"

# -- Names below jobs/<id>/attempts/<n>

OWNER = "owner"
# The attempt waits for GPUs of the host itself.
WAITING = "waiting"
# Contains "started" or "withdrawn" for an attempt that had to wait: whichever was linked first counts.
BEGUN = "begun"
# The supervisor died, and `after` has left the job to another attempt.
FOLLOWED = "followed"
STDOUT = "stdout"
STDERR = "stderr"
# In which order both came, if both did: see StreamOrder.
STREAM_ORDER = "order"
WORK = "work"
EVENTS = "events.jsonl"
HEARTBEAT = "heartbeat"
VALUE = "value.pkl"
# What the attempt had used a while ago. A running item of an element has usage-<index>.json.
USAGE = "usage.json"
# What the worker's processes answered to a request for their stacks.
STACKS = "stacks"
OUTCOME = "outcome.json"
# Of an element: one line when an item begins, and one when it has ended.
JOURNAL = "journal.jsonl"
# nodes/<rank> of each node but the first, with its stdout, stderr and outcome.json.
NODES = "nodes"
# The output of srun, which started the other nodes.
LAUNCH_LOG = "srun.log"
# Of an element: value.pkl of each item, one after another.
VALUES = "values"
# Where the values are of the other jobs that the arguments name.
INPUTS = "inputs.json"

# -- Names below bridge/<hash>

SUPERVISE = "supervise.py"
BUILD = "build.py"
WORKER = "worker.py"
# The argument of worker.py that starts a process which forks workers.
TEMPLATE = "template"
# The word after it of one whose forks are the keepers of several supervisors.
JOBS = "jobs"
# The variable by which job.sh learns how a supervisor ended that the agent has forked.
SUPERVISOR_STATUS = "CLUSTERFN_SUPERVISOR_STATUS"

HEARTBEAT_S = 5.0
STALE_AFTER_S = 90.0
# A note that was not renewed for this long no longer means that a client will submit the job.
REFUSED_FOR_S = 900.0
# The same for an agent and the jobs that it will start: it renews that date.
STARTING_FOR_S = 120.0
# After this long without output and use of a CPU, a waiting call reports that the job is silent.
QUIET_S = 600.0

# Makes the worker and what it forks write their stacks; a process that does not expect it ignores it.
STACK_SIGNAL = "SIGURG"

# Exit codes of the supervisor that job.sh understands; anything else makes job.sh call `supervise.py after`.
EXIT_RETURNED = 0
EXIT_PUBLISHED = 10
# The job waits in the queue of a machine without a scheduler, which will start job.sh again.
EXIT_QUEUED = 20
# Of `after`: nothing was published, and `run` may retry.
EXIT_AGAIN = 12

# In the environment of a job.sh whose turn in the queue of a machine has come.
TURN = "CLUSTERFN_TURN"
# The claim of a job that is concluded from outside: no submission has it.
CONCLUDED = "concluded"
# The environment variable by which every process of an attempt is found: CLUSTERFN_JOB=<id>/<attempt>.
TAG = "CLUSTERFN_JOB"
# What `clusterfn.checkpoint()` returns, and in a map the name of the item's own folder in it.
CHECKPOINT_VARIABLE = "CLUSTERFN_CHECKPOINT"
# What the script that enters a container's image says of it.
IMAGE_VARIABLE = "CLUSTERFN_IMAGE"
# The script itself: outside of the image, it is the interpreter.
ENTERING_VARIABLE = "CLUSTERFN_PYTHON"
INDEX_VARIABLE = "CLUSTERFN_INDEX"
# The variables that a template was given, as JSON: a script that is its interpreter may change them.
GIVEN_VARIABLE = "CLUSTERFN_GIVEN"

# Each shell sets these for itself, and each kind of shell other ones.
SHELLS_OWN = ("_", "SHLVL", "PWD", "OLDPWD")
# Variables by which numerical libraries choose how many threads they start.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# Kinds of outcomes (mechanisms: which error a fault gives). The library maps each to one class of its error tree.
RETURNED = "returned"
RAISED = "raised"
# The command that a job ran has failed: the outcome has its `code`, or the `signal` that ended it.
COMMAND = "command"
# The function ran to its end, but its value cannot be pickled.
RESULT = "result"
# The call could not be loaded in the environment.
PAYLOAD_BROKEN = "payload"
# The environment's interpreter is missing, or is another one.
ENVIRONMENT = "environment"
# The process ended without a word, as by os._exit.
EXITED = "exited"
SIGNAL = "signal"
MEMORY = "memory"
TIME = "time"
STALLED = "stalled"
NODE = "node"
# The errors of a full disk, or of a quota there.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
# The pauses between two tries of what a full disk has refused: about a minute together.
ROOM_PAUSES_S = (0.5, 1.0, 2.0, 4.0) + (5.0,) * 10
# The disk became full while the function ran.
DISK = "disk"
# The disk was full before the function started.
HOST_DISK = "host_disk"
# The supervisor itself was killed.
LOST = "lost"
# The scheduler took the resources back, and does not start the job again.
TAKEN_BACK = "taken_back"
# The actor whose method is called is gone, so the call did not run.
ACTOR_LOST = "actor_lost"
CANCELLED = "cancelled"
UNSATISFIABLE = "unsatisfiable"
# A job whose value the call takes has none.
DEPENDENCY = "dependency"
# Not final: the scheduler, or the queue of the machine, starts the job again.
PREEMPTED = "preempted"
# Not final: a later attempt took over.
SUPERSEDED = "superseded"

NOT_FINAL = frozenset([PREEMPTED, SUPERSEDED])
# What the job ran on is gone, so the same call may return elsewhere.
GONE = (LOST, NODE, TAKEN_BACK)
KINDS = frozenset(
    [
        RETURNED, RAISED, COMMAND, RESULT, PAYLOAD_BROKEN, ENVIRONMENT, EXITED, SIGNAL, MEMORY, TIME, STALLED, NODE,
        DISK, HOST_DISK, LOST, TAKEN_BACK, ACTOR_LOST, CANCELLED, UNSATISFIABLE, DEPENDENCY, PREEMPTED, SUPERSEDED,
    ]
)  # fmt: skip

# Stages of a job, in order: an error names the one in which it happened.
GPU_STAGE = "cards"
STAGES = (
    "submit",
    "queue",
    "start",
    "environment",
    "lease",
    GPU_STAGE,
    "load",
    "function",
    "result",
    "supervisor",
    "scheduler",
)


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
