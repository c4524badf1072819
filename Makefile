# `make demo` and `make test` do all the set-up that they need; it is idempotent.
.DEFAULT_GOAL := demo
.PHONY: setup demo test check docs bench compat faults

BIN := .venv/bin

# Make .venv with everything, the real CPU stack included.
setup:
	@scripts/setup

# Run a real prefill/decode pair, drive agents through it, classify the logs of that run.
demo: setup
	rm -rf kvdiag-demo
	$(BIN)/kvdiag demo

# Every test, the real stack included.
test: setup check
	$(BIN)/pytest

# Formatting, lint, types, import rules, stale documents and dashboards.
check: setup
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/docs.py --check

# Write what is generated: references, dashboards, rules.
docs: setup
	$(BIN)/python scripts/docs.py

# Measure what takes minutes; the last lines name what takes longer. Every script says what it compares; see --help of each.
bench: setup
	$(BIN)/python -m benchmarks.classify.generate .bench.log 300
	$(BIN)/python -m benchmarks.classify.measure .bench.log; rm -f .bench.log
	$(BIN)/python -m benchmarks.connector.hooks
	$(BIN)/python -m benchmarks.router.compare
	$(BIN)/python -m benchmarks.soak mock --turns 10000 --conversations 2000
	@echo "Longer, each with a real pair: $(BIN)/python -m benchmarks.NAME, NAME being"
	@echo "  article (what reuse saves), capacity (how long to keep blocks), soak pair, scale measure, connector.overhead;"
	@echo "  figures of all: docs/measured.md. Faults: make faults."

# Run the connector's end-to-end core on every vLLM that has a CPU build: some GB and some minutes each.
compat: setup
	$(BIN)/python scripts/compat.py run

# Every fault on the real pair and what is said of it: about an hour, as root for the network's sake.
faults: setup
	$(BIN)/python -m benchmarks.faults run
	$(BIN)/python -m benchmarks.faults judge --page docs/faults.md
