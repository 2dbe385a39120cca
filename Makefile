# Two commands: `make serve` and `make test`, and `make serve-gpu` with GPUs. They set up what they need and say what they do.
CONFIG ?= config/serve.yaml
PYTHON ?= $(firstword $(shell command -v python3.11 python3.12 python3 2>/dev/null))
BIN := .venv/bin
PIP_INSTALL := install --quiet --disable-pip-version-check --no-deps --no-compile --require-hashes
SCENARIO ?= zero-to-n-to-zero
GPU_VENV ?= .venv-gpu
GPU_PYTHON ?= $(GPU_VENV)/bin/python
LOADTEST_CONFIG ?= config/serve.zero.yaml
WAITING := $(addprefix tests/,haproxy loadtests runner telemetry)

.PHONY: help serve serve-gpu test test-unit test-waiting test-integration test-long test-gpu-stack fuzz simulate lint loadtest chaos soak bench-idle bench-scale bench-checks bench-policy cold-start gpu-proof chart pictures setup setup-gpu setup-dev lock licenses sbom audit clean

help:
	@echo 'make serve [CONFIG=...] [ARGS=--verbose] set up, then serve config/serve.yaml or CONFIG until Ctrl-C'
	@echo 'make serve-gpu CONFIG=... [ARGS=...]     set up for NVIDIA GPUs, then serve CONFIG until Ctrl-C'
	@echo 'make test                               set up, then lint, type-check and test: 10 to 15 minutes'
	@echo 'make test-long                          the tests that make test leaves out, in over half an hour'
	@echo 'make test-gpu-stack [GPU_VENV=...]       the packages for GPUs with fake drivers, on a machine without a GPU'
	@echo 'make fuzz [SEED=... MINUTES=5]          odd requests as a flood on a server of its own, from a seed'
	@echo 'make simulate [MINUTES=5]               the request path in worlds of new seeds, on a simulated clock and network'
	@echo 'make loadtest [SCENARIO=...]            a server of its own from zero to N and back, judged and drawn'
	@echo 'make chaos [ARGS=...]                   kill and stop each process under load, and print what clients saw'
	@echo 'make soak [MINUTES=120 ARGS=...]         every API for two hours, and whether the memory of a process grows'
	@echo 'make bench-idle [ARGS=...]               wake-ups and CPU of each process while no request comes'
	@echo 'make bench-scale [ARGS=...]              cost of the ingress and the policy with up to 1,000 fake engine replicas'
	@echo 'make bench-checks [ARGS=...]             what keys, tokens and budgets cost a request'
	@echo 'make bench-policy                       every autoscaling policy on recorded traffic, by its targets'
	@echo 'make cold-start [ARGS=--fresh]          from zero to the first token by phase, beside vllm serve'
	@echo 'make gpu-proof [GPU_PYTHON=... ARGS=...] measure a GPU stage by stage, and write one page'
	@echo 'make chart                              write what is generated of the Helm chart, and k8s/'
	@echo 'make pictures                           draw docs/images/*.svg from the .dot files (needs graphviz)'
	@echo 'make lock [ARGS=--upgrade]              resolve the lock files (needs uv), and list licences'
	@echo 'make licenses                           check the licences of the locked packages, and list them'
	@echo 'make sbom [ARGS=...]                    bills of materials of the images, in build/sbom'
	@echo 'make audit                              known vulnerabilities of the locked packages'
	@echo 'make clean                              remove .venv and .venv-gpu'

serve: setup
	@exec $(BIN)/tideserve run $(CONFIG) $(ARGS)

serve-gpu: CONFIG = config/serve.gpu.yaml
serve-gpu: setup-gpu
	@exec $(GPU_VENV)/bin/tideserve run $(CONFIG) $(ARGS)

# Without bytecode each of pytest's processes would compile its plugins and all test modules anew: 10 s.
test: export PYTHONDONTWRITEBYTECODE :=
test: .venv/cpu.done
	@# Each of the other installations mostly waits for an index, or unpacks files on one core.
	@$(MAKE) --no-print-directory --jobs 3 setup-dev
	@echo '== pytest: the accuracy of the load-test client, which needs the machine to itself'
	@$(BIN)/python -m pytest tests/loadtests/client/test_known_delays.py
	@# Unit tests leave a quarter of two cores idle, which lint and then the tests that mostly wait use.
	@# Integration tests come after them: beside each other they took 44 minutes, and the slow servers failed tests.
	@$(MAKE) --no-print-directory --keep-going --jobs 2 lint test-unit test-waiting; units=$$?; \
		$(MAKE) --no-print-directory test-integration && exit $$units

test-unit:
	@echo '== pytest: unit tests'
	@# Neighbours stay in one process, which renders, compiles and makes up once what they share.
	@nice -n 5 $(BIN)/python -m pytest --numprocesses 2 --dist worksteal -p no:schemathesis \
		$(WAITING:%=--ignore %) --ignore tests/integration

test-waiting:
	@echo '== pytest: unit tests that mostly wait for a server or a clock'
	@$(BIN)/python -m pytest -p no:schemathesis $(WAITING) --ignore tests/loadtests/client/test_known_delays.py

test-integration:
	@echo '== pytest: integration tests'
	@# One process: beside the tests of another server, metrics now and then come later than the tests wait. Only
	@# the start of the second server is beside the tests of the first, which mostly wait.
	@$(BIN)/python -m pytest tests/integration

lint: setup-dev
	@echo '== ruff'
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@echo '== import contracts'
	@$(BIN)/lint-imports --no-logo
	@echo '== mypy'
	@nice $(BIN)/mypy

loadtest: setup
	@exec $(BIN)/tideserve loadtest $(SCENARIO) --serve $(LOADTEST_CONFIG) $(ARGS)

chaos: setup
	@exec $(BIN)/python -m benchmarks.chaos $(ARGS)

soak: MINUTES ?= 120
soak: setup
	@exec $(BIN)/python -m benchmarks.soak --minutes $(MINUTES) $(ARGS)

bench-idle: setup
	@exec $(BIN)/python -m benchmarks.idle $(ARGS)

bench-scale: setup
	@exec $(BIN)/python -m benchmarks.scale $(ARGS)

bench-checks: setup
	@exec $(BIN)/python -m benchmarks.request_checks $(ARGS)

bench-policy: setup
	@exec $(BIN)/python -m benchmarks.autoscaling $(ARGS)

cold-start: setup
	@exec $(BIN)/python -m benchmarks.cold_start $(ARGS)

# Installs nothing: on a machine with a GPU, GPU_PYTHON has vLLM for it.
gpu-proof:
	@PYTHONPATH=$(CURDIR) exec $(GPU_PYTHON) -m benchmarks.gpu_proof $(ARGS)

test-long: setup-dev .venv/checkov.done
	@$(BIN)/python -m pytest -m 'long or hypothesis' --hypothesis-profile new-examples tests

# Installs 8.3 GB and takes half an hour, so that `make test` leaves it out.
test-gpu-stack: setup-dev setup-gpu
	@GPU_STACK=$(abspath $(GPU_VENV)) $(BIN)/python -m pytest -p no:schemathesis -v --timeout 1800 tests/gpu_stack

fuzz: setup-dev
	@FUZZ_SEED=$(SEED) FUZZ_MINUTES=$(MINUTES) $(BIN)/python -m pytest -m long -s tests/integration/test_flood.py

simulate: MINUTES ?= 5
simulate: setup-dev
	@$(BIN)/python -m pytest -p no:schemathesis tests/simulation --minutes $(MINUTES)

chart: setup-dev
	@$(BIN)/python -m tools.chart

pictures:
	@for file in docs/images/*.dot; do dot -Tsvg $$file -o $${file%.dot}.svg; done

setup: .venv/cpu.done
setup-gpu: $(GPU_VENV)/gpu.done
setup-dev: .venv/dev.done .venv/tools.done .venv/moto.done

.venv/cpu.done: requirements/cpu.txt requirements/install.sh pyproject.toml
	@requirements/install.sh $(PYTHON) cpu .venv
	@touch $@

$(GPU_VENV)/gpu.done: requirements/gpu.txt requirements/install.sh requirements/link-cuda.sh pyproject.toml
	@requirements/install.sh $(PYTHON) gpu $(GPU_VENV)
	@touch $@

.venv/dev.done: requirements/dev.txt .venv/cpu.done
	@echo '== installing the test tools'
	@$(BIN)/pip $(PIP_INSTALL) -r requirements/dev.txt
	@touch $@

# Environments of their own: these ask for other versions of packages that we have.
.venv/checkov.done .venv/moto.done: .venv/%.done: requirements/%.txt .venv/cpu.done
	@echo '== installing $*'
	@$(BIN)/python -m venv --without-pip .venv/$*
	@$(BIN)/pip --python .venv/$*/bin/python $(PIP_INSTALL) -r $<
	@touch $@

.venv/tools.done: requirements/tools.sh .venv/cpu.done
	@requirements/tools.sh
	@touch $@

lock: setup-dev
	@requirements/lock.sh $(ARGS)
	@$(BIN)/python -m tools.supply_chain.inventory

licenses: setup-dev
	@exec $(BIN)/python -m tools.supply_chain.inventory

sbom: setup-dev
	@exec $(BIN)/python -m tools.supply_chain.sbom --out build/sbom $(ARGS)

audit: setup-dev
	@exec $(BIN)/python -m tools.supply_chain.audit $(ARGS)

clean:
	rm -rf .venv .venv-gpu
