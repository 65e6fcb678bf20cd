# Everything a person types. `make help` lists it.
PYTHON ?= python3
BIN := .venv/bin
UV := $(BIN)/uv
# A cache of its own, which goes when the packages are in place: in the user's, each .venv would leave Spark's gigabyte.
PIP := $(UV) pip install --quiet --cache-dir .venv/.cache --python $(BIN)/python
INSTALL := $(PIP) --require-hashes --build-constraints lock/build.lock

.DEFAULT_GOAL := help
# Every target that `make help` lists is a word, not a file.
.PHONY: help $(shell awk -F: '/^[a-z-]+:.*\#\# / {print $$1}' $(MAKEFILE_LIST))

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.ready ## create .venv and install the locked packages

dev: .venv/.dev ## the same, with the tools for tests and checks

.venv/.uv: lock/uv.lock
	@echo "  .venv         $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Kalla needs Python 3.11 or newer: set PYTHON=/path/to/python3.11."; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "Creating .venv failed: on Debian install python3-venv, and check the free disk space."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/uv.lock
	@touch $@

# What the build hook (hatch_build.py) makes files from: the protocol of query workers, the libraries of the pages.
ASSETS := src/kalla/web/assets
GENERATED_FROM := src/kalla/query/protocol/control.proto $(addprefix $(ASSETS)/,build.py package-lock.json uplot.js yaml_editor.js)

.venv/.ready: .venv/.uv lock/requirements.lock lock/build.lock lock/node.lock pyproject.toml hatch_build.py $(GENERATED_FROM)
	@echo "  packages      lock/requirements.lock"
	@$(INSTALL) -r lock/requirements.lock
	@if $(BIN)/python $(ASSETS)/build.py --needs-node; then echo "  node          lock/node.lock"; $(INSTALL) -r lock/node.lock; fi
	@echo "  bundled       $(ASSETS)/package-lock.json"
	@$(PIP) --no-deps --no-build-isolation -e .
	@echo "  compiled      src/kalla/reconcile/arrays/compiled_loops.py"
	@$(BIN)/python -m kalla.compiling kalla.reconcile
	@rm -rf .venv/.cache
	@touch $@

# Else each process of the first `kalla up`, or of the tests, compiles the same loops at the same time.
.venv/.compiled: .venv/.ready
	@echo "  compiled      the loops of the other rooms"
	@$(BIN)/python -m kalla.compiling
	@touch $@

.venv/.dev: .venv/.compiled lock/dev.lock
	@echo "  tools         lock/dev.lock"
	@$(INSTALL) -r lock/dev.lock
	@echo "  jars          src/kalla/local/servers/kafka.jars"
	@$(BIN)/python -c 'from kalla.local.servers import jars; jars.fetch("kafka.jars")'
	@rm -rf .venv/.cache
	@touch $@

up: .venv/.compiled ## start the whole system on this machine; Ctrl-C stops it
	@exec $(BIN)/kalla up

demo: .venv/.ready ## reconcile made-up invoices and payments, and show the report
	@exec $(BIN)/kalla demo --folder .kalla/demo

# Much of a test's time is waiting: three processes on two cores, each with servers of its own.
TEST_PROCESSES ?= 3

test: .venv/.dev ## set up and run every test
	@$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder tests

fresh: ## run the demo in a minimal Debian root, as root and as a user (needs root and mmdebstrap)
	@.ci/fresh

reference: .venv/.dev ## the match kernel against the slow, obvious matcher, on thousands of made-up cases
	@HYPOTHESIS_PROFILE=long $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile tests/integration/reconcile/test_against_reference.py tests/integration/reconcile/test_array_path.py

tables-property: .venv/.dev ## dynamic tables of random queries against their SQL, on a thousand made-up cases
	@KALLA_TEST_TABLES_CASES=1000 $(BIN)/python -m pytest -q tests/integration/tables/test_incremental_property.py

tables-tpch: .venv/.dev ## the 22 queries of TPC-H as dynamic tables, over ten batches of changes
	@$(BIN)/python -m tests.tpch $(TPCH_OPTIONS)

differential: .venv/.dev ## random queries against a real Prometheus, and through three query workers (minutes)
	@KALLA_DIFFERENTIAL_QUERIES=$(or $(QUERIES),5000) $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile tests/differential

chaos-query: .venv/.dev ## kill, stop, cut off and drain query workers in the middle of queries, timed; kill an API
	@$(BIN)/python -m tests.chaos_query --report build/chaos-query.json $(CHAOS_OPTIONS)

chaos-tables: .venv/.dev ## kill and stop workers that refresh dynamic tables
	@$(BIN)/python -m tests.chaos_tables $(CHAOS_OPTIONS)

mutants: .venv/.dev ## put every known flaw back and see some test turn red
	@KALLA_TEST_MUTANTS=all $(BIN)/python -m pytest -q tests/mutations

unit: .venv/.dev ## the tests that need no server
	@$(BIN)/python -m pytest -q -p no:cacheprovider tests/unit --durations=0 --durations-min=1

# Jobs and faults of a chaos run, and whatever else `python -m tests.chaos --help` offers.
CHAOS_JOBS ?= $(if $(LONG),100000,2500)
CHAOS_FAULTS ?= $(if $(LONG),1000,40)
CHAOS_KILLS ?= $(if $(LONG),250,0)
CHAOS_OPTIONS ?=
CHAOS_ONCE_OPTIONS ?= --jobs $(if $(LONG),4000,400) --faults $(if $(LONG),80,8) --every 8 --rate 6

attack: .venv/.dev ## what an attack found and what it did not, as a suite
	@KALLA_TEST_SLOW=1 $(BIN)/python -m pytest -q -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m attack tests

# Cases that schemathesis makes up for each operation.
CONTRACT_CASES ?= 10

api-contract: .venv/.dev ## schemathesis against the real API: its description is true
	@$(BIN)/python -m tests.contract --cases $(CONTRACT_CASES)

chaos: .venv/.dev ## kill, stop and cut off workers and servers; then freeze workers and step the clock; LONG=1: 100,000 jobs, 1,000 faults
	@$(BIN)/python -m tests.chaos --jobs $(CHAOS_JOBS) --faults $(CHAOS_FAULTS) --kills $(CHAOS_KILLS) --report build/chaos.json $(CHAOS_OPTIONS)
	@$(BIN)/python -m tests.chaos --once --report build/chaos-once.json $(CHAOS_ONCE_OPTIONS)

check: .venv/.dev ## format, lint, strict types, import layers, collection of all tests, unit tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -qq --collect-only tests >/dev/null
	@$(BIN)/python -m tests.manifests
	@$(MAKE) --no-print-directory unit

# Go programs and modules that the manifests are checked with, in a folder outside of the repository.
KALLA_TOOLS ?= $(HOME)/.cache/kalla/tools
export KALLA_TOOLS
GO := GOBIN=$(KALLA_TOOLS)/bin GOMODCACHE=$(KALLA_TOOLS)/mod GOCACHE=$(KALLA_TOOLS)/build GOFLAGS=-modcacherw go

manifests: .venv/.dev ## render and check deploy/k8s and the chart; says which tools are missing
	@$(BIN)/python -m tests.manifests

$(KALLA_TOOLS)/bin/kustomize:
	@$(GO) install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1

$(KALLA_TOOLS)/bin/helm:
	@$(GO) install helm.sh/helm/v3/cmd/helm@v3.22.0

kustomize: $(KALLA_TOOLS)/bin/kustomize ## install kustomize with Go (20 s)
	@cd / && $(GO) mod download github.com/kedacore/keda/v2@v2.21.0 github.com/prometheus-operator/prometheus-operator@v0.85.0

manifest-tools: kustomize $(KALLA_TOOLS)/bin/helm ## install kustomize, helm and the definitions of KEDA with Go (minutes)

format: .venv/.dev ## rewrite the code in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: .venv/.uv ## resolve the locks anew
	@lock/resolve

clean: ## remove .venv; the data in .kalla stays
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache

pictures: .venv/.dev ## make the pictures of docs/tutorial.md in Chromium
	@$(BIN)/python examples/bank/pictures.py

bench-propose: .venv/.dev ## profile and propose for two large files
	@$(BIN)/python -m bench.propose

bench-evidence: .venv/.dev ## the pages of exceptions and matches of a large run
	@$(BIN)/python -m bench.evidence_pages

bench-jobs: .venv/.dev ## jobs/s and wake-up latency against procrastinate
	@$(BIN)/python -m bench.jobs

# Sizes, repetitions, and whatever else `python -m bench.reconcile --help` offers.
BENCH_OPTIONS ?=

bench-reconcile: .venv/.dev ## rows/s from sources to evidence against DuckDB, datacompy and Spark SQL
	@$(BIN)/python -m bench.reconcile $(BENCH_OPTIONS)

bench-modes: .venv/.dev ## the same alone, on one machine, on a cluster of two executors
	@$(BIN)/python -m bench.modes $(BENCH_OPTIONS)

bench-stages: .venv/.dev ## where the CPU of a match goes, step by step
	@$(BIN)/python -m bench.stages $(BENCH_OPTIONS)

bench-tables: .venv/.dev ## seconds of a refresh by strategy against FULL, Spark SQL and DuckDB
	@$(BIN)/python -m bench.tables $(BENCH_OPTIONS)

bench-tables-idle: .venv/.dev ## cores that the scheduler takes where no table changes
	@$(BIN)/python -m bench.tables_idle $(BENCH_OPTIONS)

bench-promql: .venv/.dev ## seconds of PromQL queries, samples/s and bytes against Prometheus
	@$(BIN)/python -m bench.promql $(BENCH_OPTIONS)

image-steps: .venv/.dev ## carry out the Dockerfile in fresh Debian roots and run the demo there (needs root and mmdebstrap)
	@$(BIN)/python -m tests.image

bench-sinks: .venv/.dev ## rows/s from Kafka into ClickHouse against a plain Python consumer
	@$(BIN)/python -m bench.sinks $(BENCH_OPTIONS)

chaos-sinks: .venv/.dev ## faults while messages flow from Kafka into ClickHouse; LONG=1: 5M messages, 220 faults
	@$(BIN)/python -m tests.chaos_sinks $(if $(LONG),--messages 5000000 --faults 220 --rate 6000 --every 3 --workers 3,) --report build/chaos-sinks.json $(CHAOS_OPTIONS)

chaos-autoscale: .venv/.dev ## 100 faults for `kalla autoscale` while load rises and falls (minutes)
	@$(BIN)/python -m tests.chaos.autoscale --faults 100

cluster-lab: .venv/.dev kustomize ## real Kubernetes and KEDA scale real workers on this machine (needs root and Go; half an hour)
	@$(BIN)/python -m tests.cluster_lab $(LAB_OPTIONS)
