# Two commands do everything on a fresh machine:
#   make compare    virtual environment, install, train four schemes side by side, report
#   make test       the same environment, then all tests but the slow ones
# Before a release:
#   make test-slow     the slow tests, about half an hour of one core; ARGS=tests/golden takes some of them
#   make test-oldest   the tests on the oldest versions that pyproject.toml allows, in an environment of its own
#   make planted       plants errors one at a time and says which test finds each, half an hour of one core
# PYTHON picks the interpreter (3.11 to 3.13), VENV the environment's folder, PINS the versions, ARGS is passed on.

PYTHON ?= python3
VENV ?= .venv
PINS ?= constraints.txt
EXTRAS ?= train,hf,test,dev
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(PINS)
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: compare test test-slow test-oldest planted check lint types clean

compare: $(VENV)/.train
	$(BIN)/geonorm compare $(ARGS)

test: $(VENV)/.test
	$(PYTEST) $(ARGS)

test-slow: $(VENV)/.test
	$(PYTEST) -m slow $(ARGS)

planted: $(VENV)/.test
	$(BIN)/python tests/planted/run.py $(ARGS)

test-oldest:
	$(MAKE) VENV=.venv-oldest PINS=constraints-oldest.txt EXTRAS=train,hf,test test

check: lint types

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml $(PINS) | $(BIN)/python
	$(PIP) -e ".[train]"
	touch $@

$(VENV)/.test: pyproject.toml $(PINS) | $(BIN)/python
	$(PIP) -e ".[$(EXTRAS)]"
	touch $@ $(VENV)/.train

clean:
	rm -rf $(VENV) .venv-oldest runs .pytest_cache .mypy_cache .ruff_cache
