# Two commands do everything on a machine with Python 3.11 and make:
#   make demo   install into .venv and show the whole system at work
#   make test   lint, types, layering and all tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(VENV)/.kernels
WARM := $(VENV)/.warm
MICROPYTHON := $(VENV)/micropython
AXE := $(VENV)/axe

# Debian packages that tests need; installed when missing and root.
SYSTEM_PACKAGES := chromium dnsmasq-base ethtool fish frr groff-base iperf3 iproute2 iputils-ping mosquitto \
	mosquitto-clients nftables postgresql prometheus systemd tcpdump tshark util-linux zsh

.PHONY: all install demo test test-long test-checked fuzz check bench docs figures dist format clean system-packages

all: install

install: $(STAMP) $(KERNELS)

# First what is locked, each package by its hash; then Sojourn itself, and what a change of pyproject.toml has added since.
$(STAMP): pyproject.toml requirements/development.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/development.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[server,tomography,web,dev]'
	touch $@

# Compiled kernels are cached per file and do not notice changes in what they inline. Bytecode is written here because
# where PYTHONDONTWRITEBYTECODE is set every command would translate its modules anew.
$(KERNELS): $(STAMP) $(shell find src -name '*.py')
	find src -name '*.nbi' -delete -o -name '*.nbc' -delete
	$(BIN)/python -m compileall -q src
	touch $@

# The node unit is tested on a real MicroPython, by Node.js.
$(MICROPYTHON)/.installed: $(STAMP) scripts/install-micropython
	sh scripts/install-micropython $(MICROPYTHON)

# Whether pages can be used by everyone is judged by axe-core, in the browser.
$(AXE)/.installed: $(STAMP) scripts/install-axe
	sh scripts/install-axe $(AXE)

demo: $(KERNELS)
	$(BIN)/sojourn demo

check: $(STAMP)
	$(BIN)/ruff check src tests bench fuzz scripts
	$(BIN)/ruff format --check src tests bench fuzz scripts
	$(BIN)/mypy

# Compiled once, beside the checks: tests in two processes would each compile what both need.
$(WARM): $(KERNELS)
	$(BIN)/sojourn warm-up
	touch $@

# Pytest keeps what it makes of the assertions of a test file, for the other processes and for the next run.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Three processes for two cores: tests of servers and agents mostly wait. Who runs what is said in tests/processes.py.
PROCESSES := $(shell echo $$(($$(nproc) * 3 / 2)))

test: $(KERNELS) $(MICROPYTHON)/.installed $(AXE)/.installed system-packages
	$(MAKE) --no-print-directory -j 2 check $(WARM)
	$(PYTEST) -n $(PROCESSES) -m "not long and not live"
	$(PYTEST) -m "live and not long"

test-long: $(KERNELS) system-packages
	$(PYTEST) -n auto -m "long and not live"
	$(PYTEST) -m "long and live"

# Tests whose kernels are quick enough for the interpreter, which checks every load; no compiled code is involved.
CHECKED := tests/core tests/epochs $(addprefix tests/capture/,$(addsuffix .py,files/test_capture_files files/test_extreme_times \
	decode/test_decoding decode/test_identity decode/test_keying decode/test_transport test_filter_programs \
	flows/test_table flows/test_translation)) $(addprefix tests/rtt/,test_dns.py test_mqtt.py test_rtt_rules.py)

test-checked: $(KERNELS)
	NUMBA_DISABLE_JIT=1 $(BIN)/python -m pytest -p fuzz.checked_tests -W ignore::RuntimeWarning $(CHECKED)

fuzz: $(KERNELS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fuzz]'
	$(BIN)/python -m fuzz

bench: $(KERNELS) system-packages
	$(BIN)/python -m bench

# The documentation as a site, in site/; it needs no network to be built or read.
docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The pictures of the documentation, from runs and from its own tables.
figures: $(KERNELS)
	$(BIN)/python -m scripts.figures

# The wheel, its sources, and a bill of materials (CycloneDX) of what the image installs with it.
dist: $(STAMP)
	PYTHON=$(BIN)/python sh scripts/dist

format: $(STAMP)
	$(BIN)/ruff check --fix src tests bench fuzz scripts
	$(BIN)/ruff format src tests bench fuzz scripts

system-packages:
	@sh scripts/install-system-packages $(SYSTEM_PACKAGES)

clean:
	rm -rf $(VENV) site dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .fuzz
	find src tests bench fuzz -name __pycache__ -type d -prune -exec rm -rf {} +
