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
OLD_DSL_VERSION := 4.8.0
OLD_DSL := $(VENV)-dsl-$(OLD_DSL_VERSION)

.PHONY: kernels test test-dsl lint format clean

kernels: $(READY)
	$(BIN)/python -m generator generate
	$(BIN)/python -m generator compile

test: $(READY)
	$(BIN)/python -m pytest -q -n auto

# The generated modules are the same kernels under the oldest CuTe DSL that pyproject.toml allows.
test-dsl: $(READY) $(OLD_DSL)/.ready
	$(BIN)/python -m tests.dsl_versions --other $(OLD_DSL)/bin/python

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
	rm -rf $(VENV) $(OLD_DSL)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev
	touch $@

# Everything but CuTe DSL is that of $(VENV), whose packages are found behind this environment's own.
$(OLD_DSL)/.ready: $(READY) Makefile
	test -x $(OLD_DSL)/bin/python || $(BIN)/python -m venv $(OLD_DSL)
	$(OLD_DSL)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		$(foreach part,dsl dsl-libs-base dsl-libs-core dsl-libs-cu12,nvidia-cutlass-$(part)==$(OLD_DSL_VERSION))
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(OLD_DSL)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/workshop.pth"
	touch $@
