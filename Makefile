# `make serve` and `make test` need nothing but Python 3.11 and a package registry. docs/architecture.md describes the tests.
PYTHON ?= python3.11
DEVICE ?= cpu
BIN := .venv/bin

# The engine is three processes that each import torch and vLLM: without kept bytecode a start takes twice as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: serve fleet-demo environment-ray test test-all test-long test-faults test-clients lint docs recordings bench clean environment locks client-locks client-code client-types \
	containers containers-run release console console-pictures

serve: environment  ## the demo: base, two business units, their adapters, on 127.0.0.1:8000
	@$(BIN)/tenora server serve --demo

fleet-demo: environment-ray  ## the demo on two engine replicas of Ray Serve and one server, on this machine
	@$(BIN)/tenora engines demo

# The workers share the tests by file. Files that use the same server run on one of them: see tests/conftest.py.
PARALLEL := -n 2
# These flood a server or measure time, so nothing runs next to them.
ALONE := tests/isolation
# These run a second time, on a server with two engine replicas.
ON_REPLICAS := tests/e2e/test_openai_sdk.py tests/e2e/test_lorax.py tests/engine/test_parity.py tests/engine/test_batch_parity.py

test: environment-ray lint  ## 25 minutes: what is not marked slow, with one real engine, PostgreSQL and S3 over HTTP
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(PYTEST_ARGS)

test-all: test  ## more than an hour: also what is slow, or needs nginx, promtool and Chromium (deploy/ci/prepare.sh)
	$(PYTHON) -m deploy.console.install
	$(PYTHON) -m tests.clients.install
	$(PYTHON) -m tests.deploy.install
	$(BIN)/python -m pytest -m "slow and not long" $(PARALLEL) --ignore=$(ALONE) $(PYTEST_ARGS)
	$(BIN)/python -m pytest --engine ray $(ON_REPLICAS) $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m slow $(ALONE) $(PYTEST_ARGS)
	$(MAKE) containers

test-long: environment-ray  ## what takes a minute or more with real engines or clusters; by hand
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

test-faults: environment-ray  ## each fault of an engine, a database, a store or a server
	$(BIN)/python -m pytest tests/faults $(PYTEST_ARGS)

test-clients: environment  ## published clients, and generators and linters of OpenAPI, against a demo server
	$(PYTHON) -m tests.clients.install
	$(BIN)/python -m pytest tests/clients $(PYTEST_ARGS)

chart: environment  ## the Helm chart: lint, render with each values file, check every object; needs promtool
	$(PYTHON) -m tests.deploy.install
	$(BIN)/python -m pytest tests/deploy $(PYTEST_ARGS)

lint: environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/lint/prose.py

docs: environment  ## write the tables of docs/ that come from the code: settings, commands, error codes
	$(BIN)/python -m deploy.docs.reference

recordings: environment  ## record the pictures of docs/recordings: commands against a demo server; two minutes
	$(BIN)/python -m deploy.docs.recordings

client-code: environment  ## write client/tenora_client/_sync from _async
	$(BIN)/python -m deploy.client.sync

client-types: environment  ## write client/tenora_client/types.py from the OpenAPI document; make test-clients installs the generator
	$(BIN)/python -m deploy.client.types

console-pictures: environment  ## take the pictures of docs/console.md: the journeys of tests/console with the demo; two minutes
	$(BIN)/python -m pytest tests/console/journeys --console-pictures docs/pictures $(PYTEST_ARGS)

console: environment  ## build app/console/static from app/console/web, with Node from PyPI and the packages of its lock
	$(PYTHON) -m deploy.console.install
	$(BIN)/python -m deploy.console.build

containers: environment  ## check the files of images, compose, nginx, Prometheus and the chart; needs deploy/ci/prepare.sh
	@$(PYTHON) -m tests.deploy.install
	@sh deploy/container/install_tools.sh
	sh deploy/checks/run.sh

containers-run: environment  ## build the image and run it with podman, alone and with compose; by hand, half an hour
	@$(PYTHON) -m tests.deploy.install
	@sh deploy/container/install_tools.sh
	$(BIN)/python -m tests.containers $(CONTAINERS_ARGS)

release: environment  ## wheels, context of the image, chart, lists of packages and checksums of HEAD, into dist/
	rm -rf dist
	$(BIN)/python -m deploy.release dist

bench: environment  ## Tenora against vLLM's own server, side by side
	$(BIN)/tenora server bench overhead $(BENCH_ARGS)

environment:
	@$(PYTHON) deploy/install.py --device $(DEVICE)

environment-ray:  ## the environment with Ray, for engine replicas; later runs keep it
	@$(PYTHON) deploy/install.py --device $(DEVICE) --ray

locks: environment  ## compile the pinned locks again
	UV=.tools/bin/uv sh deploy/locks/compile.sh

client-locks:  ## compile the locks of the published clients and of the chart's tools again
	$(PYTHON) -m tests.clients.install --lock
	$(PYTHON) -m tests.deploy.install --lock

clean:  ## the environment and caches; the data in .tenora stays
	rm -rf .venv .tools .clients .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info client/*.egg-info client/build
