# `make serve` and `make test` need nothing but Python 3.11 and a package registry. docs/architecture.md describes the tests.
PYTHON ?= python3.11
DEVICE ?= cpu
BIN := .venv/bin

# The engine is three processes that each import torch and vLLM: without kept bytecode a start takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve test test-all test-clients lint docs bench clean environment locks client-locks

serve: environment  ## the demo: base, two business units, their adapters, on 127.0.0.1:8000
	@$(BIN)/tenora serve --demo

# The workers share the tests by file. All tests of the shared engine run on one of them.
PARALLEL := -n 2 --dist loadgroup
# These flood a server or measure time, so nothing runs next to them.
ALONE := tests/isolation tests/faults tests/unit/app/lab

test: environment lint  ## ten minutes: what is not marked slow, with one real engine, PostgreSQL and S3 over HTTP
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(PYTEST_ARGS)

test-all: test  ## and what is slow, or needs nginx and promtool (deploy/ci/prepare.sh) or the published clients
	$(PYTHON) -m tests.clients.install
	$(BIN)/python -m pytest -m slow $(PARALLEL) $(ALONE:%=--ignore=%) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m slow $(ALONE) $(PYTEST_ARGS)

test-clients: environment  ## published clients, each in an environment of its own, against a demo server
	$(PYTHON) -m tests.clients.install
	$(BIN)/python -m pytest tests/clients $(PYTEST_ARGS)

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/lint/prose.py

docs: environment  ## write the tables of docs/ that come from the code: settings, commands, error codes
	$(BIN)/python -m deploy.docs.reference

bench: environment  ## Tenora against vLLM's own server, side by side
	$(BIN)/tenora bench overhead $(BENCH_ARGS)

environment:
	@$(PYTHON) deploy/install.py --device $(DEVICE)

locks: environment  ## compile the pinned locks again
	UV=.tools/bin/uv sh deploy/locks/compile.sh

client-locks:  ## compile the locks of the published clients again
	$(PYTHON) -m tests.clients.install --lock

clean:  ## the environment and caches; the data in .tenora stays
	rm -rf .venv .tools .clients .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
