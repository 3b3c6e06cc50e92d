# `make demo`, `make test` and `make check` do all their own set-up; Python 3.10+ (with venv) and make
# are enough.
# make PYTHON=python3.12 ...     another Python
# make TORCH=torch==2.9.1 ...    another PyTorch; its CPU build is taken where one can be had

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_CUDA ?= torch==2.11.0
STUB ?= ../shared/cuda_stub
TRACES ?= ../shared/allocator_traces
GPU_PYTHON ?= $(or $(wildcard .venv-cuda/bin/python),$(PYTHON))
PYTEST_ARGS ?=

# Each process begins with its share of the tests in their order, and takes from the others when it is
# done: what a file's tests share is seldom made twice.
PYTEST := -m pytest --numprocesses=logical --dist=worksteal $(PYTEST_ARGS)

# The notebook stacks beside the newest, and the tests that depend on the stack.
IPYTHON8 := 'ipython<9' 'ipykernel<7'
COLAB := ipython==7.34.0 ipykernel==6.17.1 ipywidgets==7.7.1 traitlets==5.7.1 nbclassic playwright
STACK_TESTS := tests/stacks $(wildcard tests/test_magics*.py)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
.DEFAULT_GOAL := help
.PHONY: help demo test check lint stacks stub test-cuda verify-gpu bench docs picture clean
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 20

demo: .venv-demo/ready ## run notebook 1 on the virtual GPU and print its report
	@.venv-demo/bin/python notebooks/demo.py build/demo

test: lint ## ruff, mypy, and the tests of minutes: all that are not slow
	.venv-test/bin/python $(PYTEST) -q -m 'not slow'

check: lint stacks ## ruff, mypy, and all tests that need no GPU, on three notebook stacks
	.venv-test/bin/python $(PYTEST) --most-seconds=6

lint: .venv-test/ready ## ruff and mypy
	.venv-test/bin/ruff check .
	.venv-test/bin/ruff format --check .
	.venv-test/bin/mypy

stacks: .venv-ipython8/ready .venv-colab/ready
	.venv-ipython8/bin/python $(PYTEST) -q $(STACK_TESTS)
	.venv-colab/bin/python $(PYTEST) -q $(STACK_TESTS) tests/browser/test_panel.py

ifneq ($(wildcard $(STUB)/build.sh),)
stub: .venv-cuda/ready build/stub/run.sh

test-cuda: .venv-test/ready stub ## the tests on the stub CUDA device (5 GB of downloads)
	build/stub/run.sh .venv-cuda/bin/python $(PYTEST) -q tests/cuda
	GPUMEM_STUB=$(CURDIR)/build/stub GPUMEM_STUB_PYTHON=$(CURDIR)/.venv-cuda/bin/python \
	  .venv-test/bin/python $(PYTEST) --dist=loadfile -q tests/stub  # a file's tests share its runs

build/stub/run.sh: .venv-cuda/ready
	$(STUB)/build.sh build/stub .venv-cuda/bin/python
else
stub:

test-cuda:
	@echo "test-cuda: skipped: no stub CUDA device at $(STUB) (set STUB=/path/to/cuda_stub)"
endif

verify-gpu: ## tests and benchmarks on this machine's GPU, in 8 minutes; GPU_PYTHON has PyTorch and pytest
	@$(GPU_PYTHON) benchmarks/verify_gpu.py

bench: .venv-bench/ready ## the benchmarks, as tables
	.venv-bench/bin/python benchmarks/overhead.py
	.venv-bench/bin/python benchmarks/analysis.py
	GPUMEM_STUB=$(abspath $(wildcard build/stub)) GPUMEM_STUB_PYTHON=$(abspath $(wildcard .venv-cuda/bin/python)) \
	  .venv-bench/bin/python benchmarks/agreement.py
ifneq ($(wildcard $(TRACES)),)
	GPUMEM_SHARED=$(dir $(TRACES)) .venv-bench/bin/python benchmarks/replay.py
else
	@echo "replay.py: skipped: no recorded allocator traces at $(TRACES)"
endif

docs: .venv-docs/ready ## the pages of docs/ as a site, in build/docs
	.venv-docs/bin/python -m sphinx -qW --keep-going docs build/docs
	@echo "open build/docs/index.html"

picture: .venv-test/ready ## draw the README's pictures anew, from real runs
	.venv-test/bin/python docs/picture.py docs/report.png
	.venv-test/bin/python -m pytest -q -n0 tests/browser/test_screen.py -k jupyterlab
	cp build/screenshots/beside-jupyterlab.png docs/panel.png

clean: ## remove everything that was made here
	rm -rf .venv-* build docs/notebooks *.egg-info .*_cache .coverage

# $(call venv,PYTORCH,EXTRA,PINS): a virtual environment of its own, made anew when setup.cfg or the
# Makefile changes. `ready` is written last, so that a broken installation is not taken for a good one.
define venv
	@echo "Setting up $(@D): a minute or two"
	@rm -rf $(@D)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed")'
	@$(PYTHON) -m venv $(@D)
	@$(1)
	@$(@D)/bin/python -m pip install -qq --no-compile -e '.[$(2)]' $(3)
	@touch $@
endef

# PyTorch without the 5 GB of CUDA libraries that its default build brings to Linux: the CPU build from
# pip's own sources; else uv, which knows where PyTorch keeps it; else whatever pip finds.
define torch_cpu
	$(@D)/bin/python -m pip install -qq --no-compile '$(TORCH)+cpu' 2>/dev/null \
	|| { $(@D)/bin/python -m pip install -qq --no-compile uv && \
	     $(@D)/bin/uv pip install -qq --python $(@D)/bin/python --torch-backend=cpu '$(TORCH)'; } 2>/dev/null \
	|| $(@D)/bin/python -m pip install -qq --no-compile '$(TORCH)'
endef

SOURCES := setup.cfg pyproject.toml Makefile

.venv-demo/ready: $(SOURCES)
	$(call venv,$(torch_cpu),demo)

.venv-test/ready: $(SOURCES)
	$(call venv,$(torch_cpu),test)

.venv-ipython8/ready: $(SOURCES)
	$(call venv,$(torch_cpu),stack,$(IPYTHON8))

.venv-colab/ready: $(SOURCES)
	$(call venv,$(torch_cpu),stack,$(COLAB))

.venv-docs/ready: $(SOURCES)
	$(call venv,$(torch_cpu),docs)

.venv-bench/ready: $(SOURCES)
	$(call venv,$(torch_cpu),bench)

.venv-cuda/ready: $(SOURCES)
	$(call venv,$(@D)/bin/python -m pip install -qq --no-compile '$(TORCH_CUDA)',stack)
