# Two commands do everything on a machine with Python 3.11 and make:
#   make demo   install into .venv and show a real answer
#   make test   lint, types, layering and all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Debian packages that tests need; installed when missing and root.
SYSTEM_PACKAGES := tshark

.PHONY: all install demo test test-long check bench format clean system-packages

all: install

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server,tomography,dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/sojourn demo

check: $(STAMP)
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy

test: $(STAMP) system-packages check
	$(BIN)/python -m pytest -n auto --dist loadgroup -m "not long"

test-long: $(STAMP) system-packages
	$(BIN)/python -m pytest -n auto --dist loadgroup -m long

bench: $(STAMP) system-packages
	$(BIN)/python -m bench

format: $(STAMP)
	$(BIN)/ruff check --fix src tests bench
	$(BIN)/ruff format src tests bench

system-packages:
	@sh scripts/install-system-packages $(SYSTEM_PACKAGES)

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
