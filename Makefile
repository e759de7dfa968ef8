# Every target first makes sure of .venv; when nothing is missing that takes no time.
#
#   make demo DEMO_ARGS=--all      all of the data
#   make demo DEMO_ARGS=--console  with the console open, and the promotion left to you; the other demos have it, too
#   make test TEST_ARGS="-k chunk" some of the tests

PYTEST = .venv/bin/python -m pytest
SOURCES = src tests tools docs $(wildcard bench)
TYPED = src tests tools/tidy.py tools/documents.py tools/references.py $(wildcard bench)

# loadgroup keeps tests that share what is costly in one worker: those of Spark, of clusters, of RabbitMQ. A worker that
# dies, by itself or as its test hangs (pyproject.toml), ends the run: its group would be begun again.
GROUPED = --dist loadgroup --max-worker-restart 0 -p tests.bytecode
# What RabbitMQ answered before is recorded (docs/adr/0021-recorded-answers.md).
ANSWERS = -p tests.conformance.answers --record-answers
# One more than the smallest machine has cores, as some of it waits.
WORKERS = -n 3 $(GROUPED)

# A run starts Python a thousand times: without its bytecode, each start compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

FUZZ_SECONDS = 300

.PHONY: help setup setup-cluster setup-test setup-fuzz setup-docs demo demo-cluster demo-sites screenshots test test-fast test-stories mutants check format docs bench conformance answers torture simulate transcripts fuzz soak clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

setup:  ## make .venv and install what is locked
	@tools/setup

setup-cluster:
	@tools/setup cluster

setup-test:
	@tools/setup test

setup-fuzz:
	@tools/setup fuzz

setup-docs:
	@tools/setup docs

demo: setup  ## a disaster, end to end, on real data
	@.venv/bin/python -m leveret.testing.demo $(DEMO_ARGS)

demo-cluster: setup-cluster  ## a node of a cluster lost, and nobody notices for long
	@.venv/bin/python -m leveret.testing.demo.cluster $(DEMO_ARGS)

demo-sites: setup-cluster  ## a node of each of two clusters lost, then all of the first: the second has every message of it
	@.venv/bin/python -m leveret.testing.demo.lost_cluster $(DEMO_ARGS)

# A process for each of the four long groups (the conformance suite on Leveret, clusters, and Spark twice), which begin
# first, and one for all others; they are forks of one (tests/forked.py). Each waits for its servers about half of the time,
# also on two cores.
REPORTED = -p tests.forked -p tests.bytecode -p tests.conformance.answers -p tests.second_run
SUITE = --processes 5 $(REPORTED)
# Stories start whole sites with a Spark each: five of them at once wait for each other's start.
STORIES = --processes 3 $(REPORTED)
WHOLE_SUITE = $(SUITE) -m "not torture and not fuzz and not oracle"

# Thirty failures are one trouble, which thousands of tests would wait out one after the other.
test: setup-test  ## the tests for every change, without the long stories
	@$(PYTEST) $(SUITE) -m "not story and not torture and not fuzz and not oracle" --maxfail 30 $(TEST_ARGS)

test-stories: setup-test  ## the long stories: whole sites and clusters, more seeds; with `make test` the whole suite
	@$(PYTEST) $(STORIES) -m "story and not torture and not fuzz and not oracle" --maxfail 30 $(TEST_ARGS)

mutants: setup-test  ## put faults into a copy of the product, one at a time, and see the tests find them
	@.venv/bin/python -m tests.mutants --whole-suite '$(WHOLE_SUITE)' $(MUTANTS_ARGS)

# Forks of one process share these, too. None has a process that writes, so what is captured are Python's own streams, which
# takes no file.
test-fast: setup-test  ## the tests that start no process and take no second, property tests with fewer examples
	@$(PYTEST) -p tests.forked -p tests.no_processes --capture sys -m "not process and not long and not story and not torture and not fuzz and not oracle" \
		tests/unit tests/tools $(TEST_ARGS)

check: setup  ## format, lint, types, import contracts, tidiness, links of the documents
	.venv/bin/ruff format --check $(SOURCES)
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/mypy --strict $(TYPED)
	.venv/bin/lint-imports --no-logo
	.venv/bin/python tools/tidy.py
	.venv/bin/python -m tests.mutants --check
	.venv/bin/python tools/documents.py
	.venv/bin/python tools/references.py

format: setup  ## write the format that `make check` asks for
	.venv/bin/ruff format $(SOURCES)
	.venv/bin/ruff check --fix $(SOURCES)

# Links and anchors are checked: a broken one ends the build. README is the first page.
docs: setup-docs  ## the documentation as a site with a search, in build/site
	@.venv/bin/python -m sphinx --fail-on-warning --keep-going --quiet -c docs -d build/doctrees . build/site
	@cp build/site/README.html build/site/index.html
	@echo "the first page is build/site/index.html"

screenshots: setup-test  ## pictures of the console's pages, in build/screenshots
	@.venv/bin/python -m leveret.testing.demo.screenshots $(SCREENSHOTS_ARGS)

bench: setup-test  ## throughput and lag, beside RabbitMQ
	@.venv/bin/python -m bench $(BENCH_ARGS)

conformance: setup-test  ## what stock RabbitMQ clients expect, then the suites that others wrote
	@$(PYTEST) $(WORKERS) $(ANSWERS) tests/conformance tests/cluster tests/unit/testing/servers -m "conformance or oracle" $(TEST_ARGS)
	@.venv/bin/python -m tests.suites $(SUITE_ARGS)

answers: setup-test  ## ask RabbitMQ anew what the conformance suite states of it, and record that it agrees
	@$(PYTEST) $(WORKERS) $(ANSWERS) tests/conformance -m rabbitmq $(TEST_ARGS)

torture: setup-test  ## kill and restart, over and over
	@$(PYTEST) $(WORKERS) -m torture --timeout 1800 -o faulthandler_timeout=0 $(TEST_ARGS)

SIMULATE_S = 60
simulate: setup  ## clusters in virtual time, from new seeds (SIMULATE_S=60 seconds of processor time, SIMULATE_ARGS="--world churn")
	@.venv/bin/python -m leveret.testing.simulation --cpu-seconds $(SIMULATE_S) $(SIMULATE_ARGS)

transcripts: setup  ## play the stories of tests/transcripts again, and write what nodes say in them now
	@.venv/bin/python -m leveret.testing.transcripts tests/transcripts $(TRANSCRIPTS_ARGS)

# Half of the time each.
fuzz: setup-fuzz  ## new examples for every property test, then a coverage-guided fuzzer (FUZZ_SECONDS=300)
	@FUZZ_SECONDS=$$(($(FUZZ_SECONDS) / 2)) \
		$(PYTEST) $(WORKERS) -m "hypothesis or fuzz" --hypothesis-profile fuzz --timeout 1800 \
		-o faulthandler_timeout=0 $(TEST_ARGS)
	@.venv/bin/python -m tests.fuzz --seconds $$(($(FUZZ_SECONDS) / 2)) $(FUZZ_ARGS)

SOAK_MINUTES = 60
soak: setup-test  ## applications that come and go for an hour, and what grows by it (SOAK_MINUTES=60)
	@.venv/bin/python -m tests.soak --minutes $(SOAK_MINUTES) $(SOAK_ARGS)

clean:  ## remove everything that was made
	rm -rf .venv build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
