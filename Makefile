# Two commands for a newcomer: `make demo` and `make test`. Each sets up all it needs, once.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
# Tests and benchmarks start hundreds of interpreters: without bytecode each of them compiles us anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-ways test-gpu test-ray test-bench check format bench bench-gpu bench-store bench-scale bench-faults bench-plan bench-train examples soak peers clean

demo: $(VENV)/.installed-torch
	$(BIN)/penstock demo $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto

# A user's whole ways, each through a dozen processes: two minutes that `make test` leaves to CI.
test-ways: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto -m ways tests/cli tests/examples tests/ranks

# On a machine with a GPU: what `make test` has to skip elsewhere.
test-gpu: $(VENV)/.installed-dev
	$(BIN)/pytest tests/gpu

# A real Ray cluster of several nodes on this machine, and Ray Train: two minutes that `make test` leaves out.
test-ray: $(VENV)/.installed-dev
	$(BIN)/pytest -m ray tests/shards/cluster tests/ranks

test-bench: $(VENV)/.installed-dev
	$(BIN)/pytest -m bench tests/benchmarks

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

# On a machine with a GPU: its tests, then what arrives on the card.
bench-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# A store that answers late, and how much of it each loader delivers: about ten minutes, in the peers' environment.
bench-store: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.store $(ARGS)

# Many ranks as simulated, beside real ones: four minutes.
bench-scale: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.scale $(ARGS)

soak: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.soak $(ARGS)

# Real faults around real loaders, and whether the diagnosis names them: three quarters of an hour; FUSE and cgroups need root.
bench-faults: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.faults $(ARGS)

# What the model predicts and what tuning finds, beside real DataLoaders: 25 minutes; its disks need root.
bench-plan: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.plan $(ARGS)

# Samplers and the helpers of a cheap step: what each costs, what it saves.
bench-train: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.train $(ARGS)

# The worked examples before and after: where there is a GPU at real size, some six minutes each; else at toy size.
examples: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.examples $(ARGS)

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

$(VENV)/.installed-torch: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@
