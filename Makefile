# `make` alone prints what there is to make.

SHELL := /bin/bash
.DEFAULT_GOAL := help

BIN := .venv/bin
STAMP := .venv/.meander-setup
# Assigned first and exported after: `export X=$(…)` would swallow a failure.
JAVA = JAVA_HOME="$$(scripts/java.sh)" && export JAVA_HOME &&
# More for pytest or a benchmark: make test ARGS="-k manifest"
ARGS ?=
# Processes that tests are divided among.
WORKERS ?= 2
BENCH ?= throughput
# Compiled modules are kept, also where the environment says otherwise, as images of containers do: tests start hundreds of processes,
# and each would compile the package anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml
	@scripts/setup.sh

.PHONY: setup
setup: $(STAMP) ## make .venv from requirements.lock, and find or install Java
	@$(JAVA) echo "Ready: $(BIN)/meander, Java in $$JAVA_HOME"

.PHONY: demo
demo: $(STAMP) ## run the demo: about half a minute, set-up aside; ends by itself
	@$(JAVA) $(BIN)/meander demo $(ARGS)

# A process that has nothing left to do takes tests from the other one.
.PHONY: test
test: $(STAMP) ## all tests but the slow and the long ones
	@$(JAVA) $(BIN)/python -m pytest -m "not slow and not long" -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: test-fast
test-fast: $(STAMP) ## the tests that need no Java and take no time: a minute and a half
	@$(BIN)/python -m pytest -m "not spark and not many and not slow and not long" -n $(WORKERS) --dist worksteal $(ARGS)

.PHONY: test-servers
test-servers: $(STAMP) ## get what some tests run against: servers for s3:// and redis://, Prometheus' own parser, real data
	@scripts/servers.sh
	@scripts/promtool.sh
	@scripts/flights.sh

# One test at a time for each process, since they take from one second to minutes; then those that measure, one after the other. Exit 5
# says that nothing was selected, which is no failure here.
.PHONY: test-slow
test-slow: test-servers ## only the slow tests
	@$(JAVA) { failed=0; \
	$(BIN)/python -m pytest -m "slow and not long and not alone" -n $(WORKERS) --dist load --maxschedchunk 1 $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	$(BIN)/python -m pytest -m "slow and not long and alone" $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	exit $$failed; }

.PHONY: test-all
test-all: test-servers ## every test
	@$(JAVA) $(BIN)/python -m pytest $(ARGS)

.PHONY: nemesis
nemesis: test-servers ## attack a replicated flow on real processes: make nemesis ARGS="--minutes 20 --seed 7"
	@$(JAVA) PYTHONPATH=src:. $(BIN)/python -m tests.nemesis $(ARGS)

SEEDS ?= 0:30000
JOBS ?= $(shell nproc)

.PHONY: simulate
simulate: $(STAMP) ## many schedules of whole flows that fail and change: make simulate SEEDS=0:30000 JOBS=2
	@$(BIN)/python -m tests.simulation.hunt --seeds $(SEEDS) --jobs $(JOBS) $(ARGS)

.PHONY: lint
lint: $(STAMP) ## ruff, rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: format
format: $(STAMP) ## let ruff repair what it can
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: types
types: $(STAMP) ## mypy, strict on the package
	@$(BIN)/mypy

# Strict: a link, an anchor or a name that is not there is an error. The variable silences an advertisement.
.PHONY: docs
docs: $(STAMP) ## the documentation as a site, in build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

.PHONY: bench
bench: $(STAMP) ## a benchmark beside its peers: make bench BENCH=floor ARGS="--json"
	@$(JAVA) $(BIN)/meander bench $(BENCH) $(ARGS)

# Resolved for every supported Python and platform; without the address of the index it came from.
.PHONY: lock
lock: ## resolve requirements.lock anew (needs uv)
	@uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --upgrade \
		--no-emit-index-url --no-header --no-annotate pyproject.toml -o requirements.lock
	@! grep -nE '://' requirements.lock

.PHONY: clean
clean: ## remove caches and build output; .venv stays
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db derby.log
	@find src tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
