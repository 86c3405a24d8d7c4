"""The functions that end in so many ways: what a user's script might hold. Loaded as `__main__` by `rows`.

Each prints "up" where somebody is to kill it afterwards. Nothing here knows of clusterfn, but for `attempt`.
"""

# ruff: noqa: PTH123, UP031, UP033 - as people write it

import json
import os
import sys
import threading
import time

N = 3


def returns():
    return 42


def raises(text="boom"):
    raise ValueError(text)


def helper(x):
    return x * 2


def uses_helper(x):
    return helper(x) + 1


def uses_globals():
    return json.dumps([N])


def inner_cache():
    from functools import lru_cache

    @lru_cache(maxsize=None)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    return fib(30), fib.cache_info().misses


def walrus():
    if (n := len("abc")) > 2:
        return n
    return 0


def exits(code=3):
    print("last words", flush=True)
    os._exit(code)


def crashes():
    import ctypes

    print("before the crash", flush=True)
    ctypes.string_at(0)


def returns_numpy():
    import numpy

    return numpy.arange(5)


def returns_local_class():
    class Point:
        def __init__(self, x):
            self.x = x

    return Point(7)


def raises_chain():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("no such key") from error


class NeedsTwo(Exception):
    """An exception whose constructor cannot be called with `args`, as many in the wild."""

    def __init__(self, code, text):
        super().__init__("%s: %s" % (code, text))
        self.code = code


def raises_own():
    raise NeedsTwo(7, "too odd")


def raises_foreign():
    with open("only_there.py", "w") as file:
        file.write("class OnlyThere(Exception):\n    pass\n")
    sys.path.insert(0, os.getcwd())
    import only_there

    raise only_there.OnlyThere("nobody here knows me")


def sys_exit(what):
    sys.exit(what)


def interrupts():
    raise KeyboardInterrupt


def stops_iteration():
    raise StopIteration(5)


def floods():
    block = os.urandom(1 << 20)
    for _ in range(70):
        os.write(1, block)
    return "intact"


def closes_output():
    for fd in range(64):  # as daemons do
        try:
            os.close(fd)
        except OSError:
            continue
    return "intact"


def removes_its_folder():
    import shutil

    os.umask(0)
    folder = os.path.dirname(os.getcwd())
    while os.path.exists(folder):  # its supervisor may write into it meanwhile
        shutil.rmtree(folder, ignore_errors=True)
    os.chdir("/")
    return "intact"


def orphans(parent, name):
    """How many processes of this name have become the parent's."""
    found = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as file:
                before, _, after = file.read().rpartition(")")
        except OSError:
            continue
        found += before.endswith("(" + name) and after.split()[1] == str(parent)
    return found


def leaves_children():
    import subprocess

    subprocess.Popen(["sleep", "301"])
    subprocess.Popen(["setsid", "sleep", "302"], start_new_session=True)
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            os.execvp("sleep", ["sleep", "303"])
        os._exit(0)
    until = time.monotonic() + 60
    while orphans(os.getppid(), "sleep") < 2 and time.monotonic() < until:
        time.sleep(0.1)
    return "intact"


def leaves_thread():
    threading.Thread(target=time.sleep, args=(300,)).start()
    return "intact"


def recurses():
    return recurses() + 1


def memory_error():
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
    return len(bytearray(1 << 30))


def hogs_memory(megabytes):
    print("up", flush=True)
    blocks = []
    for _ in range(megabytes // 10):
        blocks.append(b"x" * (10 << 20))
        time.sleep(0.01)
    time.sleep(600)
    return len(blocks)


def children_hog_memory():
    import subprocess

    code = "b = bytearray(b'1') * (80 << 20); import time; time.sleep(600)"
    children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    print("up", flush=True)
    return [child.wait() for child in children]


def sleeps(seconds=120):
    print("up", flush=True)
    time.sleep(seconds)
    return "slept"


def sleeps_with_children(seconds=120):
    import subprocess

    subprocess.Popen(["setsid", "sleep", str(seconds + 1)])
    subprocess.Popen(["sleep", str(seconds)])
    print("up", flush=True)
    time.sleep(seconds)  # not for a child: one that is ended first would let the function return


def attempt(seconds):
    """Sleep in the first attempt only; the number of the attempt."""
    number = int(os.environ["CLUSTERFN_JOB"].split("/")[1])
    print("up", flush=True)
    if number == 1:
        time.sleep(seconds)
    return number


def large(megabytes):
    return b"ab" * (megabytes << 19)


def size_of(data):
    return len(data)


class ExitsWhenLoaded:
    """A value whose loading ends a process, or a thread that is not careful."""

    def __reduce__(self):
        return sys.exit, (3,)


def returns_trap():
    return ExitsWhenLoaded()


def leaves_file(name):
    with open(name, "w") as file:
        file.write("x")
    return 1


def returns_lock():
    return {"model": [threading.Lock()]}


def returns_generator():
    return (n for n in range(3))


def fills_disk(then):
    block = b"x" * (1 << 16)
    with open("filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(block)
        except OSError:
            try:
                while True:
                    file.write(b"x")
            except OSError:
                if then == "raise":
                    raise
    os._exit(5)


def echo(*args, **kwargs):
    return args, kwargs


def environment_and_folder(text):
    import subprocess

    with open(text, "w") as file:
        file.write(text)
    said = subprocess.run(["cat", text], stdout=subprocess.PIPE, check=True).stdout.decode()
    return said, os.environ["ODD"], os.listdir(".")


def prints_the_old_lie():
    print("RuntimeError: slurmstepd: error: DUE TO TIME LIMIT, oom-kill, CANCELLED", flush=True)
    os._exit(9)
