# The front door: `make` builds build/fathom, `make help` lists the rest. Everything here is a few lines around CMake's
# presets (CMakePresets.json) and the scripts in tools/.
.DEFAULT_GOAL := build
.PHONY: build demo serve test test-long test-clients bench fuzz adversary asan tsan cross cuda format format-check lint install clean help packages
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
ADVERSARY_SECONDS ?= 600
ADVERSARY_SEED ?= 1
ADVERSARY_CASES ?= 1000000000
SOURCES = $(shell find src tests bench examples tools -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
export CMAKE_BUILD_PARALLEL_LEVEL = $(JOBS)

build: build/build.ninja  ## install what is missing (apt), configure, build build/fathom
	@cmake --build build --target fathom

packages:
	@tools/install_packages.sh build

build/build.ninja: | packages
	cmake --preset release

demo: build  ## fetch SmolLM2-135M (without a network: use the model that ships) and run it at several depths, side by side
	@tools/demo.sh

serve: build  ## SmolLM2 with its adapter (without a network: the model that ships) at http://localhost:8080, OpenAI's API
	@model=$$(tools/fetch_smollm2.sh) && exec build/fathom serve -m "$$model" --adapter models/smollm2-135m --alias SmolLM2 || \
	  exec build/fathom serve -m builtin

test: build/build.ninja  ## build and run the tests, but for the long ones
	@tools/install_packages.sh test
	@cmake --build build --target tests
	@tools/run_tests.sh build -LE long

test-long: build/build.ninja  ## the long tests: SmolLM2, every recipe, every command of the documentation, the papers' tables
	@tools/install_packages.sh test
	@cmake --build build --target all benchmarks serve_load  # what else is compiled only when somebody asks for it
	@tools/run_tests.sh build -L long

test-clients: build  ## real clients against `fathom serve`: openai, lm-evaluation-harness, curl; then a soak
	@tools/install_packages.sh clients
	@tools/test_clients.sh

asan tsan:  ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer, or ThreadSanitizer
	@tools/install_packages.sh build test
	cmake --preset $@
	@cmake --build build-$@
	@tools/run_tests.sh build-$@

cross:  ## the other architecture's kernels, cross-built and run in qemu
	@tools/install_packages.sh build cross
	cmake --preset cross
	@cmake --build build-cross
	@FATHOM_SMOLLM2=none tools/run_tests.sh build-cross

fuzz:  ## every parser under libFuzzer, FUZZ_SECONDS each (60)
	@tools/install_packages.sh build fuzz
	cmake --preset fuzz
	@cmake --build build-fuzz --target fuzzers
	@tools/fuzz.sh build-fuzz $(FUZZ_SECONDS) $(JOBS)

adversary: build  ## damaged files of every kind for the real program, ADVERSARY_SECONDS (600), by ADVERSARY_SEED (1)
	@tools/adversary.py --seconds $(ADVERSARY_SECONDS) --cases $(ADVERSARY_CASES) --seed $(ADVERSARY_SEED) --jobs $(JOBS)

bench: build  ## kernel timings, then the engine's own
	@cmake --build build --target benchmarks
	@set -e; for bench in build/bench/*_bench; do if [ -x $$bench ]; then $$bench; fi; done
	@build/fathom bench -m "$$(tools/fetch_smollm2.sh || echo builtin)"

results-%: build  ## a paper's tables in small: gateskip, mindskip, skipmiddle, skiplayer, or the others of docs/results.md; RESULTS="--jobs 16"
	@tools/results.py $* $(RESULTS)

cuda:  ## build build-cuda/fathom with the CUDA backend (needs nvcc)
	@tools/install_packages.sh build
	cmake --preset cuda
	@cmake --build build-cuda --target fathom

format:  ## clang-format, in place
	@tools/install_packages.sh lint
	clang-format -i $(SOURCES)

format-check:
	@tools/install_packages.sh lint
	@clang-format --dry-run -Werror $(SOURCES)

lint: format-check  ## order of the folders, plain English, clang-format, clang-tidy
	@tools/install_packages.sh tidy
	@tools/check_includes.py
	@tools/check_english.py
	@tools/gpu_report.py check
	@tools/install_packages.sh build
	@cmake --preset release -B build-lint -D FATHOM_PRECOMPILE=OFF -D FATHOM_JOIN=0 >/dev/null
	@cmake --build build-lint --target build_info_file
	@run-clang-tidy -quiet -p build-lint -j $(JOBS) 'src/.*(?<!_test)\.cc$$' | { grep -E 'warning:|error:' && exit 1 || echo 'clang-tidy: clean'; }

install: build  ## copy program, libraries, headers and the CMake package to PREFIX (/usr/local)
	@cmake --build build
	cmake --install build --prefix $(PREFIX)

clean:  ## remove what was built (.cache, with what was fetched, stays)
	rm -rf build build-debug build-asan build-tsan build-fuzz build-cross build-cuda build-lint

help:
	@awk -F ':.*## ' '/^[a-z% -]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
