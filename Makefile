# Each target installs what it needs into .venv and .cache, and nothing anywhere else.
PYTHON ?= python3
# .venv belongs to one Python. Another one (`make check PYTHON=python3.13`) gets its own environment, such as .venv-3.13.
OF_PYTHON := import os, sys; own = "%d.%d" % sys.version_info[:2]; \
	print(".venv" + ("-" + own) * (os.path.exists(".venv/bin/python") and not os.path.exists(".venv/bin/python" + own)))
VENV := $(or $(if $(filter-out file,$(origin PYTHON)),$(shell $(PYTHON) -c '$(OF_PYTHON)')),.venv)
BIN := $(VENV)/bin
# These files mark what is installed: the packages of all tests, or those of one demo.
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo
DEMO_COOPERATIVE := $(VENV)/.demo-cooperative
DEMO_ZONES := $(VENV)/.demo-zones
DEMOS := $(DEMO) $(DEMO_COOPERATIVE) $(DEMO_ZONES)
# `make soak`: the time for each target of the fuzzer (or --inputs 2000000), the minutes of faults, and how many
# members of cooperative groups are killed.
FUZZ ?= --seconds 300
MINUTES ?= 60
KILLS ?= 1000
# The tests of one file run in one process, because they share a broker. So do all tests that share a Spark session
# (tests/conftest.py). There are four processes for two cores, because tests with brokers mostly wait.
PYTEST := $(BIN)/pytest -q --dist loadfile --no-loadscope-reorder --durations 10

# The tests of `make check`: most start no process, open no port and need no Spark.
QUICK := $(wildcard tests/test_*.py) $(addprefix tests/,capture command core dashboard features fuzz golden model \
	protocol session telemetry replay/inspect replay/protocol replay/report replay/source)

# Otherwise each process of a test, such as a gateway, compiles all modules that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help check quick units test test-all pythons lint programs demo demo-link demo-cooperative demo-zones clients soak bench docs pages pictures dist clean

help:  ## show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

$(STAMP): INSTALLED := -e '.[dev,kafka]'
$(STAMP): SAID := the packages of its tests into $(VENV): 1.5 GB, some minutes
$(DEMOS): SAID := what a demo needs into $(VENV): 0.5 GB, about a minute
# Without compiled files, the environment is a tenth smaller. Python compiles what it imports.
$(DEMO): INSTALLED := --no-compile -e '.[demo]'
$(DEMO_COOPERATIVE): INSTALLED := --no-compile -e '.[cooperative,demo]'
$(DEMO_ZONES): INSTALLED := --no-compile -e '.[kafka]'

# pip is installed last. An environment without pip is incomplete, and is created again.
$(STAMP) $(DEMOS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fetchgate needs Python 3.11 or later; set PYTHON=/path/to/python3"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing fetchgate and $(SAID) ..."
	@$(BIN)/python -m pip install --disable-pip-version-check $(INSTALLED)
	@touch $@ $(if $(filter $(STAMP),$@),$(DEMOS))

check: $(STAMP)  ## format, lint, types, import rules and the quick tests: 90 seconds (the first time up to four minutes, and the installation)

	@$(MAKE) --no-print-directory -j 2 lint quick

quick: $(STAMP)
	$(PYTEST) -n 2 --hypothesis-profile check -m 'not (integration or clients or slow or nightly or soak)' $(QUICK)

units: $(STAMP)
	$(PYTEST) -n 2 --hypothesis-profile check -m 'not (integration or clients or slow or nightly or soak)'

test: programs lint  ## all that protects a user, with real brokers and Python clients: 10 minutes
	@echo "Collecting the tests (about a minute without output) ..."
	$(PYTEST) -n 4 --hypothesis-profile test -m 'not (clients or nightly or soak)'

test-all: programs lint  ## all but `make clients` and `make soak`: 45 minutes, before a change is called done
	$(PYTEST) -n 4 -m 'not (clients or soak)'
	@$(MAKE) --no-print-directory pythons

# pyenv has programs such as python3.13 on PATH that do not run. Some Pythons can't make an environment.
pythons: $(STAMP)  ## the tests without brokers with each other Python from 3.11 to 3.14 that this machine has
	@for version in 3.11 3.12 3.13 3.14; do \
		test ! -e $(BIN)/python$$version || continue; \
		for python in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python; do \
			if $$python -c 'import ensurepip' 2>/dev/null; then \
				$(MAKE) --no-print-directory units PYTHON=$$python || exit; \
				break; \
			fi; \
		done; \
	done

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@echo "Checking types (up to four minutes the first time) ..."
	$(BIN)/mypy

programs: $(STAMP)
	$(BIN)/python -m tools.debian
	$(BIN)/python -m tools.kafka
	$(BIN)/python -m tools.helm

demo: $(DEMO)  ## a real broker, a real client, direct and through the gateway
	$(BIN)/python -m tools.demo

demo-link: $(DEMO)  ## a client, two gateways in a row, a broker without sessions
	$(BIN)/python -m tools.demo.link

demo-cooperative: $(DEMO_COOPERATIVE)  ## four consumers on one partition, each with a gateway, as a plain group and cooperative
	$(BIN)/python -m tools.demo.cooperative

demo-zones: $(DEMO_ZONES)  ## three brokers in three racks, four clients: the bytes that cross zones, before and after
	$(BIN)/python -m tools.demo.zones

clients: $(STAMP)  ## tests with clients in Java, Go, JavaScript and C
	$(BIN)/pytest -q -m clients

soak: $(STAMP)  ## fuzzers, an hour of faults, and the tests that take long
	$(BIN)/python -m pip install -q --disable-pip-version-check --only-binary atheris -e '.[fuzz]' || echo "no atheris for this machine: inputs are mutated seeds"
	$(BIN)/python -m tools.fuzz $(FUZZ)
	$(BIN)/python -m tools.soak --minutes $(MINUTES)
	$(BIN)/python -m tools.soak.groups --kills $(KILLS)
	$(BIN)/python -m tools.soak.groups --kills 150 --groups 2 --members 8 --gateways 3 --up-seconds 3 10 --must-share
	$(BIN)/python -m tools.soak.groups.mixed --seconds 600
	$(BIN)/python -m tools.soak.groups.mixed --seconds 300 --gateways 7 --must-share
	$(BIN)/pytest -q -m soak
	CONNECTIONS_SECONDS=300 $(BIN)/pytest -q --timeout 900 -m integration -k connections_leave tests/integration/test_drain.py
	TRANSPARENT_LINK_RECORDS=50000 $(BIN)/pytest -q --timeout 900 -m integration -k slow_link tests/integration/test_transparent_live.py
	LEADERS_SECONDS=120 $(BIN)/pytest -q tests/integration/test_leaders_live.py
	STEPS=100000 $(BIN)/pytest -q tests/integration/test_steps_live.py
	PREDICTED_SECONDS=60 $(BIN)/pytest -q --timeout 900 tests/integration/test_predicted_live.py
	TWO_PROCESS_RUNS=10 $(BIN)/pytest -q tests/integration/test_cooperative_two_processes.py
	GROUP_RUNS=400 $(BIN)/pytest -q tests/features/cooperative/test_group_law.py
	LAW_EXAMPLES=2000 $(BIN)/pytest -q --timeout 3600 tests/core/test_expanded_equals_direct.py tests/replay/simulate/test_predicted_equals_measured.py tests/replay/simulate/test_runs.py tests/replay/measure/test_plain.py

bench: programs  ## the figures of BENCHMARKS.md, side by side in one run
	$(BIN)/python -m tools.bench --long

docs: $(STAMP)  ## the documentation as a site, in .cache/site
	$(BIN)/python -m tools.docs_site

pages: $(STAMP)  ## the reference pages that are made from declarations in code: docs/reference
	$(BIN)/python -m tools.pages

pictures: $(STAMP)  ## the pictures of the README and the documentation, of this version
	$(BIN)/python -m tools.picture
	$(BIN)/python -m tools.diagram
	$(BIN)/python -m tools.debian
	$(BIN)/python -m tools.report_picture

dist: $(STAMP)  ## wheel, sdist, SBOM and one file that runs, of the last commit, built twice to the same bytes
	$(BIN)/python -m tools.dist

clean:  ## remove what the other targets made
	rm -rf .venv .venv-* .cache build dist *.egg-info
	find . -name __pycache__ -prune -exec rm -r {} +
