# Two commands do everything on a fresh machine:
#   make compare      virtual environment, install, train four schemes side by side, report
#   make test         the same environment, then all tests but the slow ones
# Others:
#   make help         this list
#   make check        ruff and mypy
#   make docs         the site, into docs/build: tutorials are executed, pages made from the code
#   make clean        removes environments, runs and caches
# Before a release:
#   make test-slow    the slow tests, about half an hour of one core; ARGS=tests/golden takes some of them
#   make test-oldest  the tests on the oldest versions that pyproject.toml allows, in an environment of its own
#   make test-newest  the tests on the newest versions that pyproject.toml allows, likewise
#   make test-ways    recipes of other tools and trackers, with the packages that docs/ways-out.md names, likewise
#   make stateful     an hour of random walks of a run's folder, each command judged by an oracle; ARGS="--seconds 600 --seed 7"
#   make mutations    changes the code, a place at a time, and says what no test finds; ARGS="geonorm.sphere.*" (minutes) takes a part
# PYTHON picks the interpreter (3.11 to 3.13), VENV the environment's folder, PINS the versions, ARGS is passed on.

PYTHON ?= python3
VENV ?= .venv
PINS ?= constraints.txt
EXTRAS ?= train,hf,test,dev
ARGS ?=
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c $(PINS)
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

.PHONY: help compare test test-slow test-oldest test-newest test-ways stateful mutations check lint types docs clean

help:
	@sed -n 's/^#   //p' Makefile

compare: $(VENV)/.train
	$(BIN)/geonorm compare $(ARGS)

test: $(VENV)/.test
	$(PYTEST) $(ARGS)

test-slow: $(VENV)/.test
	$(PYTEST) -m slow $(ARGS)

mutations: $(VENV)/.test
	$(PIP) mutmut==3.8.1
	$(BIN)/mutmut run $(ARGS)
	$(BIN)/mutmut results

stateful: $(VENV)/.test
	$(BIN)/python tests/stateful/walk.py --seconds 3600 $(ARGS)

test-oldest:
	$(MAKE) VENV=.venv-oldest PINS=constraints-oldest.txt EXTRAS=train,hf,test test

# what an installer takes today; a new transformers needs its bound in pyproject.toml and TESTED in hf/versions.py raised first
test-newest:
	$(MAKE) VENV=.venv-newest PINS=/dev/null EXTRAS=train,hf,test test

# without pins: trackers ask for versions of their own; the page's lines are what is installed
test-ways:
	$(MAKE) VENV=.venv-ways EXTRAS=train,hf,test .venv-ways/.test
	.venv-ways/bin/python -m pip install --quiet -e ".[wandb,trackio]"
	sed -n 's/^pip install \([^#]*\).*/\1/p' docs/ways-out.md | xargs .venv-ways/bin/python -m pip install --quiet
	.venv-ways/bin/python -m pytest -m "slow or not slow" -rs tests/hf/test_ways_out.py tests/lab/runs/test_loggers.py

check: lint types

docs: $(VENV)/.docs
	PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/build $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.test
	$(BIN)/mypy
	for own in experiments/ $(sort $(dir $(wildcard experiments/*/*.py))); do \
		$(BIN)/mypy $${own}*.py || exit 1; done

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("geonorm needs Python 3.11: make PYTHON=python3.13")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.train: pyproject.toml $(PINS) | $(BIN)/python
	$(PIP) -e ".[train]"
	touch $@

$(VENV)/.test: pyproject.toml $(PINS) | $(BIN)/python
	$(PIP) -e ".[$(EXTRAS)]"
	touch $@ $(VENV)/.train

$(VENV)/.docs: pyproject.toml $(PINS) | $(BIN)/python
	$(PIP) -e ".[train,hf,docs]"
	touch $@

clean:
	rm -rf docs/build docs/generated docs/tutorials/runs mutants $(VENV) .venv-oldest .venv-newest .venv-ways runs .pytest_cache .mypy_cache .ruff_cache
