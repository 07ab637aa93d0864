# One verb per task. Every verb sets itself up: nothing but Python 3.10 to 3.14 and make is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# What the benchmarks measure against never enters the environment that trains.
BENCH_VENV ?= .venv-bench
BENCH_READY := $(BENCH_VENV)/.ready
# Nor does what makes the site.
DOCS_VENV ?= .venv-docs
DOCS_READY := $(DOCS_VENV)/.ready
# What `make setup` adds to what training needs: make setup EXTRAS=control,games
EXTRAS ?=
# What tests and benchmarks need beside it; a file for each set says that it is there.
DEV := $(VENV)/.ready-dev
DEV_EXTRAS := dev,control,games,films,serve,onnx,search

define CHECK_PYTHON
$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if (3, 10) <= v[:2] <= (3, 14) else f"Python {v[0]}.{v[1]} found; expected 3.10 to 3.14: make PYTHON=python3.11 ...")'
endef

# As it is typed: without one the program plays 1v1, or that of experiment=, env_id= or --resume.
SCENARIO ?= $(scenario)
ARGS ?=
# key=value as the program takes them, typed after the verb: make train scenario=coop seed=3
OWN := PYTHON NUMBER ADDRESS VENV BENCH_VENV DOCS_VENV EXTRAS SCENARIO ARGS SEARCH WHO FOLDER TORCH TORCH_INDEX NAME RUN
TYPED = $(sort $(filter-out $(OWN),$(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name)))))
KEYS = $(foreach name,$(TYPED),'$(name)=$($(name))')
OTHER_KEYS = $(filter-out 'scenario=%,$(KEYS))
GAME = $(if $(SCENARIO),'scenario=$(SCENARIO)')
SEARCH ?= three-stage
WHO ?= $(error WHO: expected a player or a run: make evaluate WHO=blue-master)
FOLDER ?= $(error FOLDER: expected a folder of entries: make cup FOLDER=submissions)
# Which build of torch: cpu, gpu (that of the usual index, CUDA on Linux), or a CUDA version of PyTorch's own index: cu126
TORCH ?= cpu
TORCH_INDEX ?= $(if $(filter-out gpu,$(TORCH)),--extra-index-url https://download.pytorch.org/whl/$(TORCH))
CHECK_TORCH = $(if $(filter cpu gpu cu1%,$(TORCH)),,$(error TORCH: expected cpu, gpu or a version of CUDA such as cu126, got $(TORCH)))
NAME ?= $(error NAME: expected the name of a study: make study NAME=policy-gradients, or another of benchmarks/studies/)
NUMBER ?= $(error NUMBER: expected the number of an assignment: make handout NUMBER=1)
RUN ?= $(error RUN: expected the folder of a run or a cup: make report RUN=runs/mine)

# Each start would compile Ray's and torch's sources again, 8 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup train search evaluate cup report test test-all faults robustness soak soak-serve bench-serve check presence bench-setup bench bench-control bench-device bench-world docs pictures explain results study handout fingerprints players reference-pages doctor image cluster-up clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

INSTALL = tools/install.py $(TORCH_INDEX)

setup: $(READY)  ## virtual environment with the pinned versions; EXTRAS=control,games adds; TORCH=gpu: the build of torch for CUDA (docs/setup.md)
	$(if $(EXTRAS),$(BIN)/python $(INSTALL) '.[$(EXTRAS)]')

$(READY): pyproject.toml constraints.txt
	$(CHECK_TORCH)@$(CHECK_PYTHON)
	@echo "Ray, torch ($(TORCH)) and what else training needs go into $(VENV): up to 2 GB, half a minute or, over a slow line, some, once"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python $(INSTALL) torch .
	@touch $@

$(DEV): $(READY)
	$(BIN)/python $(INSTALL) '.[$(DEV_EXTRAS)]'
	@touch $@

$(VENV)/.ready-%: $(READY)
	$(BIN)/python $(INSTALL) '.[$*]'
	@touch $@

train: $(READY)  ## make train scenario=1v1 seed=3 train.lr=3e-4 [ARGS="--until 2e6"]
	$(BIN)/multigrid-rl train $(GAME) $(OTHER_KEYS) $(ARGS)

search: $(VENV)/.ready-search  ## make search SCENARIO=1v1 SEARCH=three-stage [ARGS="search.broad.trials=80 seed=1"]: values that hold the gates
	$(BIN)/multigrid-rl search $(GAME) search=$(SEARCH) $(OTHER_KEYS) $(ARGS)

evaluate: $(READY)  ## make evaluate WHO=runs/mine [ARGS="--episodes 10000 --opponent blue-master"]
	$(BIN)/multigrid-rl evaluate $(WHO) $(GAME) $(OTHER_KEYS) $(ARGS)

cup: $(READY)  ## make cup FOLDER=submissions SCENARIO=1v1 [ARGS="--with blue-master --with key-runner"]
	$(BIN)/multigrid-rl cup $(FOLDER) $(if $(SCENARIO),--scenario '$(SCENARIO)') $(OTHER_KEYS) $(ARGS)

report: $(READY)  ## make report RUN=runs/mine: one HTML page of a run, or of a cup's folder
	$(BIN)/multigrid-rl report $(RUN) $(KEYS) $(ARGS)

players: $(READY)  ## who can sit at the table, and how strong they are
	$(BIN)/multigrid-rl players

test: $(DEV)  ## the tests of every change (5 minutes on 2 cores), one process more than cores, at most 4
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not long and not slow" $(ARGS)

test-all: $(DEV)  ## those and the dear ones that prove what rarely breaks, as CI does
	$(BIN)/python -m pytest -n auto --dist worksteal $(ARGS)

faults: $(DEV)  ## every fault test and all others that take long: lost nodes, clusters by hand, kills at many moments
	$(BIN)/python -m pytest -m "fault or long" $(ARGS)

robustness: $(DEV)  ## the tests that train, over 20 seeds and the kernels of other processors, 90 minutes
	$(BIN)/python -m benchmarks.robustness $(ARGS)

soak: $(DEV)  ## half an hour with an env runner killed every 20 s; ARGS="--minutes 5"
	$(BIN)/python -m benchmarks.soak $(ARGS)

soak-serve: $(DEV)  ## a class server under a storm, killed at 1,000 random moments; ARGS="--kills 100"
	$(BIN)/python -m benchmarks.soak_serve $(ARGS)

bench-serve: $(DEV)  ## a class server: waits of 300 hand-ins in 10 minutes, memory, the ladder under load; ARGS="--rate 200"
	$(BIN)/python -m benchmarks.serve $(ARGS)

check: $(DEV)  ## lint, strict types, import law, yardsticks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.house

presence: $(READY)  ## papers, and a wheel that is built, installed elsewhere and trains 1v1 there
	$(BIN)/python tools/presence.py $(ARGS)

bench-setup: $(DEV) $(BENCH_READY)  ## what the benchmarks measure against, in an environment of its own (.venv-bench)

$(BENCH_READY): pyproject.toml constraints.txt
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python $(INSTALL) torch '.[bench]'
	@touch $@

bench: $(DEV) $(if $(findstring --skip-peers,$(ARGS)),,$(BENCH_READY))  ## speed of training against peers, about 10 minutes; ARGS="--skip-peers" without them
	$(BIN)/python -m benchmarks.training --peers $(BENCH_VENV) $(ARGS)

bench-world: $(DEV)  ## speed of the game engine, 4 minutes; the last line is JSON
	$(BIN)/python -m benchmarks.world $(ARGS)

bench-control: $(VENV)/.ready-control $(if $(findstring --skip-peers,$(ARGS)),,$(BENCH_READY))  ## speed of MuJoCo, Box2D and CartPole against Gymnasium, of training against Stable-Baselines3; ARGS="--skip-peers"
	$(BIN)/python -m benchmarks.control --peers $(BENCH_VENV) $(ARGS)

bench-device: $(DEV)  ## what 16 cores and a GPU bring, in six minutes (make setup TORCH=gpu before); ARGS="--device cpu --budget 120" on any machine
	$(BIN)/python -m benchmarks.device $(ARGS)

docs: $(DOCS_READY)  ## the site of README and docs/ in build/site, its links checked
	rm -rf build/docs
	mkdir -p build/docs
	cp -r README.md LICENSE CHANGELOG.md CONTRIBUTING.md SECURITY.md docs examples docker configs build/docs
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build

$(DOCS_READY): pyproject.toml
	@$(CHECK_PYTHON)
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install --quiet --disable-pip-version-check 'mkdocs-material>=9.5,<10' 'mkdocstrings[python]>=0.26,<2' ruff
	@touch $@

pictures: $(DEV)  ## the pictures of README and docs from this checkout, 2 minutes; ARGS="--only boards report"
	$(BIN)/python -m tools.pictures $(ARGS)

explain: $(READY)  ## make explain SCENARIO=coop: what the sizes of a run are and mean
	$(BIN)/multigrid-rl explain $(GAME) $(OTHER_KEYS) $(ARGS)

results: $(DEV)  ## every recipe over seeds, hours; one of them: make results ARGS="--only 1v1 --seeds 0 1 2"
	$(BIN)/python -m benchmarks.results $(ARGS)

study: $(DEV)  ## make study NAME=policy-gradients [ARGS="--seeds 3 --arms gae td"]: arms x seeds and a page in runs/pages
	$(BIN)/python -m benchmarks.study $(NAME) $(ARGS)

handout:  ## make handout NUMBER=1 [FOLDER=hw1 ADDRESS=https://github.com/you/multigrid_rl]: what students are given, without solutions
	$(PYTHON) tools/handout.py $(NUMBER) $(if $(filter command,$(origin FOLDER)),$(FOLDER),build/handout-$(NUMBER)) $(ADDRESS)

fingerprints: $(DEV)  ## does a change of the code change what a run computes? ARGS="--quick --save FILE" before it, "--quick --against FILE" after it
	$(BIN)/python -m tools.fingerprints $(ARGS)

reference-pages: $(DEV)  ## comments of keys in configs/ and docs/cli.md, from the schema and the verbs
	$(BIN)/python -m tools.reference_pages

doctor: $(READY)  ## what is wrong with this machine or cluster, and what to change; ARGS="--address auto"
	$(BIN)/multigrid-rl doctor $(KEYS) $(ARGS)

image:  ## container image multigrid-rl:cpu, or with GPUs: make image TORCH=gpu
	docker build --file docker/Dockerfile --build-arg TORCH=$(TORCH) --tag multigrid-rl:$(TORCH) .

cluster-up: image  ## a head and two workers in containers of this machine (docs/cluster.md)
	TORCH=$(TORCH) docker compose --file docker/compose.yaml up --detach --wait

clean:  ## remove the virtual environment and caches, never runs or checkpoints
	rm -rf $(VENV) $(BENCH_VENV) $(DOCS_VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis
