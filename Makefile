# Thin targets. Each makes and uses its own virtual environment; nothing but Python 3.11 and make is needed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin
JOBS ?= 2

$(STAMP): pyproject.toml sdk_py/pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed: set PYTHON to its path" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ./sdk_py -e '.[dev,fdb]'
	@touch $@

.PHONY: demo test scale planted lint bench soak clean
demo: $(STAMP)
	$(BIN)/python -m topology.demo

# Tests that start processes stay together in one of the jobs; see tests/README.md.
test: $(STAMP)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist loadgroup

# The proofs at the sizes that the specification names, one after another; tests/README.md says how long each takes.
scale: $(STAMP)
	$(BIN)/python -m pytest -m scale -v -s --durations=0 $(SCALE)

planted: $(STAMP)
	$(BIN)/python -m tests.planted --jobs $(JOBS)

lint: $(STAMP)
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m perf

# Random scenarios beyond those of the suite; goes on after the last seed done and says so in tests/simulation/soak.json.
soak: $(STAMP)
	PYTHONPATH=tests $(BIN)/python -m simulation soak $(SOAK)

clean:
	rm -rf $(VENV) var .mypy_cache .ruff_cache .pytest_cache .hypothesis
