# What can be run here. `make` alone lists it. `make test` is what CI runs.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
TEST_STAMP := .venv/.installed-for-tests
DOCS_STAMP := .venv/.installed-for-docs
COMMIT = $(shell git rev-parse --short HEAD)
SCRIPTS = $(wildcard templates/*.sh)
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
MAKEFLAGS += --no-print-directory
# Where it is set, each of the thousands of processes that tests start compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
.DEFAULT_GOAL := help
.PHONY: help venv demo check lab lab-down whole-lab test test-with-lab compiled-tests prepared-tests tests-side-by-side lint test-hard test-long long-together \
	long-alone report faults mutations chaos \
	test-jupyterlab dist bench bench-peers survey docs

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(TEST_STAMP)  ## .venv with clusterfn (editable) and all that tests need

$(STAMP): setup.cfg pyproject.toml
	@echo "Installing clusterfn into .venv"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q -e .
	@touch $(STAMP)

$(TEST_STAMP): $(STAMP)
	@echo "Installing the test tools into .venv"
	$(BIN)/python -m pip install -q -e '.[test]'
	@touch $(TEST_STAMP)

demo: $(STAMP)  ## a function runs on this machine and its value comes back
	$(BIN)/clusterfn demo

# Hosts are Linux machines: their code needs no types of other systems.
HOSTS_OWN = clusterfn/bridge/(agent/|builder/|kernel/|login_shell|queue/|schedulers/|session/|supervisor/|stubs/|worker/)
lint: venv  ## ruff, mypy for each platform, and shellcheck where it is installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --platform linux
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin --exclude '$(HOSTS_OWN)'
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 --exclude '$(HOSTS_OWN)'
	@if [ -z "$(SCRIPTS)" ]; then echo "no templates/*.sh to check"; \
	elif command -v shellcheck >/dev/null; then echo "shellcheck $(SCRIPTS)"; shellcheck --shell=sh $(SCRIPTS); \
	else echo "shellcheck is not installed: $(SCRIPTS) not checked"; fi

check: stage-lint  ## without root: lint and every test that needs no lab
	$(BIN)/python -m pytest -q -m "not lab" -n 2 --dist loadgroup

lab: venv  ## as root on Debian: start the test hosts (tests/lab/README.md)
	$(BIN)/python -m tests.lab up

lab-down: venv  ## stop the test hosts and remove what they brought
	$(BIN)/python -m tests.lab down

# What `make test` does before and beside the tests, each with its time. That of the tests is in pytest's last line.
stage-%:
	@trap 'echo "stage $*: $$SECONDS s"' EXIT; $(MAKE) $*

test: stage-venv  ## everything: as root on Debian with the lab, elsewhere `check`
	@reason=$$($(BIN)/python -m tests.lab why-not); \
	if [ -z "$$reason" ]; then $(MAKE) test-with-lab; \
	else echo "The lab tests are skipped: $$reason"; $(MAKE) check; fi

# Made before any test: under the load of all parts they outlast the limit of the test that needs them first.
whole-lab: lab
	$(BIN)/python -m tests.lab torch
	$(BIN)/python -m tests.lab.channel

# Types are checked while the lab is built, and not while its tests need both cores.
test-with-lab: venv
	@CLUSTERFN_REQUIRE_LAB=1 $(MAKE) -k -j2 stage-lint prepared-tests

# In a new checkout one process compiles the tests: six that begin together would each compile all.
compiled-tests: venv
	@[ -n "$$(find tests -name '*-pytest-*.pyc' -print -quit)" ] || $(BIN)/python -m pytest -q --collect-only >/dev/null || true

prepared-tests: stage-whole-lab stage-compiled-tests
	@$(MAKE) tests-side-by-side

# Most tests on the lab wait: six processes keep two cores busy. tests/conftest.py says which tests share one.
SUITE = $(BIN)/python -m pytest -q -n 6 --dist loadgroup --no-loadscope-reorder
tests-side-by-side: venv
	@$(SUITE) --durations=25 --durations-min=4

# What a run may not depend on: tests/README.md. `make test-hard CONDITIONS=order-1 TESTS=tests/unit` takes a part.
TESTS = tests
CONDITIONS = boot busy order-1 order-2 order-3 elsewhere account twice
ON_LAB = CLUSTERFN_REQUIRE_LAB=1 $(SUITE)
# One lab serves one run, and it counts as down in another time namespace.
WITHOUT_LAB = $(SUITE) -m "not lab" -p no:cacheprovider

test-hard: whole-lab compiled-tests  ## the suite as root under each condition that it may not depend on
	@failed=; for condition in $(CONDITIONS); do echo "== $$condition"; \
	$(MAKE) stage-hard-$$condition || failed="$$failed $$condition"; done; \
	if [ -z "$$failed" ]; then echo "green under: $(CONDITIONS)"; else echo "failed under:$$failed"; exit 1; fi

hard-boot:  # a minute ago
	@since=$$(( $$(cut -d. -f1 /proc/uptime) - 60 )); \
	unshare --fork --time --monotonic -$$since --boottime -$$since $(WITHOUT_LAB) $(TESTS)

hard-busy:  # as many other programs as cores
	@trap 'kill $$(jobs -p)' EXIT; for core in $$(seq $$(nproc)); do while :; do :; done & done; $(ON_LAB) $(TESTS)

hard-order-%:  # the seed of a random one
	@$(ON_LAB) --seed $* $(TESTS)

hard-elsewhere:  # blanks in paths, another home, umask, time zone and language
	@folder=$$(mktemp -d); trap "rm -rf $$folder" EXIT; chmod 755 $$folder; \
	mkdir "$$folder/a home" "$$folder/a folder"; umask 027; \
	HOME="$$folder/a home" TMPDIR="$$folder/a folder" TZ=Pacific/Kiritimati LC_ALL=C $(ON_LAB) $(TESTS)

hard-account:  # one of the lab's, not root's. `nobody` also stands for users that the kernel does not know
	@folder=$$(mktemp -d); trap "rm -rf $$folder" EXIT; chmod 755 $$folder; git clone -q . $$folder/clusterfn; \
	chown -R cfbash $$folder; cd $$folder/clusterfn; export HOME=$$folder TMPDIR=$$folder; \
	setpriv --reuid=cfbash --regid=cfbash --init-groups --inh-caps=-all \
	$(SHELL) -c '$(MAKE) compiled-tests && $(WITHOUT_LAB) $(TESTS)'

hard-twice:  # beside another run, in a clone of its own
	@folder=$$(mktemp -d); trap "rm -rf $$folder" EXIT; git clone -q . $$folder/clone; \
	$(MAKE) -C $$folder/clone compiled-tests; \
	(cd $$folder/clone && $(WITHOUT_LAB) $(TESTS)) & other=$$!; \
	rc=0; $(WITHOUT_LAB) $(TESTS) || rc=$$?; wait $$other && exit $$rc

# Show what a command prints, and keep it as the report $(1). It grows in build/: tests send `benchmarks` as a package,
# whose digest must not change meanwhile.
define keep_report
	@mkdir -p build benchmarks/results
	@file=$(1)-$(COMMIT).txt; rc=0; \
	{ echo "$(1) of $(COMMIT), $$(date -u +%Y-%m-%d), $$(uname -sm), $$($(BIN)/python -V)"; \
	$(2) 2>&1 | sed -u "s|$(CURDIR)|.|g"; } | tee build/$$file || rc=$$?; \
	mv build/$$file benchmarks/results/; exit $$rc
endef

test-long: whole-lab  ## the tests that take minutes; the report goes to benchmarks/results
	$(call keep_report,test-long,CLUSTERFN_REQUIRE_LAB=1 $(MAKE) -k -j1 long-together long-alone)

LONG = $(BIN)/python -m pytest -q --long -m long --durations=0 --durations-min=1
# Those that end SLURM's daemons, fill disks, fill SLURM's nodes or watch the times of many jobs: nothing else may use
# the lab then. `make faults` has the faults and the storms.
ALONE = tests/chaos tests/faults tests/lab tests/e2e/test_map.py tests/e2e/test_retries.py
long-together: venv
	@$(BIN)/python -m pip install -qq -e '.[test,docs,browser,recipes]'  # a report has no line about package indexes
	@$(LONG) -n 3 --dist loadgroup --no-loadscope-reorder $(ALONE:%=--ignore=%)

long-alone: venv
	@$(LONG) -m "long and not fault" $(ALONE)

faults: whole-lab  ## each fault of tests/faults/fault_table.py on the lab, as a table; it goes to benchmarks/results
	$(call keep_report,faults,CLUSTERFN_REQUIRE_LAB=1 $(BIN)/python -m pytest -q --long -m fault)

# `make mutations PART=1/3` takes a third of the list, which a machine with two cores does in some minutes.
PART = 1/1
mutations: venv  ## each change of tests/faults/central.txt, which a test has to see; it goes to benchmarks/results
	$(call keep_report,mutations,$(BIN)/python -m tests.faults.central $(PART))

chaos: whole-lab  ## five hundred jobs while everybody who works for them is killed; it goes to benchmarks/results
	$(call keep_report,chaos,CLUSTERFN_REQUIRE_LAB=1 $(BIN)/python -m pytest -q --long tests/chaos/test_storm.py)

dist: $(STAMP)  ## wheel and sdist in dist/, and the conda-forge recipe of that sdist
	$(BIN)/python -m pip install -q build
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python packaging/render_recipe.py dist/*.tar.gz

report: venv  ## `make test`, whose report goes to benchmarks/results
	$(call keep_report,test,$(MAKE) test)

test-jupyterlab: venv  ## notebooks in a headless Chromium, where one is installed; screenshots go to .jupyterlab
	$(BIN)/python -m pip install -q -e '.[test,browser]'
	SCREENSHOTS=$(CURDIR)/.jupyterlab $(BIN)/python -m pytest -q --long tests/e2e/test_jupyterlab.py

bench: venv  ## measure again what the documentation claims; ROWS="latency round-trips transfers" chooses a part
	$(BIN)/python -m benchmarks $(ROWS)

bench-peers: venv  ## 1, 10 and 1,000 calls by us and by others, in 15 minutes
	$(BIN)/python -m benchmarks peers

survey: venv  ## what of 344 packages survives the way to a job and back, in an hour: docs/explanation/compatibility.md
	$(BIN)/python -m benchmarks.survey

docs: $(DOCS_STAMP)  ## the documentation as a site with search, in build/docs
	@$(BIN)/python -m properdocs build --strict
	@echo "Open build/docs/index.html. For search: $(PYTHON) -m http.server --directory build/docs"

$(DOCS_STAMP): $(STAMP)
	@echo "Installing ProperDocs and its theme into .venv"
	$(BIN)/python -m pip install -q -e '.[docs]'
	@touch $(DOCS_STAMP)
