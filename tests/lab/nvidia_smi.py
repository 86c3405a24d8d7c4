"""Plays nvidia-smi from a JSON file. Installed as tensor01's nvidia-smi; runs on Python 3.6, standard library only.

STATE says the mode (ok, hang, garbage, nvml-mismatch, no-devices) and the cards with their processes; gpubox.py writes
it. Texts and exit codes are those of driver 575.57.08.
"""

import json
import os
import sys
import time
from pathlib import Path

STATE = "/opt/clusterfn-lab/gpubox/state.json"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 575.57\n"
UNITS = {
    "memory.total": "MiB",
    "memory.used": "MiB",
    "memory.free": "MiB",
    "used_memory": "MiB",
    "used_gpu_memory": "MiB",
    "utilization.gpu": "%",
}


def memory_used(card):
    """What processes hold, plus what nobody visible holds."""
    return card["hidden_used_mib"] + sum(process["used_mib"] for process in card["processes"])


def card_fields(card, state):
    """Every --query-gpu field we know of one card."""
    used = memory_used(card)
    return {
        "index": card["index"],
        "uuid": card["uuid"],
        "gpu_uuid": card["uuid"],
        "name": card["name"],
        "gpu_name": card["name"],
        "count": len(state["cards"]),
        "memory.total": card["total_mib"],
        "memory.used": used,
        "memory.free": card["total_mib"] - used,
        "utilization.gpu": card["utilization"],
        "driver_version": state["driver_version"],
        "compute_cap": card["compute_cap"],
        "pci.bus_id": card["bus_id"],
        "gpu_bus_id": card["bus_id"],
        "temperature.gpu": card["temperature"],
    }


def app_rows(state):
    """Every --query-compute-apps field, one row per process."""
    return [
        {
            "gpu_uuid": card["uuid"],
            "gpu_name": card["name"],
            "gpu_bus_id": card["bus_id"],
            "pid": process["pid"],
            "process_name": process["name"],
            "name": process["name"],
            "used_memory": process["used_mib"],
            "used_gpu_memory": process["used_mib"],
        }
        for card in state["cards"]
        for process in card["processes"]
    ]


def csv_lines(rows, wanted, formats):
    """Rows as nvidia-smi prints them: ", " between, units in the header, and after values unless nounits."""
    nounits = "nounits" in formats
    lines = []
    if "noheader" not in formats:
        lines.append(", ".join(f"{name} [{UNITS[name]}]" if name in UNITS else name for name in wanted))
    for row in rows:
        cells = []
        for name in wanted:
            unit = "" if nounits or name not in UNITS else " " + UNITS[name]
            cells.append(f"{row[name]}{unit}")
        lines.append(", ".join(cells))
    return lines


def query(rows, known, wanted, formats):
    """Answer one query, or complain about a field as the real program does."""
    for name in wanted:
        if name not in known:
            print(f'Field "{name}" is not a valid field to query.\n')
            return 2
    for line in csv_lines(rows, wanted, formats):
        print(line)
    return 0


def table(state):
    """The summary a person sees."""
    rule = "+" + "-" * 89 + "+"
    driver = state["driver_version"]
    rows = [f"NVIDIA-SMI {driver:22s} Driver Version: {driver:14s} CUDA Version: {state['cuda_version']:8s}", rule]
    for card in state["cards"]:
        memory = f"{memory_used(card):6d}MiB / {card['total_mib']:6d}MiB"
        rows.append(f"{card['index']:3d}  {card['name']:30s} {card['bus_id']}  {memory} {card['utilization']:4d}%")
    rows.append(rule)
    for card in state["cards"]:
        for process in card["processes"]:
            rows.append(
                f"{card['index']:3d} {process['pid']:10d}      C   {process['name']:40s} {process['used_mib']:6d}MiB"
            )
    print(time.strftime("%a %b %d %H:%M:%S %Y"))
    for row in [rule, *rows, rule]:
        print(row if row == rule else f"| {row:87s} |")
    return 0


def read_state():
    """What gpubox.py wrote last."""
    with Path(STATE).open(encoding="utf-8") as stream:
        return json.load(stream)


def fail_as_told(mode):
    """The modes in which the real program does not answer; None if it does."""
    if mode == "hang":
        # Until the test is over: nobody has to look for us and end us.
        while read_state()["mode"] == "hang":
            time.sleep(0.2)
        return 1
    if mode == "garbage":
        sys.stdout.flush()
        os.write(1, b"\xff\xfe\x00<html>502, [N/A]\n, , ,\n7\n\x1b[2J")
        return 0
    if mode == "nvml-mismatch":
        sys.stdout.write(MISMATCH)
        return 18
    if mode == "no-devices":
        print("No devices were found")
        return 6
    return None


def chosen_cards(state, options):
    """-i / --id: only these cards, by index or UUID."""
    wanted = options.get("-i") or options.get("--id")
    if not wanted:
        return state
    names = wanted.split(",")
    cards = [card for card in state["cards"] if str(card["index"]) in names or card["uuid"] in names]
    return dict(state, cards=cards)


def parse(argv):
    """--name=value, --name value, -i value and bare flags into a dict."""
    options = {}
    rest = list(argv)
    while rest:
        name, given, value = rest.pop(0).partition("=")
        if not given and name in ("-i", "--id", "--format", "--query-gpu", "--query-compute-apps"):
            value = rest.pop(0) if rest else ""
        options[name] = value
    return options


def main(argv):
    state = read_state()
    failed = fail_as_told(state["mode"])
    if failed is not None:
        return failed
    options = parse(argv)
    state = chosen_cards(state, options)
    formats = options.get("--format", "csv").split(",")
    if "--query-gpu" in options:
        rows = [card_fields(card, state) for card in state["cards"]]
        known = card_fields(state["cards"][0], state) if state["cards"] else {}
        return query(rows, known, options["--query-gpu"].split(","), formats)
    if "--query-compute-apps" in options:
        known = ("gpu_uuid", "gpu_name", "gpu_bus_id", "pid", "process_name", "name", "used_memory", "used_gpu_memory")
        return query(app_rows(state), known, options["--query-compute-apps"].split(","), formats)
    if "-L" in options or "--list-gpus" in options:
        for card in state["cards"]:
            print(f"GPU {card['index']}: {card['name']} (UUID: {card['uuid']})")
        return 0
    if not options:
        return table(state)
    print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
