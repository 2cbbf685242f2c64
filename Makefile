PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=# more arguments for pytest or the command line, e.g. make test ARGS="-k laws -n 2"

# -qq: only errors.
PIP := $(BIN)/python -m pip --no-input -qq install -c constraints.txt

APT := $(if $(filter 0,$(shell id -u)),,sudo )apt-get

# The oldest transformers that pyproject.toml allows, with what its own requirements need older than in $(VENV)
# (huggingface_hub < 2, and httpx below that; tokenizers <= 0.23.0). It lies over $(VENV): a second one is 1.4 GB.
OLDEST := .oldest
OLDEST_TRANSFORMERS := 5.15.0
OLDEST_PINS := transformers==$(OLDEST_TRANSFORMERS) huggingface_hub==1.33.0 tokenizers==0.22.0 httpx==0.28.1 httpcore==1.0.9
OLDEST_PYTHON := PYTHONPATH=$(CURDIR)/$(OLDEST) $(BIN)/python

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help run demo test test-oldest test-demo demo-timing screenshots slow bench diagnostic analysis cards docs lint format clean

help: ## print this
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

run: $(VENV)/.installed-base ## set up, then compare the laws on the embedded models
	$(BIN)/hf-lossy compare $(ARGS)

demo: $(VENV)/.installed-demo ## set up, then serve the page that shows what a law does to a text
	$(BIN)/hf-lossy demo $(ARGS)

test: $(VENV)/.installed-test ## set up, then run the tests, without the slow ones
	$(BIN)/python -m pytest -n logical $(ARGS)

test-oldest: $(VENV)/.installed-test $(OLDEST)/.installed ## the same tests against the oldest supported transformers
	@$(OLDEST_PYTHON) -c 'import transformers as t; assert t.__version__ == "$(OLDEST_TRANSFORMERS)", f"{t.__version__} from {t.__file__}"; print("transformers", t.__version__)'
	$(OLDEST_PYTHON) -m pytest -n logical $(ARGS)

test-demo: $(VENV)/.installed-e2e ## the demo in a browser; installs Debian's chromium where there is none
	@command -v chromium chromium-browser google-chrome >/dev/null || \
		{ echo "Installing chromium with apt-get"; $(APT) -qq update && $(APT) -qq install -y --no-install-recommends chromium fonts-dejavu-core; }
	$(BIN)/python -m pytest -m e2e tests/test_demo_e2e.py $(ARGS)

demo-timing: $(VENV)/.installed-e2e ## how long the demo takes to its first token, and what it costs; needs chromium
	$(BIN)/python scripts/demo_timing.py

screenshots: export SCREENSHOTS := docs/images
screenshots: ## the pictures of the documentation, from the demo in a browser
	@$(MAKE) test-demo ARGS="-k pictures"

slow: $(VENV)/.installed-test ## the slow tests
	$(BIN)/python -m pytest -m slow $(ARGS)

bench: $(VENV)/.installed-base ## run the benchmarks and write their results
	$(BIN)/hf-lossy bench --write $(ARGS)

diagnostic: $(VENV)/.installed-test ## every law beside its baseline on the embedded models, two processes
	OMP_NUM_THREADS=1 $(BIN)/accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no \
		recipes/diagnostic.py $(ARGS)

analysis: $(VENV)/.installed-eval ## run the analyses on the embedded models and write their results
	$(BIN)/hf-lossy analyse $(ARGS)

cards: $(VENV)/.installed-base ## make every model card again from the results
	$(BIN)/hf-lossy card $(ARGS)

docs: $(VENV)/.installed-docs ## build the documentation into build/site, warnings as errors
	$(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.installed-dev ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.installed-dev ## ruff's fixes and formatting
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean: ## remove the environments, caches and builds
	rm -rf $(VENV) $(OLDEST) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/pip:
	@echo "Making $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

# One stamp for each set of extras; "base" is none.
$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "Installing hf-lossy$(if $(filter-out base,$*),[$*]) into $(VENV)"
	@$(PIP) -e ".$(if $(filter-out base,$*),[$*])"
	@touch $@

$(OLDEST)/.installed: Makefile constraints.txt | $(BIN)/pip
	@echo "Installing transformers $(OLDEST_TRANSFORMERS) into $(OLDEST)"
	@rm -rf $(OLDEST)
	@$(PIP) --no-deps --target $(OLDEST) $(OLDEST_PINS)
	@touch $@
