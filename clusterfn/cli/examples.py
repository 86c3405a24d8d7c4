"""The examples that `clusterfn COMMAND --help` shows, without the word `clusterfn`; a test parses each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

EXAMPLES: Mapping[str, Sequence[str]] = {
    "init": ("init ada@tensor01.example.edu", "init tensor01 --yes", "init ada@login.example.edu --scheduler slurm"),
    "demo": ("demo",),
    "check": ("check tensor01", "check tensor01 --gpus 1", "check cluster --no-job --json"),
    "clean": ("clean tensor01 --dry-run", "clean tensor01 --older 7d", "clean --local"),
    "move": ("move tensor01 /data/ada/clusterfn", "move cluster '$SCRATCH/clusterfn'"),
    "gpus": ("gpus tensor01", "gpus tensor01 --watch"),
    "top": ("top tensor01",),
    "trust": ("trust tensor01", "trust tensor01 --fingerprint SHA256:4h64/59IGKTl17wO3YDaN6I7norVI0iJuFbUUuIPO28"),
    "login": ("login cluster", "login"),
    "logout": ("logout cluster",),
    "hold": ("hold cluster --gpus 1 --time 2h", "hold cluster --cores 8 --time 4h --idle 20min"),
    "release": ("release cluster",),
    "run": (
        "run train.py::train 1e-3 layers=4",
        "run tensor01 --gpus 1 train.py::train 1e-3",
        "run --json train.py::train 1e-3 | jq .loss",
        "run tensor01 --gpus 1 --outputs '*.pt' train.py --lr 0.1",
        "run --detach train.py --lr 0.1",
    ),
    "script": ("script train.py::train 1e-3", "script cluster --gpus 1 train.py::train 1e-3"),
    "jobs": ("jobs tensor01", "jobs --all-hosts --state failed --since 1d", "jobs -n 1 --json | jq '.[0].state'"),
    "logs": ("logs 7f3a", "logs -f 7f3a", "logs 7f3a --stderr", "logs train -n 1 tensor01"),
    "result": ("result 7f3a", "result 7f3a --json | jq .loss", "result 7f3a 90aa", "result --all --since 1h --json"),
    "attach": ("attach 7f3a", "attach 7f3a tensor01"),
    "stack": ("stack 7f3a",),
    "cancel": ("cancel 7f3a 90aa", "cancel train", "cancel --all tensor01"),
    "rm": ("rm 7f3a", "rm train --dry-run", "rm --all --state failed tensor01"),
    "pull": ("pull 7f3a", "pull 7f3a --only '*.pt' --to results", "pull --all --since 1d --to results tensor01"),
    "shell": ("shell tensor01", "shell tensor01 --environment conda:ml", "shell 7f3a"),
    "hosts": ("hosts", "hosts --json | jq -r '.[].name'"),
    "config": ("config", "config tensor01", "config --schema > clusterfn.schema.json"),
    "completion": (
        "completion bash > ~/.local/share/bash-completion/completions/clusterfn",
        "completion zsh > ~/.zfunc/_clusterfn",
    ),
    "kernel": (
        "kernel add tensor01 --gpus 1 --environment environment.yml",
        "kernel list",
        "kernel remove tensor01-1-gpu",
    ),
    "kernel add": (
        "kernel add tensor01 --environment conda:ml",
        'kernel add tensor01 --name "tensor01 · 1 GPU" --gpus 1 --environment environment.yml',
        "kernel add tensor01 --gpus 2 --memory 64GB --time 8h --environment conda:ml --cwd ~/project",
    ),
    "kernel list": ("kernel list", "kernel list --json | jq '.[].name'"),
    "kernel remove": ("kernel remove tensor01-1-gpu", 'kernel remove "tensor01 · 1 GPU"'),
    "kernel run": ("kernel run tensor01 --gpus 1 /run/user/1000/jupyter/kernel-7f3a.json",),
    "jupyter": (
        "jupyter tensor01",
        "jupyter tensor01 --gpus 1 --environment environment.yml --cwd ~/project",
        "jupyter cluster --time 8h --port 8899 --no-browser",
    ),
    "env": ("env build environment.yml tensor01", "env list tensor01", "env gc tensor01 --dry-run"),
    "env lock": (
        "env lock",
        "env lock environment.yml tensor01 cluster",
        'env lock tensor01 --packages python=3.11 "numpy>=2"',
        "env lock --check",
    ),
    "env build": ("env build environment.yml tensor01", "env build tensor01 --gpus 1"),
    "env list": ("env list tensor01",),
    "env show": ("env show 5d1c tensor01", "env show environment.yml tensor01"),
    "env verify": ("env verify 5d1c tensor01", "env verify 5d1c tensor01 --gpus 1"),
    "env remove": ("env remove 5d1c tensor01",),
    "env gc": ("env gc tensor01 --dry-run", "env gc tensor01 --days 60 --keep 3"),
}
