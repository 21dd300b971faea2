# The only commands a newcomer needs: make demo, make test. The rest is for those who work on zerodraft.
VENV ?= .venv
PYTHON ?= python3
MODEL ?= qwen
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-matrix test-families test-vllm bench soak lint types doctest clean

demo: $(VENV)/.demo
	$(BIN)/python bench/demo.py --model $(MODEL)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-matrix: $(VENV)/.test
	ZERODRAFT_TEST_MATRIX=all $(BIN)/python -m pytest -n 2 tests/integrations/test_hf_matrix.py

# Every family that transformers can build, tiny: about 20 minutes on one core; goes on where it was stopped.
test-families: $(VENV)/.test
	$(BIN)/python bench families

# vLLM in an environment of its own in the user's cache: 3.5 GB and minutes, once; skipped where it cannot be installed.
test-vllm: $(VENV)/.test
	$(BIN)/python bench vllm_check

bench: $(VENV)/.bench
	$(BIN)/python -m pytest bench --benchmark-only

soak: $(VENV)/.test
	$(BIN)/python bench soak

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.lint $(VENV)/.test
	$(BIN)/mypy

doctest: $(VENV)/.test
	$(BIN)/python -m pytest --doctest-modules src/zerodraft

clean:
	rm -rf $(VENV) build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch first and by its pinned version: a plain "torch" may pull gigabytes of CUDA libraries.
$(VENV)/.torch: $(VENV)/bin/python constraints.txt
	$(PIP) $$(grep '^torch==' constraints.txt)
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[demo]'
	touch $@

$(VENV)/.test: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[test]'
	touch $@

$(VENV)/.bench: $(VENV)/.torch pyproject.toml
	$(PIP) -e '.[bench]'
	touch $@

$(VENV)/.lint: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) 'ruff' 'mypy'
	touch $@
