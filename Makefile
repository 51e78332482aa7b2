# The two commands that matter: `make demo` and `make test`. Both set up .venv from nothing but Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
FAST := lbg_runtime/transport/solace/fast
COMPILED := $(wildcard $(FAST)/*.c)
DEMO_ARGS ?=
PYTEST_ARGS ?=

.PHONY: demo test check unit conformance docs audit clean

demo: $(VENV)/demo.stamp
	$(BIN)/lbg demo $(DEMO_ARGS)

test: check unit

check: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/test.stamp
	$(BIN)/python -m pytest -n 4 --dist loadscope $(PYTEST_ARGS)

# Against a broker of yours: LBG_TEST_HOST=host[:port], and where they differ from the vendor's container, LBG_TEST_SEMP=URL,
# LBG_TEST_VPN=NAME, LBG_TEST_ADMIN=USERNAME:PASSWORD. It makes and deletes queues and a client username there.
conformance: $(VENV)/test.stamp
	$(if $(LBG_TEST_HOST),,$(error LBG_TEST_HOST is not set; expected host or host:port of a broker))
	LBG_TEST_HOST=$(LBG_TEST_HOST) $(BIN)/python -m pytest -v tests/transport/test_conformance_given_broker.py $(PYTEST_ARGS)

docs: $(VENV)/test.stamp
	$(BIN)/python -m lbg_runtime.cli.reference docs

# Looks the pinned versions up among known vulnerabilities, so it needs a network, and is no part of `make test`. Strict,
# as otherwise a package that could not be looked up would pass.
audit: | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip --disable-pip-version-check --quiet install pip-audit
	$(VENV)/audit/bin/pip-audit --strict --no-deps --disable-pip --requirement constraints.txt

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)

# What is compiled is optional, so pip is content when it is not: then the outcome of older sources must not stay in use.
$(VENV)/demo.stamp: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python
	rm -f $(FAST)/*.so
	$(PIP) install -c constraints.txt -e '.[validate]'
	touch $@

$(VENV)/test.stamp: pyproject.toml constraints.txt $(COMPILED) | $(BIN)/python
	$(BIN)/python -c 'import sys; sys.exit(0 if sys.version_info < (3, 15) else "The tests need Python 3.11 to 3.14: Spark needs pandas 2, which has no wheels for " + sys.version.split()[0])'
	rm -f $(FAST)/*.so
	$(PIP) install -c constraints.txt -e '.[test]'
	touch $@ $(VENV)/demo.stamp

clean:
	rm -f $(FAST)/*.so
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
