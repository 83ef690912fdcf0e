PYTHON ?= $(shell command -v python3.11 || command -v python3)
PIP = .venv/bin/python -m pip --disable-pip-version-check --quiet
READY = .venv/.ready
# Tests at once: one more than there are cores, since many wait for processes that they started.
WORKERS ?= 3

# Real data sets are looked up here; without it the tests that need them skip and say so.
ifneq ($(wildcard ../shared/data),)
export FEDHP_DATA ?= $(abspath ../shared/data)
endif

.PHONY: setup demo docs test frozen accept accept-plus campaign faults soak fuzz mutants bench clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "setting up .venv (once; takes a few minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedhp needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv .venv
	@$(PIP) install "$$(grep '^torch==' constraints.txt)" -c constraints.txt
	@$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: setup
	.venv/bin/fedhp compare experiments/demo.toml

test: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports
	@echo "mypy (which reports after the tests) and pytest:"
	@.venv/bin/mypy > .venv/mypy.log 2>&1 & types=$$!; \
	.venv/bin/pytest -n $(WORKERS) --dist worksteal -m "not slow"; tests=$$?; \
	wait $$types; types=$$?; cat .venv/mypy.log; exit $$(( tests ? tests : types ))

# Results that may not change, against those of an earlier commit: digests of some 300 tiny runs on
# every engine, what commands print about them, refused experiments, recorded run folders. About
# 10 minutes on two cores; ARGS="--only fedhp --engine one" for a part (tests/frozen/__main__.py).
frozen: setup
	PYTHONPATH=tests .venv/bin/python -m frozen $(ARGS)

# docs/reference.md, from the docstrings.
docs: setup
	.venv/bin/python docs/reference.py

# The acceptance campaign; ARGS passes overrides and seeds, for example ARGS="--seeds 3,4,5".
accept: setup
	.venv/bin/python experiments/accept.py experiments/acceptance.toml $(ARGS)

# The acceptance campaign of FedHP+, at most 30 minutes on 2 cores; for other data of the same shape
# give its targets: ARGS="data.name=emnist data.split=digits --targets 0.93,0.88 --seeds 0,1,2".
accept-plus: setup
	.venv/bin/python experiments/accept_plus.py experiments/acceptance_plus.toml $(ARGS)

# The long tests: kills at random moments, thousands of bad configurations.
campaign: setup
	.venv/bin/pytest -n 2 --dist worksteal -m slow

# Kills, stops and partitions of real processes, ten times each; ARGS="--seeds 1" for a quick check.
faults: setup
	PYTHONPATH=tests .venv/bin/python -m faults $(ARGS)
	.venv/bin/pytest -m slow tests/faults/test_shaped.py tests/faults/test_poison.py \
	  tests/faults/test_many.py tests/faults/test_compression.py tests/faults/test_shaped_groups.py \
	  tests/equality/test_network.py

# Hours of random faults: memory, file descriptors and disk at the start and the end;
# ARGS="--hours 0.1" for a quick check.
soak: setup
	PYTHONPATH=tests .venv/bin/python -m faults.soak $(ARGS)

# A million random inputs per network decoder; ARGS="--runs 10000" for a quick check.
# atheris has no wheel for every platform, so setup does not install it.
fuzz: setup
	@.venv/bin/python -c 'import atheris' 2> /dev/null || \
	  $(PIP) install -c constraints.txt "$$(grep '^atheris==' constraints.txt)"
	PYTHONPATH=src:tests .venv/bin/python -m fuzz $(ARGS)

# Do the tests notice? A sample of small faults in the pure rooms, planted one by one; about 20 minutes
# on 2 cores. ARGS="--sample 60 --seed 7" for another, smaller sample.
mutants: setup
	PYTHONPATH=tests .venv/bin/python -m mutants $(ARGS)

# The measured claims, about an hour on a quiet machine; ARGS="--quick --repeats 1" for a quick check.
bench: setup
	.venv/bin/python -m bench $(ARGS)

clean:
	rm -rf .venv runs build
