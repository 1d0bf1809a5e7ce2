# Start with `make demo` or `make test`. Each target installs what it needs into .venv the first time.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_BUILD_CONSTRAINT := $(CURDIR)/constraints.txt
# Tests and benchmarks start hundreds of interpreters, and each would compile the package again without bytecode files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all test-gpu test-ray test-bench check format bench bench-gpu bench-store bench-scale bench-faults bench-faults-independent bench-field bench-plan bench-train examples soak peers clean

demo: $(VENV)/.installed-torch
	$(BIN)/penstock demo $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto

# Also the tests marked `slow`, which `make test` leaves to CI: they start many processes that import torch.
test-all: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto -m 'not ray and not bench'

# The tests that are skipped where there is no GPU.
test-gpu: $(VENV)/.installed-dev
	$(BIN)/pytest tests/gpu

# Tests on a real Ray cluster of several nodes on this machine, and of Ray Train: two minutes.
test-ray: $(VENV)/.installed-dev
	$(BIN)/pytest -m ray tests/shards/cluster tests/ranks

# The tests that need a quiet machine: parts of benchmarks, and comparisons of times.
test-bench: $(VENV)/.installed-dev
	$(BIN)/pytest -m bench

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_words.py

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks $(ARGS)

# Benchmarks of the GPU path, for a machine with a GPU.
bench-gpu: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.gpu $(ARGS)

# Loaders reading from an object store with high latency: about ten minutes, in the environment of the peers.
bench-store: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.store $(ARGS)

# The simulation of many ranks against real ranks: four minutes.
bench-scale: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.scale $(ARGS)

soak: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.soak $(ARGS)

# Injects faults around real loaders and checks whether the diagnosis names them: 45 minutes; FUSE and cgroups need root.
bench-faults: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.faults $(ARGS)

# Trainings whose faults were made without knowledge of the rules: an estimated 40 minutes on two quiet cores.
bench-faults-independent: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.faults_independent $(ARGS)

# Public training scripts, fetched beside the checkout; benchmarks/field/__main__.py says how, and how on a GPU machine.
bench-field: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.field $(ARGS)

# Predictions of the model and results of tuning against real DataLoaders: 25 minutes; its disks need root.
bench-plan: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.plan $(ARGS)

# Cost and benefit of the samplers and of the training-step helpers.
bench-train: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.train $(ARGS)

# The worked examples, before and after: at real size with a GPU (about six minutes each), else at toy size.
examples: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.examples $(ARGS)

# Installs the loaders that the benchmarks compare with, in an environment outside the tree; `make bench` does so too.
peers: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.peers.environment

clean:
	rm -rf $(VENV) demo

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

# Compiles the decoder of native/, where a C compiler and the headers of libjpeg-turbo are installed.
$(VENV)/.installed: pyproject.toml constraints.txt setup.py $(wildcard native/*) | $(VENV)/bin/python
	$(BIN)/python -m pip install -q -c constraints.txt -U pip
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-torch: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	@touch $@
