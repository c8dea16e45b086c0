# One short command per task; `make help` lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# What `make serve` passes to `muster serve`; override: make serve ARGS="--data-parallel-size 4".
ARGS   ?= --data-parallel-size 2
# What `make test` passes to pytest; override: make test TESTS="tests/gateway -k stop".
TESTS  ?= tests
# So many test files are run at once, each as a whole and in their order: the long ones of tests/cluster come early. A debugger
# (--pdb) needs WORKERS=0.
WORKERS ?= 2
PYTEST := $(BIN)/python -m pytest
# Without a compiler it says so, and torch computes.
KERNELS := $(BIN)/python -m engine.native >/dev/null || true
PIP    := $(BIN)/python -m pip --disable-pip-version-check -q

.DEFAULT_GOAL := help
.PHONY: help serve test nightly screenshots lint format protos landed bench clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F '\t' '{printf "  make %-11s %s\n", $$1, $$2}'

# python3 -m venv needs the ensurepip module, which Debian packages apart.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Muster needs Python 3.11 or newer; '$(PYTHON)' is older. Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "No venv could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.serve: $(BIN)/python pyproject.toml .ci/constraints.txt
	@echo "Installing Muster and torch into $(VENV); the first time this takes a minute or more"
	$(PIP) install -c .ci/constraints.txt -e '.[cpu]'
	@$(KERNELS)
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml .ci/constraints.txt
	@echo "Installing Muster, torch and the test tools into $(VENV); the first time this takes a minute or more"
	$(PIP) install -c .ci/constraints.txt -e '.[cpu,dev]'
	@$(KERNELS)
	@touch $@ $(VENV)/.serve

serve: $(VENV)/.serve ## Install what is needed, fetch the default model and serve it on two ranks
	@exec $(BIN)/muster serve $(ARGS)

test: $(VENV)/.dev ## Run all tests
	@$(BIN)/muster fetch >/dev/null
	$(PYTEST) -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TESTS)

# What takes too long, or too many packages, for every change; as root the examples install theirs. promtool comes with
# Debian's package prometheus.
nightly: $(VENV)/.dev ## Run what `make test` leaves out or has a short version of
	@$(BIN)/muster fetch >/dev/null
	examples/build go cpp java ruby
	MUSTER_NIGHTLY=1 MUSTER_TEST_EXAMPLES="python node go cpp java ruby" $(PYTEST) tests/examples
	$(BIN)/python -m benchmarks.fuzz
	$(BIN)/python -m benchmarks.structured
	MUSTER_NIGHTLY=1 $(PYTEST) tests/cluster/test_client.py tests/cluster/test_kubernetes.py tests/cluster/test_hung.py \
		tests/cluster/test_expert_parallel.py
	$(BIN)/python -m tests.waves.explore_more
	$(BIN)/python -m benchmarks.silence --minutes 60
	promtool check rules deploy/prometheus/alerts.yml
	promtool check config deploy/prometheus/prometheus.yml
	promtool test rules deploy/prometheus/alerts_test.yml

screenshots: $(VENV)/.dev ## Take the pictures of the page in docs/images anew
	@$(BIN)/muster fetch >/dev/null
	MUSTER_TEST_BROWSER=required MUSTER_SCREENSHOTS=1 $(PYTEST) tests/cluster/test_page.py

lint: $(VENV)/.dev ## Check style, types, the contract and that generated code is fresh
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format -d --exit-code
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/check-protos

format: $(VENV)/.dev ## Format Python and protobuf files
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/buf format -w

protos: $(VENV)/.dev ## Generate Python code and docs/contract.md from protos/
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/generate-protos
	PATH="$(CURDIR)/$(BIN):$$PATH" .ci/generate-contract-page

landed: $(VENV)/.dev ## Save the contract as the one that later versions must understand
	PATH="$(CURDIR)/$(BIN):$$PATH" buf build -o tests/contract/landed.binpb

bench: $(VENV)/.dev ## Measure a running deployment end to end
	$(BIN)/python -m benchmarks.serving $(BENCH)

clean: ## Remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
