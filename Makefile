# What can be run here. `make` alone lists it. `make test` is what CI runs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
COMMIT = $(shell git rev-parse --short HEAD)
SCRIPTS = $(wildcard templates/*.sh)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help venv demo check lab lab-down test test-with-lab test-on-lab test-beside lint test-long bench bench-peers

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP)  ## .venv with clusterfn (editable) and all that tests need

$(STAMP): setup.cfg pyproject.toml
	@echo "Installing clusterfn and its test tools into .venv"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e '.[test]'
	@touch $(STAMP)

demo: venv  ## a function runs on this machine and its value comes back
	$(BIN)/clusterfn demo

# What runs on hosts alone needs no types for Windows, which is no host.
HOSTS_OWN = clusterfn/bridge/(agent/|builder/|session/|spooler/|supervisor/|stubs/|(worker|descriptors|children)\.py)
lint: venv  ## ruff, mypy for each platform, and shellcheck where it is installed
	$(BIN)/ruff check .
	$(BIN)/mypy --platform linux
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 --exclude '$(HOSTS_OWN)'
	@if [ -z "$(SCRIPTS)" ]; then echo "no templates/*.sh to check"; \
	elif command -v shellcheck >/dev/null; then echo "shellcheck $(SCRIPTS)"; shellcheck --shell=sh $(SCRIPTS); \
	else echo "shellcheck is not installed: $(SCRIPTS) not checked"; fi

check: lint  ## without root: lint and every test that needs no lab
	$(BIN)/python -m pytest -q -m "not lab"

lab: venv  ## as root on Debian: start the test hosts (tests/lab/README.md)
	$(BIN)/python -m tests.lab up

lab-down: venv  ## stop the test hosts and remove what they brought
	$(BIN)/python -m tests.lab down

test: venv  ## everything: as root on Debian with the lab, elsewhere `check`
	@reason=$$($(BIN)/python -m tests.lab why-not); \
	if [ -z "$$reason" ]; then $(MAKE) test-with-lab; \
	else echo "The lab tests are skipped: $$reason"; $(MAKE) check; fi

test-with-lab: venv
	$(BIN)/python -m tests.lab up
	$(BIN)/python -m tests.lab torch
	@$(MAKE) lint
	@# Tests on the lab mostly wait, the others compute: side by side they take half of the time.
	@echo "pytest, with the lab and without it, side by side"
	@# A shell starts what runs beside it deaf to Ctrl-C, which some of these tests send.
	@log=$$(mktemp); export CLUSTERFN_REQUIRE_LAB=1; \
	env --default-signal=INT,QUIT $(MAKE) test-beside >"$$log" 2>&1 & others=$$!; \
	status=0; $(MAKE) test-on-lab || status=$$?; \
	wait $$others || status=$$?; cat "$$log"; rm "$$log"; exit $$status

# What failed is tried once more, and both runs are shown: on a busy machine a daemon of the lab may miss its moment.
# Those beside share no scheduler, no cards and no limits of an sshd with the others.
BESIDE = tests/lock tests/builder tests/contract/test_login.py tests/e2e/test_cable.py tests/e2e/test_delay.py \
	tests/e2e/test_minors.py tests/e2e/test_real_torch.py tests/e2e/test_libraries.py tests/e2e/test_queue.py \
	tests/chaos/test_cards.py tests/chaos/test_waiting.py tests/chaos/test_map_cards.py tests/lab/test_ownbox.py
PYTEST = CLUSTERFN_REQUIRE_LAB=1 $(BIN)/python -m pytest -q
LAB_TESTS = $(PYTEST) -m lab -o cache_dir=.pytest_cache/lab $(addprefix --ignore=,$(BESIDE))
BESIDE_TESTS = $(PYTEST) -m lab -o cache_dir=.pytest_cache/beside $(BESIDE)
AGAIN = --last-failed --last-failed-no-failures=none
test-on-lab: venv
	@$(LAB_TESTS) || { echo "Once more, what failed above:"; $(BIN)/python -m tests.lab up; $(LAB_TESTS) $(AGAIN); }

test-beside: venv
	@status=0; $(PYTEST) -m "not lab" || status=$$?; \
	$(BESIDE_TESTS) || { echo "Once more, what failed above:"; $(BESIDE_TESTS) $(AGAIN); } || status=$$?; exit $$status

test-long: lab  ## the tests that take minutes; the report goes to benchmarks/results
	@mkdir -p benchmarks/results
	@{ echo "test-long of $(COMMIT), $$(date -u +%Y-%m-%d), $$(uname -sm), $$($(BIN)/python -V)"; \
	CLUSTERFN_REQUIRE_LAB=1 $(BIN)/python -m pytest --long -m long --durations=0 2>&1 | sed "s|$(CURDIR)|.|g"; } \
	| tee benchmarks/results/test-long-$(COMMIT).txt

bench: venv  ## measure again what the documentation claims
	$(BIN)/python -m benchmarks

bench-peers: venv  ## a thousand calls by us and by others, in ten minutes
	$(BIN)/python -m benchmarks peers
