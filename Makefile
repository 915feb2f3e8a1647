# The commands of the README.  Each one creates .venv when it is not there.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

PEERS  ?= .venv-peers
INSIGHT ?= .venv-insight-peers

# Processes that share the tests: one a core, four at most, since each holds up to 3 GB.
WORKERS ?= auto
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist worksteal

# Bytecode is kept even where the environment forbids it: hundreds of processes that tests start import these sources.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: compare test test-all lint docs budgets mutants peers insight-peers clean

$(VENV)/core.stamp: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Wavetank needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/test.stamp: $(VENV)/core.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test]'
	touch $@

compare: $(VENV)/core.stamp  ## run the main job on generated traffic: one table, one report
	$(BIN)/wavetank compare llm-routing
	@printf '\nTo go on: %s/wavetank list; after ". %s/activate" it is plain wavetank.\n' '$(BIN)' '$(BIN)'

test: $(VENV)/test.stamp lint  ## everything that must be true before a change lands
	$(PYTEST)

test-all: $(VENV)/test.stamp lint  ## the long runs too
	$(PYTEST) -m 'slow or not slow'

lint: $(VENV)/test.stamp
	$(BIN)/ruff check src tests examples docs
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/test.stamp  ## the manual, in docs/_build/html
	$(BIN)/python -m sphinx -W -q -b html docs docs/_build/html

budgets: $(VENV)/core.stamp  ## times of this machine beside their budgets, lines per paper, slowest tests
	$(BIN)/python tests/budgets.py

mutants: $(VENV)/test.stamp  ## change the modules that verdicts rest on, one small change at a time: which do tests notice?
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	$(BIN)/python tests/mutants.py

$(PEERS)/peers.stamp: constraints-peers.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-peers.txt \
	  'litellm[proxy]' httptools opentelemetry-sdk vllm-router
	touch $@

peers: $(PEERS)/peers.stamp  ## the proxies that `wavetank compare proxy-speed` measures beside ours

$(INSIGHT)/peers.stamp: constraints-insight-peers.txt
	$(PYTHON) -m venv $(INSIGHT)
	$(INSIGHT)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-insight-peers.txt \
	  HolisticTraceAnalysis drishti-io darshan statsforecast prophet pgmpy
	touch $@

insight-peers: $(INSIGHT)/peers.stamp  ## the analysers and forecasters that studies of the area insight measure beside ours

clean:
	rm -rf $(VENV) $(PEERS) $(INSIGHT) build dist docs/_build docs/generated
