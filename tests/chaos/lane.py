"""A client in a process of its own, which can be killed: takes orders as JSON lines, and says what its jobs come to.

Run as `python lane.py calls.py` with CLUSTERFN_CONFIG set.
Orders: {"do": "submit", "id", "host", "call", "args", "options"}, {"do": "attach", "id", "host"}, and {"do": "map"} as
"submit", whose "args" are lists with a value for each item. "ballast" among the arguments is a number of bytes.
A map on a list of hosts has several parts: their ids begin with twelve digits of the order's, and to attach takes "of",
the id of one.
Answers: {"id", "ready": true, "agent": pid}, {"id", "sent": true}, {"id", "state", "value" or "error"}; of a map
"items" with "value" or "error" for each. A value that is a dict is told without its data, but with their checksum.
"""

import itertools
import json
import random
import sys
import threading
import zlib
from pathlib import Path
from types import SimpleNamespace

import clusterfn
from clusterfn.calls import call, demand, mapping
from clusterfn.calls.group import JobGroup, run_of_group
from clusterfn.config.options import parse_options
from clusterfn.packing.dependencies import reference_of

_lock = threading.Lock()


def say(**facts):
    with _lock:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


def ended(job):
    error = job.exception()
    told = shown(job.result()) if error is None else failed(error)
    say(id=job.id, state=job.state, **told)


def shown(value):
    if not isinstance(value, dict):
        return {"value": value, "size": 0}
    return {"value": {"value": value["value"]}, "size": len(value["data"]), "sum": zlib.crc32(value["data"])}


def failed(error):
    facts = {name: getattr(error, name, None) for name in ("message", "stage", "hint")}
    return {"error": dict(facts, type=type(error).__name__, text=str(error))}


def all_ended(group, name):
    group.wait()
    errors = group.failed
    told = [failed(errors[index]) if index in errors else shown(group.result(index)) for index in range(len(group))]
    say(id=name, state=group.state, items=told)


def follow(kept, found, name):
    kept.append(found)
    threading.Thread(target=say_when_sent, args=(found, name), daemon=True).start()
    if isinstance(found, JobGroup):
        threading.Thread(target=all_ended, args=(found, name), daemon=True).start()
    else:
        found.add_done_callback(ended)


def say_when_sent(found, name):
    """A job that the host does not have is lost with its client: until then it is not sent."""
    is_map = isinstance(found, JobGroup)
    queues = {run_of_group(found, index).queue for index in range(len(found))} if is_map else ()
    for request in [request for sent in queues or [reference_of(found).source] for request in sent.open_requests()]:
        if request.exception(150) is not None:
            return
    say(id=name, sent=True, host=found.host)


def submit(calls, order):
    arguments = order["args"]
    if "loading" in arguments:
        arguments["loading"] = calls["SlowToLoad"](arguments["loading"])
    if "ballast" in arguments:
        arguments["ballast"] = random.Random(arguments["number"]).randbytes(arguments["ballast"])
    if order["host"].endswith("any"):  # a list
        return clusterfn.cluster(host=order["host"], **order["options"])(calls[order["call"]]).submit(**arguments)
    options = parse_options({"host": order["host"], **order.get("options", {})})
    prepared = call.prepare(calls[order["call"]], (), arguments, options)
    prepared.host.connection.ping().result(150)  # an agent that was killed a moment ago has a successor now
    say(id=order["id"], ready=True, agent=prepared.host.connection.facts.pid)
    return call.send_call(prepared)


def submit_map(calls, order):
    if order["host"].endswith("any"):
        return clusterfn.cluster(host=order["host"])(calls[order["call"]]).map(*order["args"], max_parallel=6)
    options = parse_options({"host": order["host"], **order.get("options", {})})
    how = mapping.parse_map_options(6, "auto")
    return mapping.run(calls[order["call"]], order["args"], options, how)


def main():
    calls = {"__name__": "__main__"}
    exec(compile(Path(sys.argv[1]).read_text(), sys.argv[1], "exec"), calls)
    for name in ("SlowToLoad", "SlowToKeep", "work", "_slowly", "note_run"):
        setattr(sys.modules["__main__"], name, calls[name])
    kept = []
    for line in sys.stdin:
        order = json.loads(line)
        name = order["id"]
        is_shared = order["do"] == "map" and order["host"].endswith("any")
        ids = map((name[:12] + "{:04x}").format, itertools.count()) if is_shared else itertools.repeat(name)
        demand.secrets = SimpleNamespace(token_hex=lambda _, ids=ids: next(ids))  # the test knows them before we do
        try:
            if order["do"] == "attach":
                follow(kept, clusterfn.attach(order.get("of", name), order["host"]), name)
            else:
                follow(kept, {"submit": submit, "map": submit_map}[order["do"]](calls, order), name)
        except Exception as error:
            say(id=name, state="REFUSED", error={"type": type(error).__name__, "text": str(error)})


main()
