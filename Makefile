# Every command works on a fresh machine: the first one builds .venv from the pinned versions. `make` lists them.
PYTHON ?= python3
VENV ?= .venv
# What pip is held to, and which PyTorch it installs first.
export CONSTRAINTS ?= constraints.txt
TORCH ?= torch==2.13.0
export VENV
BIN := $(VENV)/bin
# What is installed in .venv: enough for a run, for the tests, or for the checks.
FOR_RUNS := $(VENV)/.for-runs
FOR_TESTS := $(VENV)/.for-tests
FOR_CHECKS := $(VENV)/.for-checks
# Tests of these packages are skipped where they are missing, so the checks bring them.
OPTIONAL := ray,mcp,openenv,watch,reasoning-gym,notebook
ARGS ?=
# More than cores: while a case waits for a process, the others compute. Slow ones wait longer.
CORES := $(shell nproc 2>/dev/null || echo 2)
JOBS ?= $(shell expr \( $(CORES) \* 3 + 1 \) / 2)
SLOW_JOBS ?= $(shell expr $(CORES) \* 2)
PYTEST = $(BIN)/python -m pytest --maxprocesses 8 --dist worksteal

# Tests and the demo start many interpreters: each would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-units test-limits test-plain-cpu test-slow test-matrix test-oldest test-newest check lint format hooks docs site wheel clean

help:  ## list the commands
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  make %-16s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=python3.12 (for a new .venv), JOBS=4 and SLOW_JOBS=4 (test processes), ARGS='...' (further arguments)"

demo: $(FOR_RUNS)  ## teach a tiny transformer arithmetic: supervised, then GRPO; ends with a curve and a report
	$(BIN)/burnish demo $(ARGS)

test: $(FOR_TESTS)  ## the default tests (under 5 minutes on 2 cores)
	$(PYTEST) -n $(JOBS) -m "not slow" $(ARGS)

test-units: $(FOR_TESTS)  ## the default tests of single pieces
	$(PYTEST) -n $(JOBS) -m "not slow" tests/unit $(ARGS)

test-limits: $(FOR_CHECKS)  ## the default tests; fails if a case takes 2 CPU seconds or all of them 360
	$(PYTEST) -n $(JOBS) -m "not slow" --limits $(ARGS)

# As on a processor without AVX-512, with a PyTorch that knows no vector extensions and no oneDNN, and no compiler.
test-plain-cpu: export ATEN_CPU_CAPABILITY := default
test-plain-cpu: export ONEDNN_MAX_CPU_ISA := AVX2
test-plain-cpu: export CC := no-such
test-plain-cpu: export BURNISH_WITHOUT := onednn,onednn_bfloat16,medium_float32,bfloat16
test-plain-cpu: test  ## the default tests with every capability of the processor turned off

test-slow: $(FOR_CHECKS)  ## every case above .3 CPU seconds: learning runs, lost processes, kill-and-resume trials
	$(PYTEST) -n $(SLOW_JOBS) -m "slow and not matrix" $(ARGS)

test-matrix: $(FOR_CHECKS)  ## the rest of the tables of cases, which no commit has to wait for
	$(PYTEST) -n $(SLOW_JOBS) -m matrix $(ARGS)

# Both bring a build of PyTorch for GPUs (some 5 GB) where pip finds no other. The house's rules need no second run.
test-oldest:  ## the unit tests with the oldest versions that pyproject.toml allows
	$(MAKE) test-units VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt TORCH=torch

test-newest:  ## the unit tests with the newest versions that pyproject.toml allows and pip finds
	$(MAKE) test-units VENV=.venv-newest CONSTRAINTS=/dev/null TORCH=torch

check: lint site  ## everything but the tests: style, types, import directions, and every link of every page

lint: $(FOR_CHECKS)  ## style, types, import directions, and the length of a step's path
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/read_path.py --check

format: $(FOR_CHECKS)  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(FOR_CHECKS)  ## regenerate the pages that are made from code
	$(BIN)/python -m burnish.config.reference docs/configuration.md
	$(BIN)/python -m burnish.observability.metric_names docs/metrics.md
	$(BIN)/python tools/made_pages.py

# Strict: a link or an anchor that leads nowhere, or a page that the navigation forgets, is an error. (Not with --quiet,
# which makes MkDocs overlook its own warnings.)
site: export NO_MKDOCS_2_WARNING := 1
site: $(FOR_CHECKS)  ## build the documentation's site into build/site
	$(BIN)/mkdocs build --strict

# setuptools packs whatever an earlier build has left in build/lib, so nothing may be left there.
wheel: $(FOR_CHECKS)  ## build the wheel into dist/
	rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

hooks: $(FOR_CHECKS)  ## check the style of every commit, and the length of its subject
	$(BIN)/pre-commit install

clean:  ## remove every .venv, runs and everything that was built
	rm -rf .venv .venv-oldest .venv-newest runs build dist

# PyTorch first and pinned: a looser word would bring gigabytes of GPU libraries to a laptop.
$(FOR_RUNS): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv $(VENV)
	@tools/install.sh "PyTorch into $(VENV) (about 200 MB to fetch where pip finds a build for CPUs; half a minute)" '$(TORCH)'
	@tools/install.sh "Burnish and what it needs (about 150 MB; half a minute)" -e .
	@touch $@

$(FOR_TESTS): $(FOR_RUNS)
	@tools/install.sh "what the tests need (about 20 MB; ten seconds)" -e '.[test]'
	@touch $@

$(FOR_CHECKS): $(FOR_TESTS)
	@tools/install.sh "what the checks need: MkDocs, ruff, mypy, optional packages (about 200 MB; a minute)" -e '.[dev,$(OPTIONAL)]'
	@touch $@
