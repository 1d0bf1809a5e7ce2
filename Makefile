# Two commands for a newcomer: `make demo` and `make test`. Each sets up all it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test check format bench bench-faults soak peers clean

demo: $(VENV)/.installed
	$(BIN)/penstock demo

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.soak $(ARGS)

# Real faults around real loaders, and whether the diagnosis names them: three quarters of an hour; FUSE and cgroups need root.
bench-faults: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.faults $(ARGS)

# The loaders we are raced against, in an environment outside the tree; `make bench` makes it too if it is not there.
peers: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.peers.environment

clean:
	rm -rf $(VENV) demo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -U pip
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@
