# `make demo` shows what Varangian does; `make test` checks all of it. Both make .venv on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint types check bench bench-gpu bench-all docs clean

demo: $(READY)
	$(BIN)/varangian run target-localization --seeds 5 \
	    --rule alone --rule average --rule distance-based --rule loss-based:keep=all --rule loss-based \
	    --byzantine 0 --byzantine 20 --byzantine 99 --out runs/demo

test: lint types check

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

check: $(READY)
	$(BIN)/pytest

# What was measured goes to BENCH; `make bench-all BENCH=results/performance` measures everything for the page on it.
BENCH := runs/bench
bench: $(READY)
	$(BIN)/python -m bench --out $(BENCH)
	$(BIN)/python -m bench.report

# On a machine with a GPU and torch of its own.
bench-gpu:
	PYTHONPATH=src $(PYTHON) -m bench --device cuda --out $(BENCH)
	PYTHONPATH=src $(PYTHON) -m bench.less --device cuda --out $(BENCH)

bench-all: bench
	$(BIN)/python -m bench.where --out $(BENCH)
	$(BIN)/python -m bench.scaling --out $(BENCH)
	$(BIN)/python -m bench.less --out $(BENCH)
	$(BIN)/python -m bench.cluster --out $(BENCH)
	$(BIN)/python -m bench.page --from $(BENCH)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "The manual is in runs/site/index.html"

clean:
	rm -rf $(VENV) runs

# torch first: with it installed, nothing else pulls a build of several gigabytes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	# What others offer, to be compared with; without what they depend on, which would bring another torch.
	$(BIN)/pip install --quiet --no-deps byzfl==0.0.11 byzpy==0.1.4 cloudpickle==3.1.2
	touch $@
