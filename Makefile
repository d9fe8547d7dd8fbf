# `make demo` and `make test` do all of their own set-up; the others build on the same environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-long lint format clean fuzz mutants \
	bench-formats bench-groups bench-log bench-server bench-spark bench-tier bench-wal

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

demo: $(READY)
	$(BIN)/lamina demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-long: $(READY)
	$(BIN)/python -m pytest -m long

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz.run --target decoders --inputs 2000000
	$(BIN)/python -m tests.fuzz.run --target doors --inputs 100000

mutants: $(READY)
	$(BIN)/python -m tests.torture.mutants

bench-log: $(READY)
	$(BIN)/python -m benchmarks.log

bench-groups: $(READY)
	$(BIN)/python -m benchmarks.groups

bench-server: $(READY)
	$(BIN)/python -m benchmarks.server

bench-spark: $(READY)
	$(BIN)/python -m benchmarks.spark

bench-tier: $(READY)
	$(BIN)/python -m benchmarks.tier

bench-wal: $(READY)
	$(BIN)/python -m benchmarks.wal

bench-formats: $(READY)
	$(BIN)/python -m benchmarks.formats

clean:
	rm -rf $(VENV) build dist demo-data
