# Every command works on a fresh machine: the first one builds .venv from the pinned versions. `make` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=
JOBS ?= 8

.DEFAULT_GOAL := help
.PHONY: help demo test test-plain-cpu test-slow test-matrix check lint format hooks docs site wheel clean

help:  ## list the commands
	@awk -F ':.*##' '/^[a-z-]+:.*##/ { printf "  make %-16s%s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo "Variables: PYTHON=python3.12 (for a new .venv), JOBS=4 (test processes), ARGS='...' (further arguments)"

demo: $(INSTALLED)  ## teach a tiny transformer arithmetic: supervised, then GRPO; ends with a curve and a report
	$(BIN)/burnish demo $(ARGS)

test: $(INSTALLED)  ## the default tests (under 15 minutes on 2 cores)
	$(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses $(JOBS) --dist worksteal $(ARGS)

# As on a processor without AVX-512, with a PyTorch that knows no vector extensions and no oneDNN, and no compiler.
test-plain-cpu: export ATEN_CPU_CAPABILITY := default
test-plain-cpu: export ONEDNN_MAX_CPU_ISA := AVX2
test-plain-cpu: export CC := no-such
test-plain-cpu: export BURNISH_WITHOUT := onednn,onednn_bfloat16,medium_float32,bfloat16
test-plain-cpu: test  ## the default tests with every capability of the processor turned off

test-slow: $(INSTALLED)  ## learning runs and kill-and-resume trials
	$(BIN)/python -m pytest -m "slow and not matrix" -n auto --maxprocesses $(JOBS) --dist worksteal $(ARGS)

test-matrix: $(INSTALLED)  ## the rest of the tables of cases, which no commit has to wait for
	$(BIN)/python -m pytest -m matrix -n auto --maxprocesses $(JOBS) --dist worksteal $(ARGS)

check: lint site  ## everything but the tests: style, types, import directions, and every link of every page

lint: $(INSTALLED)  ## style, types, import directions, and the length of a step's path
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/read_path.py --check

format: $(INSTALLED)  ## put the style right
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)  ## regenerate the pages that are made from code
	$(BIN)/python -m burnish.config.reference docs/configuration.md
	$(BIN)/python -m burnish.observability.metric_names docs/metrics.md

# Strict: a link or an anchor that leads nowhere, or a page that the navigation forgets, is an error. (Not with --quiet,
# which makes MkDocs overlook its own warnings.)
site: export NO_MKDOCS_2_WARNING := 1
site: $(INSTALLED)  ## build the documentation's site into build/site
	$(BIN)/mkdocs build --strict

# setuptools packs whatever an earlier build has left in build/lib, so nothing may be left there.
wheel: $(INSTALLED)  ## build the wheel into dist/
	rm -rf build/lib build/bdist.*
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .

hooks: $(INSTALLED)  ## run the style checks before every commit
	$(BIN)/pre-commit install

clean:  ## remove .venv, runs and everything that was built
	rm -rf $(VENV) runs build dist

# PyTorch first and pinned: a looser word would bring gigabytes of GPU libraries to a laptop.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,sentiment,instructions,json-schema,ray,serve]'
	touch $@
