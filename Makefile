# The scripts in bin/ do the work; these are their short names.
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

demo: ## run the main job on this machine alone, with a progress bar
	bin/demo

test: ## run the tests on private servers; ARGS go to pytest: make test ARGS='tests/unit -x'
	bin/test $(ARGS)

check: ## all that has to hold before a change goes in: linters, types, layers, tests, coverage
	bin/check $(ARGS)

lint: ## the same without the tests
	bin/check --lint

check-lowest: ## run tests on the oldest versions that setup.cfg allows, and those side by side with the newest
	bin/check-lowest

format: ## let ruff format the code
	bin/setup test
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

golden: ## write the golden SQL files anew; look at the diff before you commit it
	bin/setup test
	UPDATE_GOLDEN=1 $(PYTHON) -m pytest tests/store/test_golden.py -q

docs: ## write the generated parts of docs/ anew
	bin/setup test
	$(PYTHON) -m tests.support.documents

bench: ## measure the main path on private servers; ARGS as in: make bench ARGS='--rounds 5'
	bin/setup test
	$(PYTHON) -m benchmarks.main_path $(ARGS)
	$(PYTHON) -m benchmarks.namespaces

chaos: ## a small shop while all around it is killed and taken away: make chaos ARGS='--seed 7 --stack postgresql-redis'
	bin/setup test
	$(PYTHON) -m tests.chaos $(ARGS)

clean: ## remove what tests and builds leave (not .venv)
	rm -rf build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

.PHONY: help demo test check lint check-lowest format golden docs bench chaos clean
