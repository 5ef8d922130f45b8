# Every habit of the house. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUNS := $(VENV)/.runs
READY := $(VENV)/.ready
# Later Pythons than the oldest one; those that are on this machine run the fast tests, each in an environment of its own.
PYTHONS := python3.13 python3.14
# Tests start hundreds of processes. Each would compile all that it imports, for two seconds, where an environment forbids
# Python to keep what it compiled: so it is kept here, out of the tree.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.venv/.bytecode
# Python compiles what it imports anyway: compiling everything first makes the set-up a third longer.
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile
# pip's own last line names a package; the person needs to know what to set.
NOT_FETCHED := { echo "The packages could not be fetched: a set-up needs the network. Behind a proxy set HTTPS_PROXY;" \
	"with a package index of your own set PIP_INDEX_URL. Then run make again." >&2; exit 1; }
# The oldest Python we support: locks resolved for it hold for every later one too.
LOCK := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --no-python-downloads --generate-hashes \
	--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" --quiet \
	$(if $(UPGRADE),--upgrade)

# More workers than cores: many tests wait for a broker. tests/support/schedule.py says which test goes where, and when.
WORKERS := --numprocesses $(shell expr 5 \* $$(getconf _NPROCESSORS_ONLN) / 2)
PYTEST := $(BIN)/python -m pytest
# Types and style are looked at beside the tests.
LINTED := $(BIN)/python -m tests.tidy.linters $(PYTEST)

.DEFAULT_GOAL := help
.PHONY: help setup serve demo test test-all test-fast test-pythons test-long laws durations check audit lock bench pressure conformance drills chaos kafka release cut clean

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(RUNS) ## make .venv with callgauge and what it needs to run; targets that test add their tools

serve: $(RUNS) ## everything on this machine for your own calls, no broker needed (ARGS="--folder calls --port 8070")
	@$(BIN)/callgauge serve $(ARGS)

demo: $(RUNS) ## simulated calls, every role in one process, no broker needed (ARGS="--calls 12")
	@$(BIN)/callgauge demo $(ARGS)

test: $(READY) ## what one process does, and a short run of each part on a real Kafka broker and in a real browser: 6 minutes
	@$(BIN)/python -m tests.support.required_tools
	@$(LINTED) $(WORKERS) -m "not long and not thorough"

test-all: test ## everything that must hold: make test, then all the others on real surroundings
	@$(PYTEST) $(WORKERS) -m "thorough and not long"

test-fast: $(READY) ## what needs no broker and no other tool: tests of single modules, laws, the golden file
	@$(PYTEST) $(WORKERS) -m "not kafka and not long" tests/unit tests/properties tests/golden schemas consumers/engine

test-pythons: ## make test-fast on each later Python that is here (PYTHONS="python3.13 python3.14")
	@for python in $(PYTHONS); do \
		if name=$$($$python -c 'import sys, ensurepip; print("python%d.%d" % sys.version_info[:2])' 2>/dev/null); then \
			$(MAKE) --no-print-directory test-fast PYTHON=$$python VENV=.venv/$$name || exit; \
		else echo "$$python is not here: nothing is tested on it."; fi; \
	done

test-long: $(READY) ## beyond make test-all: further kills, three brokers, mutants, laws on more examples (EXAMPLES=400)
	@$(BIN)/python -m tests.support.required_tools
	@$(PYTEST) $(WORKERS) -o faulthandler_timeout=3600 -m long --ignore=tests/drills
	@$(MAKE) --no-print-directory laws EXAMPLES=$(or $(EXAMPLES),400)

laws: $(READY) ## every law on new examples at each run, many of them (EXAMPLES=1000)
	@EXAMPLES=$(or $(EXAMPLES),1000) $(PYTEST) $(WORKERS) -o faulthandler_timeout=3600 \
		--hypothesis-profile laws -m hypothesis

durations: $(READY) ## run all that test-all runs and write how long its tests take, by which they are put in order
	@$(LINTED) $(WORKERS) -m "not long" --write-durations

check: $(READY) ## format, lint, types and the rules of the tree
	@$(LINTED) --quiet tests/tidy

audit: $(RUNS) ## locked packages beside advisories, of 30 days at most, without a network (ADVISORIES=all.zip takes OSV's export)
	@$(BIN)/python deploy/advisories/check_advisories.py $(ADVISORIES)

lock: $(READY) ## write both lock files from pyproject.toml (UPGRADE=1 takes newer versions)
	@env -u UV_FIND_LINKS $(LOCK) --output-file requirements.lock
	@env -u UV_FIND_LINKS $(LOCK) --group dev --constraints requirements.lock --output-file requirements-dev.lock
	@$(BIN)/python -m pytest --quiet tests/tidy/test_locks.py

bench: $(READY) ## how fast it is, beside a bare baseline and beside others (ARGS=--table writes the tables of pages)
	@$(BIN)/python -m tests.support.required_tools
	@$(BIN)/python -m tests.benchmarks $(ARGS)

pressure: $(READY) ## what a judge that fails costs the evaluator, on a real Kafka broker
	@$(BIN)/python -m tests.support.required_tools
	@$(BIN)/python -m tests.benchmarks.judge_pressure

conformance: $(READY) ## the same results as the reference, field by field
	@$(BIN)/python -m pytest tests/conformance

drills: $(READY) ## troubles of calls in virtual time, of our own processes in real time: which alert fires, and how soon
	@$(BIN)/python -m tests.support.required_tools
	@$(PYTEST) $(WORKERS) -o faulthandler_timeout=3600 tests/drills

chaos: $(READY) ## kill, freeze and restart everything under load, then check every score (DURATION=600 SEED=1)
	@$(BIN)/python -m tests.chaos $(if $(DURATION),--seconds $(DURATION)) $(if $(SEED),--seed $(SEED))

kafka: $(READY) ## a real Kafka broker until Ctrl-C (PORT=9092 chooses the port)
	@$(BIN)/python -m tests.support.brokers.kafka_broker $(PORT)

# A release with a known weakness is none. Whoever builds for themselves may have old advisories, and is told.
release: $(READY) ## build dist/ from the last commit: wheel, archives, chart, image, SBOM, notes, checksums
	@$(BIN)/python deploy/advisories/check_advisories.py --any-age $(ADVISORIES)
	@$(BIN)/python deploy/make_release.py

cut: $(READY) ## give what is unreleased in CHANGELOG.md to a new version (VERSION=0.2.0)
	@$(BIN)/python deploy/make_release.py cut $(or $(VERSION),'')

clean: ## remove .venv and all that these targets made; calls of serve stay in their folder
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps are written last, so a set-up that was interrupted is done again. What runs is a sixth of what tests need, so the
# demo waits for no test tool.
$(RUNS): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "callgauge needs Python 3.11 or newer with venv: install it (Debian and Ubuntu: apt-get install python3 python3-venv)." >&2; \
		exit 1; }
	@echo "Making $(VENV): a minute or two the first time."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install $(PIP_OPTIONS) --require-hashes --use-pep517 --requirement requirements.lock || $(NOT_FETCHED)
	@$(BIN)/python -m pip install $(PIP_OPTIONS) --no-deps --editable . || $(NOT_FETCHED)
	@touch $@

$(READY): $(RUNS) requirements-dev.lock
	@echo "Adding the test tools: a minute or two the first time."
	@$(BIN)/python -m pip install $(PIP_OPTIONS) --require-hashes --use-pep517 --requirement requirements-dev.lock || $(NOT_FETCHED)
	@touch $@
