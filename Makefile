# The two commands of the README do everything: `make run` and `make test`. Each makes .venv when it is missing.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help run four reproduce figures gallery test test-all check bench device-check clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/'

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(STAMP)

run: $(STAMP)  ## derive, solve, train and judge four learning-rate ratios; writes results/
	$(BIN)/flowsim verify --ratio 1e-6 --ratio 0.1 --ratio 1 --ratio 10 --out results --overwrite

four: $(STAMP)  ## the same for all four parameterizations side by side (minutes); writes results-four/
	$(BIN)/flowsim verify --parameterization all --out results-four --overwrite

reproduce: $(STAMP)  ## the paper's synthetic results and what it left open (six minutes); writes reproduced/
	$(BIN)/flowsim reproduce all --out reproduced

figures: $(STAMP)  ## draw the figures of the README again, into docs/figures/ (minutes)
	$(BIN)/python docs/draw_figures.py

gallery: reproduce  ## draw the figures of docs/gallery.md again, into docs/figures/ (minutes more)
	test -d reproduced/random-starts || $(BIN)/flowsim reproduce random-starts --out reproduced/random-starts
	$(BIN)/python docs/draw_gallery.py reproduced

test: $(STAMP)  ## the default test suite (minutes)
	$(BIN)/python -m pytest -n auto --dist worksteal

test-all: $(STAMP)  ## the tests marked slow too, every derivation and example among them
	$(BIN)/python -m pytest -n auto --dist worksteal -m "not benchmark"

check: $(STAMP)  ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)  ## timings beside peers (install the optional peers with pip install -e '.[bench]')
	$(BIN)/python -m pytest -m benchmark tests/benchmarks -s

device-check: $(STAMP)  ## parity with stored results, speed and memory on the device that JAX finds (minutes)
	$(BIN)/flowsim device-check

clean:  ## remove the environment, caches and results
	rm -rf $(VENV) results results-four reproduced .pytest_cache .ruff_cache .hypothesis .benchmarks
