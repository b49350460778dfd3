# The targets set up everything that they need: `make serve` works on a fresh machine.
# PYTHON=… chooses the interpreter, ARGS="…" goes to the command.
.DEFAULT_GOAL := help
.PHONY: help serve test test-thorough quick coverage adapters peers lint format types contracts docs docs-links docs-test sizes bench chaos simulate dist sbom trial reproduce lock clean
BIN := .venv/bin
# Test files that remain after the workers' controller aborted a run; see UnfinishedRun in conftest.py.
UNFINISHED := .pytest_cache/unfinished
# Tests wait a fifth of their time, for a server or a timer, so use one worker more than there are cores.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 1) + 1 )))
# Which tests of behaviour `make coverage` runs: library, connect, rest or cli.
DRIVER ?= rest

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: .venv/.base  ## run the server (ARGS="--port 9000 --store sqlite:///chat.db")
	@exec $(BIN)/holdfast serve $(ARGS)

# If the environment forbids bytecode files, each server that a test starts would compile all of Holdfast.
test quick: export PYTHONDONTWRITEBYTECODE =

test: .venv/.dev  ## run all tests on all cores, with documentation examples (ARGS="-k tokens": only these, one after another)
	@scripts/services
	@scripts/clients
	@$(BIN)/python -m pytest $(or $(ARGS),-n $(WORKERS) --dist loadfile --no-loadscope-reorder) || \
	  { status=$$?; [ $$status = 3 ] && [ -s $(UNFINISHED) ] && echo "Running the remaining test files, one after another." && \
	    $(BIN)/python -m pytest @$(UNFINISHED) || exit $$status; }

test-thorough: export HYPOTHESIS_PROFILE = thorough
test-thorough: test  ## the same with 500 examples per property test instead of 12; takes hours

quick: .venv/.dev  ## run the fast unit tests with few examples, and a turn through library and store, in less than a minute
	@HYPOTHESIS_PROFILE=quick $(BIN)/python -m pytest -n logical --dist worksteal -m "not slow" tests/unit tests/service/test_library.py tests/service/test_turn.py

coverage: .venv/.dev  ## line coverage of src by the tests of behaviour that use a driver (DRIVER=library; ARGS="--show-missing")
	@HOLDFAST_TEST_DRIVER=$(DRIVER) COVERAGE_FILE=.coverage.$(DRIVER) $(BIN)/python -m coverage run -m pytest -p no:cacheprovider tests/behaviour
	@COVERAGE_FILE=.coverage.$(DRIVER) $(BIN)/python -m coverage report $(ARGS)

adapters:  ## test the adapters for other frameworks, each in its own environment (ARGS="langchain")
	@exec scripts/adapters $(ARGS)

peers:  ## install the systems that `make bench` compares with and that need their own environments (ARGS="litellm")
	@exec scripts/peers $(ARGS)

docs: .venv-docs/.docs  ## build the documentation as a site in build/docs; broken links are errors
	@.venv-docs/bin/python -m scripts.site html $(ARGS)

docs-links: .venv-docs/.docs  ## check the site's links to other hosts
	@.venv-docs/bin/python -m scripts.site linkcheck $(ARGS)

docs-test: .venv/.dev  ## run only the examples in README.md, docs/ and docstrings
	@$(BIN)/python -m pytest README.md docs src $(ARGS)

lint: .venv/.dev  ## check style and format
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

format: .venv/.dev  ## format the code and apply safe fixes
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

types: .venv/.dev  ## run mypy in strict mode
	@$(BIN)/mypy

contracts: .venv/.dev  ## check which packages import which
	@$(BIN)/lint-imports

sizes: .venv/.dev  ## count lines, functions, pages, commands, keys and so on, and check the limits in budgets.toml (ARGS=--write: make the counts the limits)
	@$(BIN)/python -m scripts.size $(ARGS)

bench: .venv-bench/.bench  ## compare with peers, or measure quality (ARGS="--quick", ARGS="turn replay", ARGS="recall DATASET", ARGS="evidence DATASET")
	@exec .venv-bench/bin/python -m benchmarks $(ARGS)

chaos: .venv/.dev  ## run two servers on one PostgreSQL with kills and bad networks, for minutes (ARGS="--seconds 60 --seed 1")
	@scripts/services
	@exec $(BIN)/python -m tests.chaos $(ARGS)

simulate: .venv/.dev  ## run the gateway with simulated clients and failures, with fresh seeds (ARGS="--seconds 600", ARGS="--seed 1")
	@exec $(BIN)/python -m tests.simulation $(ARGS)

dist: .venv/.dev  ## build the wheel and the sdist in dist/
	@rm -rf dist
	@$(BIN)/hatchling build

sbom: .venv-sbom/.sbom  ## write bills of materials (CycloneDX) of the base installation and of each extra to dist/
	@.venv-sbom/bin/python -m scripts.sbom dist

reproduce: dist  ## build the commit twice in different clones, and compare the bytes with each other and with dist/
	@$(BIN)/python scripts/reproduce.py dist

trial: dist  ## try the built wheel as a new user, with every Python that is found, in empty virtual environments (PYTHON="python3.13")
	@PYTHON="$(PYTHON)" $(BIN)/python scripts/trial.py dist

lock:  ## resolve the dependencies again (UPGRADE=1: to the newest versions)
	@scripts/lock

clean:  ## remove everything that the targets created
	rm -rf .venv .venv-bench .venv-docs .venv-sbom .venv-adapters .venv-peers tests/javascript/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: set-up runs again only when a lock or the packaging has changed. The larger lock contains the smaller one.
.venv/.base: requirements/base.lock pyproject.toml scripts/setup
	@scripts/setup requirements/base.lock
	@touch $@

.venv/.dev: requirements/dev.lock requirements/weights.lock pyproject.toml scripts/setup
	@scripts/setup requirements/dev.lock
	@touch .venv/.base $@

# The benchmark's environment, with the peers.
.venv-bench/.bench: requirements/bench.lock pyproject.toml scripts/setup
	@scripts/setup requirements/bench.lock .venv-bench
	@touch $@

# The environment that describes what Holdfast installs, with every extra that can be combined with the others.
.venv-sbom/.sbom: requirements/sbom.lock pyproject.toml scripts/setup
	@scripts/setup requirements/sbom.lock .venv-sbom
	@touch $@

# The documentation's environment.
.venv-docs/.docs: requirements/docs.lock pyproject.toml scripts/setup
	@scripts/setup requirements/docs.lock .venv-docs
	@touch $@
