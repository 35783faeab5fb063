# `make demo` and `make test` set up everything they need in .venv; nothing outside this folder is touched.
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest check format benchmark readme pins clean

VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
READY := $(VENV)/.ready
PYTEST := $(BIN)/pytest -q -n 2 --dist loadfile
OLDEST := .venv-oldest
# All but huggingface, which needs a newer numpy than the core
OLDEST_EXTRAS := demo,pandas,vision,compare
CORE_TESTS := $(addprefix tests/,artifacts density detectors features layers metrics models data/sources data/test_splits.py \
  $(addprefix test_,$(addsuffix .py,calibration extras measures sklearn types)))

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(READY)  ## Train, fit, calibrate and judge: the whole method on embedded data, in about a minute
	$(BIN)/ddu demo

test: $(READY)  ## Run the tests, in random order, on two cores
	$(PYTEST) -m "not slow"

test-slow: $(READY)  ## Run the slow tier: killed processes, second ranks, whole trainings
	$(PYTEST) -m slow

test-oldest: $(READY)  ## Run the core's tests with the oldest versions that pyproject.toml allows
	$(BIN)/uv venv --quiet --clear --no-python-downloads --python 3.11 $(OLDEST)
	VIRTUAL_ENV=$(OLDEST) $(BIN)/uv pip install --quiet --resolution lowest-direct --group test --editable '.[$(OLDEST_EXTRAS)]'
	$(OLDEST)/bin/pytest -q -n 2 -m 'not slow' -W ignore::DeprecationWarning $(CORE_TESTS)

check: $(READY)  ## Formatter, linter, type checker, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)  ## Rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(READY)  ## Speed as ratios against a peer in the same run
	$(BIN)/python -m benchmarks

readme: $(READY)  ## Renew the README's output, numbers and picture from a run of the demo
	$(BIN)/python scripts/readme.py

pins: $(READY)  ## Renew the pinned versions in requirements.txt
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --upgrade --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.txt

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) .venv-* .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements.txt
	@python=$$(for p in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done); \
	if [ -z "$$python" ]; then \
	  echo "ddu needs Python 3.11 or newer and found none: install it, or say where it is with 'make PYTHON=/path/to/python3.11'."; \
	  exit 1; \
	fi; \
	set -e; \
	echo "Setting up $(VENV) with $$python; the first time downloads PyTorch, a few gigabytes."; \
	test -x $(BIN)/python || $$python -m venv $(VENV); \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); \
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --requirements requirements.txt; \
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .; \
	touch $(READY)
