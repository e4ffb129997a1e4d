# Every target sets up what it needs: a virtual environment in .venv, installed once.
PYTHON ?= python3
# The tensors of the tests are small: two processes of one thread each, file by file.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help demo test check lint clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s  %s\n", $$1, $$2 }' Makefile

demo: $(INSTALLED) ## run the demonstration (options: make demo ARGS="--help")
	$(BIN)/arcsm demo $(ARGS)

test: lint ## linters, types, layers and every test
	$(PYTEST)

check: lint ## the same without the slow tests
	$(PYTEST) -m "not slow"

lint: $(INSTALLED) ## linters, types and layers alone
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

clean: ## remove the environment, the caches and the demonstration's output
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	rm -f arcsm-demo.html arcsm-report.html
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The constraints keep every installation at the versions that were tested.
$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
	  echo "arcsm needs Python 3.10 or newer as '$(PYTHON)';" \
	       "name another one with: make PYTHON=/path/to/python" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	@touch $@
