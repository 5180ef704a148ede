# Two commands do everything on a fresh machine: `make run` and `make test`.
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
WORKERS ?= $(shell nproc 2>/dev/null || echo 2)
MINUTES ?= 5
SEED ?= 0

# Each worker starts with its half of the tests in their order, and takes over from the other's end.
PYTEST = -m pytest -n $(WORKERS) --dist worksteal

# Types are checked while the tests run; what they say comes after the tests, and fails as they do.
define beside_types
mkdir -p build; $(MAKE) --no-print-directory types > build/types.log 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
$(1); tests=$$?; wait $$types; types=$$?; cat build/types.log; exit $$((tests || types))
endef

# An extra package index with CPU wheels of torch: make TORCH_INDEX=… test
export TORCH_INDEX

.PHONY: help setup run test test-all test-newest test-oldest lock lock-check lint style types bench fuzz native-asan native-tsan stubs pages clean

help: ## show what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 12

setup: $(READY) ## make .venv with everything that tests need

$(READY): pyproject.toml constraints.txt tools/environment.py CMakeLists.txt $(wildcard csrc/* csrc/*/*)
	@python3 -m tools.environment $(VENV)
	@touch $(READY)

run: $(READY) ## the demo
	@$(VENV)/bin/sightline demo

test: style ## lint, types, import rules, all quick tests
	@$(call beside_types, $(PYTHON) $(PYTEST) -m "not long")

test-all: style ## the long tiers too
	@$(call beside_types, $(PYTHON) $(PYTEST))

test-newest: ## the tests with the newest of everything, in build/newest
	@python3 -m tools.environment build/newest --newest
	@build/newest/bin/python $(PYTEST) -m "not long"

test-oldest: ## the tests with the lower bounds of pyproject.toml, in build/oldest
	@python3 -m tools.environment build/oldest --oldest
	@build/oldest/bin/python $(PYTEST) -m "not long"

lock: ## pin the newest of everything (or only: make lock PACKAGES="rich ruff") and show the difference
	@python3 -m tools.lock $(PACKAGES)

lock-check: ## say whether the pins are still what pyproject.toml asks for
	@python3 -m tools.lock --check

lint: style types ## ruff, basedpyright, import-linter

style: $(READY)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/lint-imports

types: $(READY)
	@$(VENV)/bin/basedpyright --level error

bench: $(READY) ## side-by-side measurements, as ratios
	@$(PYTHON) -m bench.core
	@$(PYTHON) -m bench.generation
	@$(PYTHON) -m bench.seeing
	@$(PYTHON) -m bench.training
	@$(PYTHON) -m bench.peers
	@$(PYTHON) -m bench.native

fuzz: $(READY) ## damaged files through every reader, for MINUTES=5 with SEED=0; findings go to build/fuzz
	@$(PYTHON) -m tools.fuzz --minutes $(MINUTES) --seed $(SEED) --workers $(WORKERS)

native-asan: $(READY) ## the kernels' tests under the address and undefined-behaviour sanitizers
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt nanobind cmake ninja
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH cmake -S . -B build/asan -G Ninja -DSIGHTLINE_SANITIZE=ON -DPython_EXECUTABLE=$(CURDIR)/$(PYTHON) > /dev/null
	@PATH=$(CURDIR)/$(VENV)/bin:$$PATH cmake --build build/asan
	@SIGHTLINE_NATIVE=$$(ls $(CURDIR)/build/asan/_native*.so) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=halt_on_error=1 \
		LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
		$(PYTHON) $(PYTEST) tests/test_kernels.py tests/core/test_linear.py tests/native -p no:cacheprovider -m "not long" \
		--deselect tests/native/test_endurance.py::test_ten_thousand_random_steps_leave_nothing  # the sanitizer delays the reuse of freed memory

native-tsan: ## engines and kernels in several threads, in C++ alone, under ThreadSanitizer
	@mkdir -p build/tsan
	@$(CXX) -std=c++17 -O1 -g -Wno-psabi -fsanitize=thread -DSIGHTLINE_ISA=portable -Icsrc csrc/tests/race.cpp csrc/isa.cpp csrc/dispatch.cpp \
		csrc/threads.cpp csrc/engine/cache.cpp csrc/engine/check.cpp -pthread -o build/tsan/race
	@TSAN_OPTIONS=halt_on_error=1 build/tsan/race 20

stubs: $(READY) ## sightline/_native.pyi, from the compiled module
	@$(PYTHON) -m pip install --quiet --disable-pip-version-check -c constraints.txt nanobind
	@$(PYTHON) -m nanobind.stubgen -q -m sightline._native -o sightline/_native.pyi
	@$(VENV)/bin/ruff check -q --fix sightline/_native.pyi && $(VENV)/bin/ruff format -q sightline/_native.pyi

pages: $(READY) ## docs/architecture.md's tree and docs/benchmarks.md's tables and docs/laboratory/notes.md, from their sources
	@$(PYTHON) -m tools.pages

clean: ## remove the environment and caches
	@rm -rf $(VENV) build .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist *.egg-info
