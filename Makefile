# Everything happens in .venv, which the first use of a target makes. Another Python: make demo PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The environment that is there, unless PYTHON asks for one made by another Python.
MADE := $(VENV)/made-by-$(notdir $(PYTHON))
ifeq ($(origin PYTHON),file)
MADE := $(firstword $(wildcard $(VENV)/made-by-*) $(MADE))
endif
# Taken where .venv holds no PyTorch that satisfies the package; for a CPU build on Linux, install that into .venv first.
TORCH ?= torch==2.13.0
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: demo test check format sanitize sanitize-tests clean
.DELETE_ON_ERROR:

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

# One process for each core, each with one thread; the memory of a process (about 0.5 GB) bounds their number.
WORKERS ?= auto
test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 8 --dist worksteal

check: $(VENV)/installed-dev
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy

format: $(VENV)/installed-dev
	$(BIN)/python -m ruff format
	$(BIN)/python -m ruff check --fix

# The native kernels under AddressSanitizer, UBSan and ThreadSanitizer: random calls for so many seconds each. Needs GCC.
SECONDS ?= 20
sanitize:
	tests/native/sanitize.sh $(SECONDS)

# And the kernels' tests under AddressSanitizer and UBSan. Takes minutes.
sanitize-tests: $(VENV)/installed-dev
	PYTHON=$(BIN)/python tests/native/sanitize.sh $(SECONDS) tests/native tests/models/test_native_pass.py

clean:
	rm -f src/triforce/native/_kernels*
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is missing or older than 3.10: name another one, as in make demo PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(if $(wildcard $(VENV)/made-by-*),--clear) $(VENV) || \
	  { echo "$(PYTHON) cannot make environments: install its venv module (python3-venv)"; exit 1; }
	@touch $@

$(VENV)/installed: pyproject.toml $(wildcard setup.py $(addprefix src/triforce/native/,*.c *.h *.inc)) $(MADE)
	$(BIN)/python -c 'import torch, sys; sys.exit(tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6))' \
	  2>/dev/null || $(PIP) install '$(TORCH)'
	$(PIP) install --quiet -e .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) install --quiet -e '.[dev]'
	@touch $@
