# Each target prepares what it needs: an own virtual environment in .venv, the package in it, then the work.
# PYTHON picks the interpreter; PIP_FLAGS is passed to pip (an index of CPU-only PyTorch builds, for example).
PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# One thread per worker: on shared machines a second thread makes small kernels slower, not faster.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test coverage test-slow soak flower-versions lint format bench results pictures docs dist clean

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST)

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "ternfed needs Python 3.11 or later; name one with: make PYTHON=python3.11" >&2; exit 1; }
	@echo "Preparing $(VENV): the first time takes a few minutes."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) "$$($(PYTHON) -c \
	  'import tomllib; print(next(d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if d.startswith("torch")))')"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) --editable '.[dev]'
	@touch $@

demo: $(READY) ## the demonstration, under a minute
	@$(BIN)/ternfed demo

test: $(READY) ## the test suite on two cores
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

coverage: $(READY) ## the same, with the lines that no test reaches; a few minutes longer
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --cov --cov-report=term

test-slow: $(READY) ## the suites that take minutes
	$(BIN)/python -m pytest -m slow

SOAK ?=

soak: $(READY) ## a server and 20 clients for 200 rounds of faults and attacks, two hours at most; SOAK passes options
	$(BIN)/python tests/soak/soak.py $(SOAK)

FLOWERS ?= 1.40.0 1.41.0 1.42.0
FLOWER_TESTS ?= tests/engines/flower

flower-versions: $(READY) ## the tests of the network with each version of Flower, in environments beside .venv
	@for version in $(FLOWERS); do \
	  place=$(VENV)-flower-$$version; \
	  test -x $$place/bin/python || $(PYTHON) -m venv $$place || exit 1; \
	  $(BIN)/python -c 'import site; print("$(CURDIR)/src", site.getsitepackages()[0], sep="\n")' > \
	    "$$($$place/bin/python -c 'import site; print(site.getsitepackages()[0])')/ternfed.pth"; \
	  $$place/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS) --no-deps flwr==$$version || exit 1; \
	  echo "Flower $$version"; \
	  $$place/bin/python -m pytest -q $(FLOWER_TESTS) || failed=1; \
	done; exit $${failed:-0}

lint: $(READY) ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY) ## rewrite the sources in the common format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## every promise about speed, measured in one run, on one page: docs/speed.md
	$(BIN)/ternfed bench speed --out results/speed.json
	$(BIN)/ternfed bench speed --stored --out results/speed.json --into docs/speed.md

FIGURES := convergence-cifar10-resnet18-iid convergence-cifar10-cnn-iid convergence-cifar10-resnet18-nc5 convergence-mnist-mlp-iid \
  convergence-mnist-mlp-nc5 participation-mnist-mlp-t-fedavg-as-published-preset-paper balance-mnist-mlp distribution-mnist layers-cifar10-resnet18-iid

results: $(READY) ## the tables and figures of the README and of docs/, from the run folders
	$(BIN)/ternfed report results --out report --into README.md --into docs/results.md --into docs/recipe.md \
	  --into docs/frontier.md
	cp $(FIGURES:%=report/figures/%.png) docs/images/
	find report/figures -name 'frontier-*.png' -exec cp {} docs/images/ \;

pictures: $(READY) ## the drawings of docs/
	$(BIN)/python docs/draw_architecture.py
	$(BIN)/python docs/draw_round.py

docs: $(READY) ## the documentation site, docs/_build/html; a warning or a link that leads nowhere is an error
	@rm -rf docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

dist: $(READY) ## wheel and source archive, in dist/
	$(BIN)/python -m hatchling build --directory dist

clean: ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage .hypothesis docs/_build dist
