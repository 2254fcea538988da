# Two commands do everything on a fresh machine:
#   make compare    virtual environment, install, train four schemes side by side, report
#   make test       the same environment, then all tests
# PYTHON picks the interpreter (3.11 to 3.13), VENV the environment's folder, ARGS is passed on.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: compare test check lint types clean

compare: $(VENV)/.train
	$(BIN)/geonorm compare $(ARGS)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

check: lint types

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test
	$(BIN)/mypy

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[train]"
	touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e ".[train,hf,test,dev]"
	touch $@ $(VENV)/.train

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
