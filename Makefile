# Everything a person does with Peerwatch begins here; `make` alone lists it.
#
#   ARGS="--fault slow_link"   options for `make demo`, or for pytest
#   PREFIX, UNITS, CONFIG      where `make install` puts the program, its units and its configuration
#   STATE, CACHE               the folders that the units keep; `make uninstall` removes CACHE alone
#   EXTRAS="nats cluster"      what `make install` adds; what the configuration there names is added by itself
#   WHEELS, OUT                folders of `make wheels` (Python packages) and `make packages` (.deb files)

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

# The distribution's interpreter, whatever else is on PATH: bcc is built for it and for no other.
PYTHON := /usr/bin/python3
VENV := $(CURDIR)/.venv
DEBIAN := python3-bpfcc python3-venv gcc libc6-dev linux-libc-dev
# Real servers that the tests start on loopback. They are unpacked, not installed: no service of theirs is begun.
TEST_PACKAGES := influxdb nats-server prometheus prometheus-alertmanager prometheus-node-exporter victoria-metrics
PREFIX := /opt/peerwatch
UNITS := /etc/systemd/system
CONFIG := /etc/peerwatch
STATE := /var/lib/peerwatch
CACHE := /var/cache/peerwatch
WHEELS := wheels
# The versions and hashes that `make install` takes where they fit the interpreter; LOCK= takes the newest.
LOCK := requirements.lock
FITS := import platform, sys; sys.exit((*sys.version_info[:2], platform.machine()) != (3, 11, "x86_64"))
OUT := dist
# The folder that systemd reads. With another UNITS this machine gets no user, no command on PATH and no service.
SYSTEM_UNITS := /etc/systemd/system
# Two processes a core, for tests wait half of their time. 0: one test after another, with -s to see what it prints.
WORKERS := $(shell echo $$((2 * $$(nproc))))
C_FILES = $(shell find bpf emulator tests -name '*.[ch]')
# A virtual environment of somebody's shell, or his own Python paths, must not leak into ours; without cached bytecode each
# process that tests start would compile all that it imports.
unexport PYTHONHOME PYTHONPATH PYTHONDONTWRITEBYTECODE VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup tools system servers wheels packages nccl demo test bench soak format install uninstall clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 12

# What is missing is installed by root; anybody else is told what to ask for and what goes without it.
system:
	@missing=()
	for package in $(DEBIAN); do
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing+=($$package)
	done
	[ $${#missing[@]} -eq 0 ] && exit 0
	if [ $$(id -u) -eq 0 ] && command -v apt-get >/dev/null; then
		echo "setup: installing $${missing[*]}"
		export DEBIAN_FRONTEND=noninteractive
		apt-get update -qq
		apt-get install -y -qq --no-install-recommends $${missing[@]} >/dev/null
	else
		echo "setup: missing $${missing[*]}; ask root for: apt-get install $${missing[*]}"
		echo "setup: without python3-bpfcc there are no probes, without gcc and libc6-dev no emulated fleet"
		[[ " $${missing[*]} " != *" python3-venv "* ]] || { echo "setup: without python3-venv nothing can be set up" >&2; exit 1; }
	fi

# $(1) is what pip installs: nothing if that, or more of it, was installed from this pyproject.toml.
define set_up
@wanted="$$(sha256sum pyproject.toml | cut -d' ' -f1) $(VENV) $$($(PYTHON) --version) $(1)"
if [ -x $(VENV)/bin/peerwatch ] && [[ "$$(cat $(VENV)/.setup 2>/dev/null)" = "$$wanted"* ]]; then exit 0; fi
echo "setup: Python packages into $(VENV)"
grep -qsx "home = $(patsubst %/,%,$(dir $(PYTHON)))" $(VENV)/pyvenv.cfg || rm -rf $(VENV)
$(PYTHON) -m venv --system-site-packages $(VENV)
extras="$(strip $(1))"
$(VENV)/bin/python -m pip install --quiet --editable ".[$${extras// /,}]"
echo "$$wanted" > $(VENV)/.setup
endef

setup: system ## install what is missing and leave the command at .venv/bin/peerwatch
	$(call set_up,agent detector)

# systemd brings systemd-analyze, which judges the units.
tools: DEBIAN += systemd
tools: system
	$(call set_up,agent detector test)

servers: tools
	@export DEBIAN_FRONTEND=noninteractive
	for package in $(TEST_PACKAGES); do
		place=$(VENV)/servers/$$package
		[ ! -d $$place ] || continue
		room="$$(mktemp -d)"
		fetch() { (cd "$$room" && apt-get -qq -o APT::Sandbox::User=root download $$package >/dev/null 2>&1); }
		if fetch || { [ $$(id -u) -eq 0 ] && apt-get update -qq && fetch; }; then
			echo "test: $$package into $$place"
			mkdir -p $$place
			dpkg -x "$$room"/*.deb $$place
		else
			echo "test: $$package cannot be fetched; tests that need it are skipped"
		fi
		rm -rf "$$room"
	done

# NVIDIA's own library, which the emulated ranks run on; without it they run on an emulated one.
nccl: setup
	@$(VENV)/bin/python -m emulator.libraries.wheel $(NCCL) || true

demo: nccl ## an emulated fleet, one fault, and the verdict; options in ARGS
	@exec $(VENV)/bin/peerwatch demo $(ARGS)

test: NCCL := 2.21.5 2.23.4 2.27.3 2.29.3 2.32.3
test: servers nccl ## every check: style, types, floors, C format, tests
	@[ $$(id -u) -eq 0 ] || echo "test: without root, tests that load probes are skipped"
	export PATH="$(VENV)/bin:$$PATH"
	ruff check
	ruff format --check
	mypy & types=$$!
	lint-imports
	clang-format --dry-run -Werror $(C_FILES)
	# Rewriting the asserts takes 6 s: one process does it for all, while types are checked; what fails here fails again below.
	python -m pytest --collect-only -qq >/dev/null || true
	wait $$types
	python -m pytest -rs --durations=10 -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || ended=$$?
	# A test that waits may starve beside others on two cores; what is broken fails alone, too.
	[ $${ended:=0} -eq 1 ] || exit $$ended
	echo "test: failed beside others, once more alone:"
	python -m pytest -v --last-failed --last-failed-no-failures none

bench: servers nccl ## what it costs and how well it does, measured here and printed
	@exec $(VENV)/bin/python -m pytest -m bench -s --timeout=0 $(ARGS)

soak: servers ## ten minutes of a hundred agents and their server under random kills
	@exec $(VENV)/bin/python -m pytest -m bench -s --timeout=0 -k soak tests/store/bench/test_soak.py $(ARGS)

format: tools ## bring Python and C into form
	@export PATH="$(VENV)/bin:$$PATH"
	ruff format
	ruff check --fix
	clang-format -i $(C_FILES)

install: system ## as root: program, units and configuration (which is kept if it is there); again to upgrade
	@[ -w "$$(dirname $(PREFIX))" ] || { echo "install: needs root, try: sudo make install" >&2; exit 1; }
	$(PYTHON) -m venv --system-site-packages $(PREFIX)
	extras=(agent detector $(EXTRAS))
	! grep -qsE '^[^#]*"(nats|tls)://' $(CONFIG)/peerwatch.toml || extras+=(nats)
	! grep -qs -e --cluster $(UNITS)/peerwatch-detector.service.d/*.conf || extras+=(cluster)
	lock="$(LOCK)"
	$(PREFIX)/bin/python -c '$(FITS)' || lock=""
	[ -z "$$lock" ] || $(PREFIX)/bin/python -m pip install --quiet --require-hashes -r "$$lock"
	rm -rf build
	$(PREFIX)/bin/python -m pip install --quiet --upgrade $${lock:+--no-build-isolation} ".[$$(IFS=,; echo "$${extras[*]}")]"
	rm -rf build
	install -d $(UNITS) $(CONFIG)
	[ -e $(CONFIG)/peerwatch.toml ] || install -m 644 systemd/peerwatch.toml $(CONFIG)/
	units="$$(cd systemd && echo *.service)"
	for unit in $$units; do
		sed -e 's|/opt/peerwatch|$(PREFIX)|g' -e 's|/etc/peerwatch|$(CONFIG)|g' systemd/$$unit > $(UNITS)/$$unit
	done
	for folder in influxdb grafana prometheus; do
		install -d $(PREFIX)/share/peerwatch/$$folder
		install -m 644 systemd/$$folder/* $(PREFIX)/share/peerwatch/$$folder/
	done
	$(PREFIX)/bin/python -I -m cli.manual $(PREFIX)/share/man
	if [ $$(id -u) -eq 0 ] && [ $(UNITS) = $(SYSTEM_UNITS) ]; then
		id -u peerwatch >/dev/null 2>&1 || useradd --system --no-create-home --shell /usr/sbin/nologin peerwatch
		ln -sf $(PREFIX)/bin/peerwatch /usr/local/bin/peerwatch
		for page in $(PREFIX)/share/man/man?/*; do
			section=/usr/local/share/man/$$(basename "$$(dirname $$page)")
			mkdir -p $$section
			ln -sf $$page $$section/
		done
		if [ -d /run/systemd/system ]; then
			systemctl daemon-reload
			systemctl try-restart $$units
		fi
	fi
	echo "installed; start with: systemctl enable --now peerwatch-agent peerwatch-detector"
	[[ " $${extras[*]} " != *" nats "* ]] || echo "and, on a machine that empties the stream: systemctl enable --now peerwatch-writer"

uninstall: ## as root: take all of it away, but the configuration and the readings
	@[ -w "$$(dirname $(PREFIX))" ] || { echo "uninstall: needs root, try: sudo make uninstall" >&2; exit 1; }
	units="$$(cd systemd && echo *.service)"
	if [ -d /run/systemd/system ] && [ $(UNITS) = $(SYSTEM_UNITS) ]; then
		systemctl disable --now $$units 2>/dev/null || true
	fi
	kept=()
	for unit in $$units; do
		rm -f $(UNITS)/$$unit
		rmdir $(UNITS)/$$unit.d 2>/dev/null || [ ! -d $(UNITS)/$$unit.d ] || kept+=($(UNITS)/$$unit.d)
	done
	[ ! -d /run/systemd/system ] || systemctl daemon-reload
	for link in /usr/local/bin/peerwatch /usr/local/share/man/man?/peerwatch*; do
		[[ "$$(readlink $$link)" != $(PREFIX)/* ]] || rm $$link
	done
	[ ! -e $(PREFIX)/pyvenv.cfg ] || rm -rf $(PREFIX)
	rm -rf $(CACHE)
	for place in $(CONFIG) $(STATE); do [ ! -e $$place ] || kept+=($$place); done
	echo "uninstalled; kept: $${kept[*]:-nothing}"
	! id -u peerwatch >/dev/null 2>&1 || echo "the user peerwatch is kept, for it owns $(STATE); to remove it: userdel peerwatch"

# The only step that needs a network; what comes is compared with the hashes of requirements.lock.
wheels: system ## fetch the Python packages of requirements.lock into WHEELS
	@$(PYTHON) -c '$(FITS)' || { echo "wheels: requirements.lock is for Python 3.11 on x86-64 (Debian 12)" >&2; exit 1; }
	room="$$(mktemp -d)"
	trap 'rm -rf "$$room"' EXIT
	$(PYTHON) -m venv "$$room"
	"$$room"/bin/python -m pip download --quiet --no-deps --require-hashes --dest $(WHEELS) -r requirements.lock
	echo "wheels: $$(ls $(WHEELS) | wc -l) files in $(WHEELS)"

packages: ## without network: .deb packages from this tree and WHEELS into OUT
	@command -v dpkg-deb >/dev/null || { echo "packages: there is no dpkg-deb: this needs Debian" >&2; exit 1; }
	$(PYTHON) -c '$(FITS)' || { echo "packages: needs Python 3.11 on x86-64 (Debian 12)" >&2; exit 1; }
	$(PYTHON) -c 'import ensurepip' || { echo "packages: needs python3-venv" >&2; exit 1; }
	$(PYTHON) tools/packages.py $(WHEELS) $(OUT)

clean: ## remove what setup and the tests have made here
	@rm -rf $(VENV) build dist wheels *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
