# Eight verbs at most. `make demo` and `make test` do all the set-up that they need.
.DEFAULT_GOAL := help
BIN := .venv/bin

.PHONY: help setup demo test check docs bench

help: ## List the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: ## Make .venv with the real CPU stack (idempotent)
	@scripts/setup

demo: setup ## Run a real prefill/decode pair, drive agents through it, classify its logs
	$(BIN)/kvdiag demo

test: setup check ## Run every test, the real stack included
	$(BIN)/pytest

check: setup ## Formatting, lint, types, import rules
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
