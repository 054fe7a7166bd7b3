# Tandem: `make` alone lists what there is. Every target does its own set-up, and skips it when nothing changed.

ENGINE ?= sglang
JOBS ?= 3
BIN := .venv/bin
export PYTHON
# Where an environment forbids Python to keep what it has compiled, each process compiles SGLang and torch for 10 s.
export PYTHONDONTWRITEBYTECODE :=

ifeq ($(filter sglang sim vllm,$(ENGINE)),)
$(error ENGINE is sglang, vllm or sim, not '$(ENGINE)')
endif

# The sim engine needs no SGLang, so neither does its set-up.
# vLLM's pins and SGLang's exclude each other, so that vLLM has an environment of its own.
LEVEL := $(if $(filter sim,$(ENGINE)),lean,$(if $(filter vllm,$(ENGINE)),vllm,full))
ENGINE_BIN := $(if $(filter vllm,$(ENGINE)),.venv-vllm,.venv)/bin

.DEFAULT_GOAL := help
.PHONY: help demo up down test check simulation digests fuzz fuzz-parsers conversations client-test long-test playground-pictures stress chaos soak mutants promises proto monitoring settings fields lifecycle chart chart-test cluster-test bench model lock engine-next vllm-next wheels install-test hand-overs why-causes vllm vllm-test vllm-long-test vllm-chaos site top-pictures plot-pictures lean full clean hand-overs-sglang

help: ## list these targets
	@echo "Targets (ENGINE=sglang and ENGINE=vllm run real engines on the CPU, ENGINE=sim needs no torch):"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 29

demo: $(LEVEL) ## run a request through prefill and decode workers and show what happened
	$(ENGINE_BIN)/tandem demo --engine $(ENGINE)

up: $(LEVEL) ## start the same stack and leave it running; prints its address and a curl line
	$(ENGINE_BIN)/tandem up --engine $(ENGINE) --detach

down: lean ## stop what `make up` started
	$(BIN)/tandem down

wheels: lean ## build the wheels of all distributions into dist/
	$(BIN)/uv build --wheel --all-packages --no-build-isolation --offline --python $(BIN)/python --out-dir dist

install-test: lean ## install the wheels from the package index, and try them (ARGS="--python python3.13")
	. scripts/uv_environment.sh && $(BIN)/python tests/e2e/installed.py $(ARGS)

test: full ## run the tests, in three processes (JOBS=8; ARGS="-k name" is passed to pytest)
	$(BIN)/python -m pytest -m "not long" --numprocesses $(JOBS) --no-loadscope-reorder --rerun-failed $(ARGS)

check: lean ## style, types, architecture and generated code
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/generate_proto.py --check
	$(BIN)/python scripts/generate_settings.py --check
	$(BIN)/python scripts/generate_field_table.py --check
	$(BIN)/python scripts/generate_sglang_page.py --check
	$(BIN)/python scripts/generate_vllm_page.py --check
	$(BIN)/python -m monitoring --check
	$(BIN)/python scripts/generate_chart.py --check
	$(BIN)/python tests/mutation/run.py --check
	$(BIN)/python scripts/check_measured.py

simulation: lean ## run 20,000 seeds of the whole path in virtual time (ARGS="--seeds N")
	$(BIN)/python tests/simulation/run.py $(ARGS)

digests: lean ## see that clients, routers and workers say what they said (ARGS=--write: record it)
	$(BIN)/python tests/simulation/digests.py $(ARGS)

fuzz: lean ## give every edge spoilt inputs; goes on where it ended (ARGS="--minutes 30 --seed 7")
	$(BIN)/python tests/fuzz/run.py $(ARGS)

fuzz-parsers: lean ## give the parsers of answers 10,000 spoilt outputs of each family (ARGS="--seed 7")
	$(BIN)/python tests/fuzz/parsers.py $(ARGS)

hand-overs: lean ## 1,000,000 hand-overs of the sim engine over a transfer that misbehaves (ARGS="--seed 7")
	$(BIN)/python kits/sim/tests/handover_mischief.py --hand-overs 1000000 $(ARGS)

hand-overs-sglang: full ## 10,000 hand-overs between real SGLang engines, likewise (ARGS="--hand-overs 300 --mutants")
	$(BIN)/python tests/contract/wrong_kv.py $(ARGS)

conversations: lean ## read 100,000 random conversations with the store of prefixes and without (ARGS="qwen3")
	$(BIN)/python tests/conversations/run.py $(ARGS)

stress: lean ## 200 threads, then 5,000 tasks at executors whose router is killed (ARGS="--seconds 60")
	$(BIN)/python tests/e2e/executor_stress.py $(ARGS)

client-test: lean ## run other people's clients, and the playground in Chromium (ARGS="--only langchain")
	. scripts/uv_environment.sh && $(BIN)/python tests/clients/run.py $(ARGS)

long-test: full ## run what `make test` leaves out: more of real engines, an hour (ARGS="-k unequal")
	$(BIN)/python -m pytest -m long --numprocesses $(JOBS) --no-loadscope-reorder --rerun-failed $(ARGS)

playground-pictures: full ## take the pictures of docs/playground.md, in Chromium
	$(BIN)/python tests/clients/playground_pictures.py

top-pictures: lean ## take the pictures of `tandem top` in docs/cli.md, of a sim stack under load
	$(BIN)/python scripts/draw_top.py $(ARGS)

plot-pictures: lean ## take the pictures of plots in docs/cli.md and docs/replay.md, of a sim stack and a replay
	$(BIN)/python scripts/draw_plots.py

chaos: lean ## strike real processes under load with faults of each kind (ARGS="--seed 7 --only router")
	@[ -d build/faketime ] || scripts/unpack_debian_packages.sh build/faketime libfaketime || true
	$(BIN)/python tests/chaos/run.py $(ARGS)

vllm-chaos: vllm ## the same with vLLM workers (ARGS="--only decode")
	@[ -d build/faketime ] || scripts/unpack_debian_packages.sh build/faketime libfaketime || true
	.venv-vllm/bin/python tests/chaos/run.py --engine vllm $(ARGS)

why-causes: lean ## slow requests down for twenty causes, and see which ones `tandem why` names (ARGS="--only slots")
	$(BIN)/python benchmarks/why_causes.py $(ARGS)

soak: lean ## let real processes run for long while clients come and go (ARGS="--minutes 30")
	$(BIN)/python tests/chaos/soak.py $(ARGS)

mutants: lean ## try every deliberate bug of tests/mutation: simulation and tests must notice it
	$(BIN)/python tests/mutation/run.py $(ARGS)

promises: lean ## count what is promised, held by a test, or a written gap
	$(BIN)/python tests/promises.py $(ARGS)

proto: lean ## generate tandem/v1 from proto/
	$(BIN)/python scripts/generate_proto.py

monitoring: lean ## generate the dashboards and rules of helm/tandem from the components' metrics
	$(BIN)/python -m monitoring

settings: lean ## generate docs/configuration.md from the settings classes
	$(BIN)/python scripts/generate_settings.py

fields: lean ## generate the tables of all fields in docs/api.md from the rules by which bodies are read
	$(BIN)/python scripts/generate_field_table.py

lifecycle: lean ## count the calls of a request and a token, into docs/request-lifecycle.md
	$(BIN)/python benchmarks/token_calls.py --page $(ARGS)

chart: lean ## generate the schema, README table and manifests of helm/tandem
	$(BIN)/python scripts/generate_chart.py

chart-test: lean ## render helm/tandem with every set of values, and hold it to its rules
	$(BIN)/python -m pytest tests/chart tests/monitoring $(ARGS)

cluster-test: lean ## install the chart on a Kubernetes cluster and try it: docs/kubernetes/testing.md
	$(BIN)/python -m pytest tests/cluster tests/chart/test_chart_helms.py --timeout=900 --rerun-failed $(ARGS)

bench: lean ## CPU cost of a streamed token, with the sim engine
	$(BIN)/python benchmarks/token_cost.py $(ARGS)

model: full ## train model/tandem-tiny again (docs/model.md says how long it takes)
	$(BIN)/python model/make_model.py $(ARGS)

site: ## build the documentation's site into build/site/html (ARGS=--ask: ask its search in Chromium)
	scripts/build_site.sh $(ARGS)

lock: lean ## resolve pyproject.toml into constraints.txt again (ARGS=--upgrade for newer versions)
	scripts/lock.sh $(ARGS)

engine-next: lean ## see that the newest SGLang there is serves, in an environment of its own (SGLANG=0.5.22)
	scripts/engine_next.sh sglang $(SGLANG)

vllm-next: lean ## the same of vLLM (VLLM=0.31.0)
	scripts/engine_next.sh vllm $(VLLM)

lean: ## set up .venv without torch
	@scripts/set_up.sh lean

full: ## set up .venv with SGLang: about 3 GB to download
	@scripts/set_up.sh full

vllm: ## set up .venv-vllm with vLLM: about 3 GB to download
	@scripts/set_up.sh vllm

vllm-test: vllm ## run what needs vLLM: the contract of engines (ARGS="-k forced")
	.venv-vllm/bin/python -m pytest -m "vllm and not long" kits/vllm/tests tests/contract $(ARGS)

vllm-long-test: vllm ## run what takes long with vLLM: 240 mixed requests, hand-overs taken late, processes that die
	.venv-vllm/bin/python -m pytest -m "vllm and long" kits/vllm/tests tests/contract \
	    tests/e2e/test_vllm_equality.py tests/chaos/test_chaos_vllm.py $(ARGS)

clean: ## remove .venv, caches and build products
	rm -rf .venv .venv-vllm .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
