"""A client in a process of its own, which can be killed: takes orders as JSON lines, and says what its jobs come to.

Run as `python lane.py calls.py` with CLUSTERFN_CONFIG set.
Orders: {"do": "submit", "id", "host", "call", "args", "options"}, {"do": "attach", "id", "host"}.
Answers: {"id", "ready": true, "agent": pid}, {"id", "sent": true}, {"id", "state", "value" or "error"}.
"""

import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import clusterfn
from clusterfn.calls import call
from clusterfn.config.options import parse_options

_lock = threading.Lock()


def say(**facts):
    with _lock:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def ended(job):
    error = job.exception()
    if error is None:
        value = job.result()
        shown = {name: value[name] for name in ("value",)} if isinstance(value, dict) else value
        size = len(value["data"]) if isinstance(value, dict) else 0
        say(id=job.id, state=job.state, value=shown, size=size)
        return
    facts = {name: getattr(error, name, None) for name in ("message", "stage", "hint")}
    say(id=job.id, state=job.state, error=dict(facts, type=type(error).__name__, text=str(error)))


def submit(calls, order):
    arguments = order["args"]
    if "loading" in arguments:
        arguments["loading"] = calls["SlowToLoad"](arguments["loading"])
    options = parse_options({"host": order["host"], **order.get("options", {})})
    call.secrets = SimpleNamespace(token_hex=lambda _: order["id"])  # the test knows the id before we do
    prepared = call.prepare(calls[order["call"]], (), arguments, options)
    prepared.session.connection.ping().result(150)  # an agent that was killed a moment ago has a successor now
    say(id=order["id"], ready=True, agent=prepared.session.connection.facts.pid)
    job = call.send_call(prepared)[0]
    job.add_done_callback(ended)
    return job


def main():
    calls = {"__name__": "__main__"}
    exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), calls)
    for name in ("SlowToLoad", "SlowToKeep", "work", "_slowly", "note_run"):
        setattr(sys.modules["__main__"], name, calls[name])
    kept = []
    for line in sys.stdin:
        order = json.loads(line)
        try:
            if order["do"] == "submit":
                kept.append(submit(calls, order))
            else:
                job = clusterfn.attach(order["id"], order["host"])
                kept.append(job)
                job.add_done_callback(ended)
        except Exception as error:
            say(id=order["id"], state="REFUSED", error={"type": type(error).__name__, "text": str(error)})
        say(id=order["id"], sent=True)


main()
