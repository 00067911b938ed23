# Every command works on a fresh machine: the first one builds .venv from the pinned versions.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
ARGS ?=
JOBS ?= 8

.PHONY: demo test test-plain-cpu test-slow check format docs clean

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
	$(BIN)/python -m pytest -m slow -n auto --maxprocesses $(JOBS) --dist worksteal $(ARGS)

check: $(INSTALLED)  ## style, types and import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(INSTALLED)  ## regenerate the pages that are made from code
	$(BIN)/python -m burnish.config.reference docs/configuration.md
	$(BIN)/python -m burnish.observability.metric_names docs/metrics.md

clean:
	rm -rf $(VENV) runs build dist

# PyTorch first and pinned: a looser word would bring gigabytes of GPU libraries to a laptop.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,sentiment]'
	touch $@
