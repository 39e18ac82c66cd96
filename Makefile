# Two commands matter: `make run` and `make test`. The rest is for people who change Penstock.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: run test test-differential check soak sim bench bench-page bench-parts bench-pipeline generate clean

run: $(VENV)/.installed-run
	$(BIN)/penstock up

test: $(STAMP)
	$(BIN)/python -m pytest -m "not soak" -n 3 --dist loadgroup --no-loadscope-reorder --durations=25

# The Spark source beside Spark's own Kafka connector, which Maven fetches from Maven Central.
test-differential: $(VENV)/.installed-pipeline
	PENSTOCK_DIFFERENTIAL=1 $(BIN)/python -m pytest tests/pipeline/test_differential.py tests/pipeline/test_other_kafka.py --timeout=1200

check: $(STAMP)
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/python -m penstock.wire.generate --check
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(STAMP)
	$(BIN)/python -m pytest -m soak -s --timeout=3600

sim: $(STAMP)
	$(BIN)/penstock sim run --seeds 10000 --keep-going

bench: $(STAMP)
	$(BIN)/penstock bench compare --json docs/performance.json --markdown docs/performance.md \
	  --headlines README.md --charts docs/charts

# The blocks that `make bench` does not write: what parts cost, cores, scale, and the service levels.
bench-page: $(STAMP)
	$(BIN)/python -m bench.page README.md broker
	$(BIN)/python -m bench.page docs/performance.md cores cluster scale service_levels

bench-parts: $(STAMP)
	$(BIN)/python -m bench.broker

bench-pipeline: $(VENV)/.installed-pipeline
	$(BIN)/python -m bench.pipeline

generate: $(STAMP)
	$(BIN)/python -m penstock.wire.generate
	$(BIN)/python -m penstock.wire.compatibility_page
	$(BIN)/python -m penstock.metadata.settings_page
	$(BIN)/python -m penstock.broker.metrics_reference
	$(BIN)/python -m penstock.cli.docs

$(VENV)/.installed-run: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $(STAMP) $(VENV)/.installed-run

$(VENV)/.installed-pipeline: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[dev,pipeline]"
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .hypothesis build dist
