# People and CI run the same targets.
PYTHON ?= python3.11
BIN := .venv/bin

.PHONY: run test check format clean

run: .venv/installed  ## fine-tune EfficientNet-Lite0 on digits, without a network
	$(BIN)/python -m cvexp

test: check  ## what CI runs: lint, types, tests without a GPU
	$(BIN)/python -m pytest -m "not gpu"

check: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist *.egg-info
