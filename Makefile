# Two commands matter: `make demo` and `make test`. Each sets up what it needs, also on a fresh machine.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/pytest -n 3 --dist loadgroup

.PHONY: others mutants test-costs fresh bench-gpu pytorch client-platforms agent-packages docs notices release calibrate load mutations old-and-new large memory recipes coverage compile-time round-trip onnx-standard inner-loops instructions help demo test test-all up down check format golden bench screenshots pages test-224 races soak fuzz states same set-up set-up-test clean agent hostile mistakes sandbox-cost chaos fuzz-api uploads fuzz-models

help:                ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

demo: set-up         ## the whole story: farm up, compile, fine-tune on agents, report, farm down
	@$(BIN)/python -m examples.demo

test: set-up-test    ## the tests; the linter and the type checker are among them
	$(PYTEST)

test-all: set-up-test  ## every case of every test: more models, boards, pages and seeds (over an hour)
	$(PYTEST) tests tests/thorough -m "not resolution_224 and not soak"

fresh:               ## demo, test and up on a minimal Debian 12 where nothing is installed, made by root (ORDER=test-first ONLY=up)
	@$(PYTHON) -m scripts.fresh $(if $(ORDER),--order $(ORDER)) $(if $(ONLY),--only $(ONLY))

up: set-up           ## start the farm on this machine and leave it running
	@$(BIN)/pockfarm up

pytorch:             ## PyTorch beside the farm in .venv, for models of your own
	@$(PYTHON) -m scripts.set_up pytorch

down:                ## stop the farm
	@$(BIN)/pockfarm down

check: set-up-test   ## linter and type checker
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: set-up-test  ## rewrite the sources in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

agent: set-up        ## the agent as one file for boards, build/pockfarm-agent.pyz, the same bytes each time
	@$(BIN)/python -m service.admin agent-file build/pockfarm-agent.pyz

golden: set-up       ## renew the kept descriptions (openapi.json, schemas, what passes do), to be read in the diff
	$(BIN)/python -m service.admin openapi > openapi.json.new
	mv openapi.json.new openapi.json
	$(BIN)/python -m service.store.states > docs/states.md
	$(BIN)/python -m scripts.synchronous
	$(BIN)/pockfarm schema plan > docs/schema/plan.json
	$(BIN)/pockfarm schema spec > docs/schema/spec.json
	$(BIN)/python -m tests.compiler.goldens
	$(BIN)/python -m tests.onnx_standard.page

mutants: set-up-test ## 60 small faults in the sources: which does `make test` find, and which only `make test-all`? Goes on (SEED= HOURS=)
	$(BIN)/python -m tests.mutation_testing --seed $(or $(SEED),37) --hours $(or $(HOURS),3)

test-costs: set-up-test  ## the tests, with the processor time of each folder
	$(BIN)/python -m pytest -p tests.costs -n 3 --dist loadgroup

notices: set-up-test  ## renew THIRD_PARTY.md: what is used of others, by the metadata of the packages installed here
	$(BIN)/python -m scripts.third_party > THIRD_PARTY.md.new
	mv THIRD_PARTY.md.new THIRD_PARTY.md

docs: set-up-test    ## the documentation as a site, which the farm serves at /docs; warnings and dead links are errors
	$(BIN)/python -m scripts.manual

release: set-up-test  ## the source distribution, the wheel and their digests in dist/, of what is committed
	$(BIN)/python -m scripts.release

client-platforms: set-up-test  ## the client on Linux, macOS and Windows: types by mypy, wheels for Python 3.9 to 3.14 by pip (asks the index)
	$(BIN)/python -m scripts.client_platforms

agent-packages: set-up-test  ## the agent's packages: pins for Python 3.9, installed as docs/agent.md says, and run (asks the index)
	$(BIN)/pytest -n 0 tests/agents/from_the_index.py

bench: set-up-test   ## speed and memory beside other frameworks, both sides in one run
	$(BIN)/python -m benchmarks

bench-gpu: set-up-test  ## steps for an NVIDIA GPU, built here; checked and measured beside PyTorch if there is one, else how they are carried to it
	$(BIN)/python -m benchmarks.gpu bench build/bench-gpu

memory: set-up-test  ## what steps need in memory, planned and measured, what less of it costs, and the ancestor's plan for MCUNet
	$(BIN)/python -m benchmarks.memory

inner-loops: set-up-test  ## what inner loops can reach on the boards' cores, by llvm-mca (apt-get install llvm-19)
	@for target in raspberry-pi-4 raspberry-pi-5; do $(BIN)/python -m benchmarks.inner_loops --target $$target; done

instructions: set-up-test  ## instructions of a step on a board against those kept (apt-get install qemu-user)
	$(BIN)/python -m benchmarks.instructions

screenshots: set-up-test  ## every dashboard page as PNG in build/screenshots
	$(BIN)/python -m tests.dashboard.screenshots

pages: set-up-test   ## of each page, with 100,000 runs: processor time, bytes, rules of axe broken at each width (PAGES="runs job-done" RESULTS= AXE=no)
	$(BIN)/python -W ignore -m tests.dashboard.table $(PAGES) $(if $(RESULTS),--results $(RESULTS)) $(if $(AXE),--no-axe)

test-224: set-up-test  ## correctness at full image size
	$(BIN)/pytest -m resolution_224

onnx-standard: set-up-test  ## the ONNX package's own cases by operator, their gradients, 200 in binaries (ONLY=pattern)
	$(BIN)/python -W ignore -m tests.onnx_standard.table $(ONLY)
	$(BIN)/python -W ignore -m tests.onnx_standard.gradients $(ONLY)
	$(BIN)/python -W ignore -m tests.onnx_standard.binaries

recipes: set-up       ## fine-tune Keras and Flax models by their recipes, each in an environment of its own
	@$(BIN)/python -m examples.recipes

same: set-up-test    ## does BEFORE=<another checkout that has this target> compile the same steps?
	cd $(BEFORE) && PYTHONPATH=$$PWD $(CURDIR)/$(BIN)/python -m benchmarks.equivalence record $(CURDIR)/build/before.json
	$(BIN)/python -m benchmarks.equivalence record build/after.json
	$(BIN)/python -m benchmarks.equivalence compare build/before.json build/after.json

old-and-new: set-up-test  ## steps built by BEFORE=<another checkout> and by this one, taking turns: is one slower?
	$(BIN)/python -m benchmarks.old_and_new $(BEFORE)

states: set-up-test  ## owners, devices, operators and time in any order, on both databases (EXAMPLES=...): the record stays exact
	$(BIN)/python -m tests.service.story_campaign --examples $(or $(EXAMPLES),300)

fuzz: set-up-test    ## models that are nearly right, through the whole compiler, for ten minutes (MINUTES=... or MODELS=...)
	POCKFARM_VERIFY=each-pass $(BIN)/python -m tests.compiler.frontend.carrying_on --minutes $(or $(MINUTES),10) --models $(or $(MODELS),0)

fuzz-api: set-up-test  ## requests drawn from the API's description, on a real API process (CASES= SEED= DATABASE=): failures, p99, memory
	$(BIN)/python -m tests.thorough.requests --cases $(or $(CASES),20000) --seed $(or $(SEED),1) --database $(or $(DATABASE),sqlite)

fuzz-models: set-up-test  ## models of which one field of the format is changed, through the worker's child; goes on with its log (MODELS= SEED=)
	$(BIN)/python -m tests.workers.mutants --models $(or $(MODELS),1000) --seed $(or $(SEED),1) --log build/mutants-$(or $(SEED),1).jsonl

others: set-up-test  ## ONNX files below FOLDER= brought as a user would, beside ONNX Runtime; a line for each
	$(BIN)/python -m tests.others $(FOLDER)

coverage: set-up-test  ## the model zoo by every exporter, a step of each against the module; writes docs/coverage.md (hours)
	$(BIN)/python -m tests.zoo

compile-time: set-up-test  ## processor time of each stage as models grow deeper, of a BERT-base and a wide DenseNet-121
	$(BIN)/python -m tests.zoo.compile_time --whole

round-trip: set-up-test  ## models out and back by fine_tune, beside PyTorch in float64 and ONNX Runtime; ten minutes
	$(BIN)/python -W ignore -m tests.round_trip

large: set-up-test   ## a module of 2.3 GB out and back, here and by a farm, with peaks of memory (ACTS="compile here farm"); 30 GB of disk
	$(BIN)/python -W ignore -m tests.large $(ACTS)

mutations: set-up-test ## changes to signed assignments, enrolments, offers, reports, receipts, key lists and bundles: none is accepted (MUTATIONS= SEED=)
	$(BIN)/python -m tests.mutations.campaign --mutations $(or $(MUTATIONS),10000) --seed $(or $(SEED),1)

hostile: set-up-test  ## hostile binaries through the agent, at each level of isolation that this machine has; prints the table
	$(BIN)/python -m tests.thorough.hostile.table

mistakes: set-up-test ## mistakes that people make, each made for real, and what is said to them (ONLY="build exec machine farm sdk api admin")
	$(BIN)/python -W ignore -m tests.thorough.mistakes $(ONLY)

sandbox-cost: set-up-test  ## a real step with the least and with the whole confinement, taking turns; fails if one is shown to be slower by over 1% (BUNDLE=file.pfb PAIRS=)
	$(BIN)/python -m benchmarks.confined $(BUNDLE) --pairs $(or $(PAIRS),80)

calibrate: set-up-test ## are measurements and what is said of them right? (PARTS="simulated here" TRIALS= SEED= NOISES=other); goes on with its log
	$(BIN)/python -m tests.thorough.calibration $(PARTS) --seed $(or $(SEED),1) --noises $(or $(NOISES),chosen) $(if $(TRIALS),--trials $(TRIALS))

uploads: set-up-test  ## 2 GiB through ten cut connections into a real API process, and its memory meanwhile
	$(BIN)/python -m tests.large.uploads

chaos: set-up-test   ## faults in flight over every part of a farm: what was lost, doubled, late (FAULTS= MINUTES= SEED= DATABASE=)
	$(BIN)/python -m tests.thorough.chaos --faults $(or $(FAULTS),300) --seed $(or $(SEED),1) --minutes $(or $(MINUTES),60) --database $(or $(DATABASE),postgresql) --log build/chaos-$(or $(DATABASE),postgresql)-$(or $(SEED),1).jsonl

load: set-up-test    ## what agents, runs and pages cost in processor time (PARTS="idle empty submit lease heartbeat steady million" DATABASE= SECONDS= RESULTS= RESUME=1)
	$(BIN)/python -W ignore -m tests.load $(PARTS) $(if $(DATABASE),--database $(DATABASE)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(RESULTS),--results $(RESULTS)) $(if $(RESUME),--resume)

races: set-up-test   ## kernels for accelerators with a thread for each item, under gcc's ThreadSanitizer (K=expression)
	$(BIN)/pytest -p tests.compiler.codegen.grid.races tests/compiler/codegen/grid --ignore-glob='*cuda*' -q $(if $(K),-k '$(K)')

soak: set-up-test    ## long endurance runs
	$(BIN)/pytest -m soak --timeout 0

set-up:              ## environment for the farm and the demo
	@$(PYTHON) -m scripts.set_up farm

set-up-test:         ## environment for the tests too
	@$(PYTHON) -m scripts.set_up dev

clean:               ## remove what was built (not the farm's state)
	rm -rf build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
