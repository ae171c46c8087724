# Every target makes its own virtual environment and installs what it needs; nothing else has to be prepared.
PYTHON ?= python3
VENV ?= .venv
PYTHONS ?= 3.11 3.12 3.13 3.14 3.15
PYTEST_ARGS ?=
ROOM ?=
SHARES ?= 3
MODULES ?=
FUZZ_ARGS ?=
REPOSITORY ?=
export NO_MKDOCS_2_WARNING := 1

RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed-

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two installations into one environment must not overlap, whatever -j says.
.NOTPARALLEL:
.PHONY: help demo quick test test-slow test-full test-all test-frameworks test-browser mutants fuzz coverage check ci format docs screens dist bench bench-all clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED)examples ## train a small network on real handwritten digits, fed by worker processes
	$(RUN) examples/digits.py

quick: $(INSTALLED)quick ## run the tests of one package (ROOM=transforms), or the essential ones of all, in a few minutes
	$(RUN) -m tests.essential $(ROOM) -- $(PYTEST_ARGS)

test: $(INSTALLED)test ## run the quick suite in five minutes: tests, doctests, code in the documents
	$(RUN) -m tests -m "not slow and not full" $(PYTEST_ARGS)

test-slow: $(INSTALLED)test ## run what is left out of it because it takes long (tests/slow.txt)
	$(RUN) -m tests -m "slow and not full" $(PYTEST_ARGS)

test-full: $(INSTALLED)test ## run everything; of whole products of cases a third, another in each run (SHARES=1: all)
	TEST_SHARES=$(SHARES) $(RUN) -m tests -m "full or not full" $(PYTEST_ARGS)

test-all: ## run `make test test-slow` on each of Python 3.11 to 3.15 that is found
	@ran=; failed=; missing=; \
	for version in $(PYTHONS); do \
		if python$$version -c "" 2>/dev/null; then \
			echo "== Python $$version"; ran="$$ran $$version"; \
			$(MAKE) --no-print-directory test test-slow PYTHON=python$$version VENV=.venv-$$version || failed="$$failed $$version"; \
		else \
			missing="$$missing $$version"; \
		fi; \
	done; \
	echo "== run:$${ran:- none}; failed:$${failed:- none}; not found:$${missing:- none}"; \
	test -n "$$ran" && test -z "$$failed"

test-frameworks: $(INSTALLED)frameworks ## run the tests that need PyTorch, JAX, Hugging Face datasets, polars or webdataset
	$(RUN) -m pytest -q tests/frameworks tests/sources tests/formats tests/transforms tests/protocol/test_datapoint.py tests/test_documents.py tests/test_examples.py tests/test_notebooks.py $(PYTEST_ARGS)

test-browser: $(INSTALLED)test $(INSTALLED)docs $(INSTALLED)browser ## open the HTML report and all pages of the documents in a headless Chromium
	$(RUN) -m pytest -q -m "full or not full" tests/observe/test_report_page.py tests/pages $(PYTEST_ARGS)

mutants: $(INSTALLED)quick $(INSTALLED)mutants ## change the pure modules in small ways, and list the changes that no test notices
	$(RUN) -m tests.mutants $(MODULES)

fuzz: $(INSTALLED)quick $(INSTALLED)fuzz ## give each parser of foreign bytes ten seconds of bytes that nobody has written
	$(RUN) -m tests.fuzz $(FUZZ_ARGS)

coverage: $(INSTALLED)test $(INSTALLED)coverage ## run what `make ci` runs, and list the branches that it does not reach, in workers too
	$(RUN) -m coverage erase
	-$(RUN) -m coverage run -m tests $(PYTEST_ARGS)  # a few tests notice that they are measured, and fail
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report

check: $(INSTALLED)check $(INSTALLED)docs ## lint, formatting, types, documents
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy --strict dataflow tests/typed
	$(RUN) -m pyright --pythonpath $(RUN)
	$(RUN) -m mkdocs build --strict
	$(RUN) -c "import yaml; yaml.safe_load(open('.github/workflows/ci.yml'))"

ci: check test test-slow ## what has to pass before a change is merged

format: $(INSTALLED)check ## format the code and apply automatic fixes of the linter
	$(RUN) -m ruff format .
	$(RUN) -m ruff check --fix .

docs: $(INSTALLED)docs ## build the documents into site/
	$(RUN) -m mkdocs build --strict

screens: docs $(INSTALLED)test $(INSTALLED)browser ## take pictures of pages at two widths, light and dark, into site/screens/
	$(RUN) -m tests.pages.screens site

dist: $(INSTALLED)dist ## build wheel and source archive, check them, and try the wheel on each Python that is found
	$(RUN) -m release --pythons "$(PYTHONS)" --repository "$(REPOSITORY)"

bench: $(INSTALLED)test ## measure ours beside the peers that install in a minute; BENCH_ARGS=--help lists options
	$(RUN) -m benchmarks $(BENCH_ARGS)

bench-all: $(INSTALLED)test ## measure ours beside every peer, PyTorch and Ray included
	$(RUN) -m benchmarks --all $(BENCH_ARGS)

clean: ## remove environments, caches and whatever was built
	rm -rf .venv .venv-* benchmarks/.envs benchmarks/results .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage mutants site build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment whose installation was interrupted has no stamp, so it is made again.
$(VENV)/.made:
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

# This version of PyTorch alone is small: others bring the libraries of GPUs.
$(INSTALLED)frameworks: $(INSTALLED)test
	$(RUN) -m pip install --quiet --disable-pip-version-check torch==2.13.0
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[frameworks]'
	touch $@

# One stamp per extra of pyproject.toml; an edit there installs again.
$(INSTALLED)%: pyproject.toml | $(VENV)/.made
	$(RUN) -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	touch $@
