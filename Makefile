# Two commands, each of which does all of its own set-up on a fresh machine:
#
#   make kernels   regenerate the modules of spec.yaml, compile every variant for sm_90a with no GPU
#   make test      run the tests; kernels run on the GPU, or on the emulator where there is none
#
# The virtual environment is made once, and again when the versions change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: kernels test lint format clean

kernels: $(READY)
	$(BIN)/python -m generator generate
	$(BIN)/python -m generator compile

test: $(READY)
	$(BIN)/python -m pytest -q -n auto

lint: $(READY)
	$(BIN)/black --quiet --check --diff .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m generator generate --check

format: $(READY)
	$(BIN)/ruff check --quiet --fix .
	$(BIN)/black --quiet .

clean:
	rm -rf $(VENV)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev
	touch $@
