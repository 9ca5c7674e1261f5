# Everything that can be done with this repository: `make` alone lists it. A fresh machine needs only Python >= 3.11.

PYTHON ?= python3
PORT ?= 5006
LAB_FOLDER ?= notebooks
LAB_OPTIONS ?=
BIN := .venv/bin
READY := .venv/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2
CHAPTERS = $(wildcard notebooks/*.md)
CHAPTER_FORMAT := $(BIN)/ruff format --config pyproject.toml --line-length 96 -
CHAPTER_RULES := --config pyproject.toml --ignore E402,E501,B018
# The tools read and write our files in the encoding of the locale, whatever that is.
export PYTHONUTF8 := 1

.DEFAULT_GOAL := help
.PHONY: help serve test check book lab artifacts bench lint format browser clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' Makefile

serve: $(READY)  ## serve book and apps on http://localhost:5006, and build the book meanwhile if stale
	@exec $(BIN)/phibe serve --port $(PORT)

test: lint browser  ## run every check: format, lint, types, tests, strict book build, real browser
	$(PYTEST)

check: lint  ## the quick part, for daily work: lint, types, docstring examples, tests that need neither book nor browser
	$(PYTEST) -m 'not book and not browser and not slow' --durations=5

book: $(READY)  ## build the book into _build/html if anything it is made of has changed
	@$(BIN)/python book/build.py

lab: $(READY)  ## open the chapters in JupyterLab: a double click opens one as a notebook
	@JUPYTER_CONFIG_PATH="$(CURDIR)/.jupyter" JUPYTER_PREFER_ENV_PATH=1 \
	  exec $(BIN)/jupyter lab --notebook-dir="$(LAB_FOLDER)" $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB_OPTIONS)

artifacts: $(READY)  ## run every experiment at laptop scale (hours) and refresh artifacts/
	$(BIN)/phibe artifacts

bench: $(READY)  ## run the benchmarks; each prints JSON
	@set -e; for script in $(wildcard benchmarks/*.py); do echo "$$script" >&2; $(BIN)/python $$script; done

lint: $(READY)  ## check format, lint and types, in the chapters too
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@rm -rf _build/lint && mkdir -p _build/lint && cp $(CHAPTERS) _build/lint/
	@$(BIN)/jupytext --quiet --pipe '$(CHAPTER_FORMAT)' _build/lint/*.md
	@for page in $(CHAPTERS); do diff -u $$page _build/lint/$${page##*/} || { echo "$$page: run make format" >&2; exit 1; }; done
	$(BIN)/jupytext --quiet --check '$(BIN)/ruff check --quiet $(CHAPTER_RULES) {}' $(CHAPTERS)
	$(BIN)/mypy phibe

format: $(READY)  ## put the code, in the chapters too, into shape
	$(BIN)/ruff check --fix --exit-zero .
	$(BIN)/ruff format .
	$(BIN)/jupytext --quiet --pipe '$(CHAPTER_FORMAT)' $(CHAPTERS)

clean:  ## remove the built book and all caches; .venv and runs/ stay
	rm -rf _build .mypy_cache .pytest_cache .ruff_cache .hypothesis dist
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

# A browser for the tests: the one that is installed, $$CHROMIUM, or Debian's package.
browser: $(READY)
	@$(BIN)/python tests/browser/chromium.py

# The environment: pip brings uv and the CPU build of torch where one is offered, uv the rest in seconds.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "phibe needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt uv torch
	$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint constraints.txt --build-constraint constraints.txt -e '.[dev]'
	@touch $@
