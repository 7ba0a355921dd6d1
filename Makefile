# The environment lives in .venv: made on the first call, brought up to date when
# pyproject.toml or constraints.txt change.

STAMP := .venv/.spotray-installed
BIN := .venv/bin
# The first interpreter that runs and is new enough; `make PYTHON=...` overrides.
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(STAMP) ## train through preemptions on this machine, and compare with an undisturbed run
	@$(BIN)/spotray demo $(ARGS)

test: lint ## lint, types and all tests that this machine can run
	$(BIN)/python -m pytest -m "not cloud" $(ARGS)

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy --strict spotray

bench: $(STAMP) ## run the benchmarks behind the README's numbers, one after another
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		--constraint constraints.txt --editable ".[bench]"
	@for run in benchmarks/*/run.py; do \
		[ -e "$$run" ] || { echo "no benchmarks yet: see benchmarks/README.md"; exit 0; }; \
		echo "== $$run"; $(BIN)/python "$$run" || exit 1; done

$(STAMP): pyproject.toml constraints.txt
	@[ -n "$(PYTHON)" ] && "$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "spotray needs Python 3.11 or newer, found $(or $(PYTHON),none): install it, or say make PYTHON=/path/to/python3.11" >&2; \
		exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || "$(PYTHON)" -m venv .venv || { \
		echo "could not make .venv with '$(PYTHON)': on Debian and Ubuntu, apt install python3-venv" >&2; \
		exit 1; }
	@echo "Installing spotray and its pinned dependencies into .venv (minutes, once) ..."
	@$(BIN)/python -m pip install -qq --disable-pip-version-check \
		--constraint constraints.txt --editable ".[demo,dev,aws]"
	@touch $@
	@echo "Installed."
