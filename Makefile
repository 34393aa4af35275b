# `make demo` and `make test` need no other command first: each makes the environment it needs, once.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
PYTEST_ARGS ?=
# Without docs, gpu, parquet and serve the tests that need them are skipped, and say so.
EXTRAS ?= dev,docs,gpu,parquet,serve
# Bytecode is kept, whatever the shell says: every process that a test starts would compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
DEMO := runs/demo
LOCKSTEP := runs/lockstep-cpu
SITE := build/site
COMPILED := build/compiled

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo lockstep docs accuracy pages tables lint rule test long-tests bench more-tests compiled-test clean

help:
	@echo "make demo        the four schedulers on the quickstart scenario: a table, and a report in $(DEMO)"
	@echo "make lockstep    a tiny model really run on this CPU: measured, fitted, and predicted step by step"
	@echo "make docs        the pages as a site that opens from a folder, in $(SITE)"
	@echo "make pages       the pages that are made from the code, written again (PAGES='commands claims' for some)"
	@echo "make tables ROOT=...  the shipped profiles and kernel tables made again, from public sources below ROOT"
	@echo "make accuracy    scenarios of measured runs scored, and compared with the figures last committed"
	@echo "make lint        ruff, mypy and import-linter alone"
	@echo "make rule RULE=sarathi  the tests whose path has the word, and nothing else: seconds"
	@echo "make test        ruff, mypy, import-linter, and pytest: every rule is tested (PYTEST_ARGS='-k blocks' for some)"
	@echo "make long-tests  other and more examples and cases of the rules (marker long)"
	@echo "make more-tests  every test, the very large runs too (marker slow), on new random examples each time"
	@echo "make compiled-test  the core compiled with mypyc, in $(COMPILED), and the tests that it must pass as the sources do"
	@echo "make bench       the benchmarks, in CPU seconds"
	@echo "make clean       remove the environment and the caches (runs/ stays)"
	@echo "PYTHON=python3.12 chooses the interpreter that $(VENV) is made from, JOBS=4 the test processes"

demo: $(VENV)/.base
	$(BIN)/batchlab compare quickstart --policies static,continuous,preemptive,chunked_prefill --out $(DEMO) --overwrite
	@test -s $(DEMO)/report.html
	@echo "The report, to open in a browser: $(CURDIR)/$(DEMO)/report.html"

# Of the last command, exit code 3 says that the prediction is not within its limits, 4 that the machine is too noisy.
lockstep: $(VENV)/.gpu
	$(BIN)/batchlab calibrate measure --scenario lockstep-cpu --device cpu --steps-only --out $(LOCKSTEP)/measured \
	    --overwrite
	$(BIN)/batchlab calibrate fit --from-steps $(LOCKSTEP)/measured/rows.jsonl.gz --name this-cpu \
	    --out $(LOCKSTEP)/measured/profile.json --overwrite
	$(BIN)/batchlab lockstep lockstep-cpu --device cpu --profile $(LOCKSTEP)/measured/profile.json --out $(LOCKSTEP)/run \
	    --overwrite
	@test -s $(LOCKSTEP)/run/report.html
	@echo "The report, to open in a browser: $(CURDIR)/$(LOCKSTEP)/run/report.html"

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir $(SITE)
	@echo "The first page, to open in a browser: $(CURDIR)/$(SITE)/index.html"

# For maintainers. What they write is in the repository, and tests compare it with the code.
pages: $(VENV)/.dev
	$(BIN)/python -m docs.writers $(PAGES)

accuracy: $(VENV)/.dev
	# Small systems of equations: threads of BLAS would wait for each other.
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m docs.writers.accuracy

tables: $(VENV)/.dev
	$(BIN)/python -m tools.tables $(ROOT) $(NAMES)

lint: $(VENV)/.dev
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy -n $(JOBS)
	$(BIN)/lint-imports --no-logo

# A file's path names its rule: nothing else is collected, so that an answer takes seconds.
rule: $(VENV)/.dev
	@test -n "$(RULE)" || { echo "make rule RULE=WORD runs the tests whose path has the word: make rule RULE=sarathi" >&2; exit 2; }
	@files=$$(find tests -name 'test_*.py' -path '*$(RULE)*' | sort); \
	    test -n "$$files" || { echo "no test below tests/ has '$(RULE)' in its path" >&2; exit 2; }; \
	    $(BIN)/python -m pytest -q -rs $(PYTEST_ARGS) $$files

test: lint
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -rs $(PYTEST_ARGS)

# The same examples every time, and others than those of `make test`.
long-tests: $(VENV)/.dev
	BATCHLAB_HYPOTHESIS=long $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -rs --hypothesis-seed=1 \
	    -m "(long or examples) and not (slow or bench)" $(PYTEST_ARGS)

more-tests: $(VENV)/.dev
	BATCHLAB_HYPOTHESIS=more $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -rs -m "not bench" $(PYTEST_ARGS)

# The wheel of an install with BATCHLAB_COMPILE=1, unpacked with the tests beside it: nothing of it lies where others look.
compiled-test: $(VENV)/.dev
	rm -rf build
	BATCHLAB_COMPILE=1 $(BIN)/python -m pip wheel -qq --disable-pip-version-check --no-deps -w $(COMPILED) .
	$(BIN)/python -m zipfile -e $(COMPILED)/batchlab-*.whl $(COMPILED)
	cp -R tests docs pyproject.toml $(COMPILED)
	cd $(COMPILED) && $(abspath $(BIN))/python -c "from simulator import is_compiled; assert is_compiled(), 'nothing was compiled: pip wheel -v . says why'"
	cd $(COMPILED) && BATCHLAB_SHARED="$${BATCHLAB_SHARED:-$(abspath ../shared)}" \
	    BATCHLAB_HYPOTHESIS=long $(abspath $(BIN))/python -m pytest -n $(JOBS) --dist worksteal -rs --hypothesis-seed=1 \
	    -m "not slow and not bench" $(PYTEST_ARGS) \
	    tests/test_compiled.py tests/laws tests/parity tests/simulator

# One process: two would share the caches and the memory's bandwidth, and change what is measured.
bench: $(VENV)/.dev
	$(BIN)/python -m pytest tests/bench -m bench -rs --benchmark-enable \
	    --benchmark-timer=time.process_time --benchmark-columns=min,median,max,rounds $(PYTEST_ARGS)
	$(BIN)/python -m tests.bench.ratio

clean:
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

# The environment, in three steps, each with a stamp, so that a step that was cut off is done again.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else \
	    "batchlab needs Python 3.11 or newer, and $(PYTHON) is %d.%d: make PYTHON=... chooses another" % v[:2])'
	@echo "Making $(VENV) (about a minute, once)"
	@$(PYTHON) -m venv --clear $(VENV)
	@touch $@

$(VENV)/.base: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing batchlab into $(VENV)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/.gpu: $(VENV)/.base
	@echo "Installing torch into $(VENV)"
	@$(PIP_INSTALL) -e '.[gpu]'
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	@echo "Installing the generator of the pages into $(VENV)"
	@$(PIP_INSTALL) -e '.[docs]'
	@touch $@

# It holds the base install too: `make demo` after `make test` installs nothing.
$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "Installing batchlab with the tools of development into $(VENV)"
	@$(PIP_INSTALL) -e '.[$(EXTRAS)]'
	@touch $@ $(VENV)/.base $(if $(findstring gpu,$(EXTRAS)),$(VENV)/.gpu) $(if $(findstring docs,$(EXTRAS)),$(VENV)/.docs)
