# `make help` lists what there is. Everything needs Go only; `make test` and `make demo`
# also need a PostgreSQL server, which they install as root on Debian.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN     := bin/outbox-cdc
MODULE  := github.com/outbox-cdc/outbox-cdc
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The commit is stamped where git can read this folder (not in a tarball, nor as root in
# a folder of somebody else).
VCS     := $(shell git rev-parse --verify --quiet HEAD >/dev/null 2>&1 && echo auto || echo false)
LDFLAGS := -s -w -X $(MODULE)/internal/cli.version=$(VERSION)

# Tools, each of one version; the version is part of the file name, so that a new one
# is installed by itself.
GOLANGCI_VERSION    := v2.15.0
GOVULNCHECK_VERSION := v1.9.0
GOLANGCI    := .bin/golangci-lint-$(GOLANGCI_VERSION)
GOVULNCHECK := .bin/govulncheck-$(GOVULNCHECK_VERSION)

ORDERS   ?= 200
FUZZTIME ?= 10m
SOAK     ?= 10
SEEDS    ?= 10000
SOAK_TESTS := Killed|StoppedImmediately|CrashBrings|StepDowns|RandomCombinations|AtRandomMoments
BENCH_ROWS ?= 200000
BENCH_MESSAGES ?= 10000000
BENCH_VERIFY_ROWS ?= 2000000

.PHONY: help
help: ## show this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the static binary bin/outbox-cdc
	@CGO_ENABLED=0 go build -trimpath -buildvcs=$(VCS) -ldflags '$(LDFLAGS)' -o $(BIN) .
	@echo "$(BIN): $$($(BIN) version)"

.PHONY: demo
demo: build ## PostgreSQL, JetStream and forwarder on this machine: ORDERS=200 orders, committed = arrived
	$(BIN) dev --orders $(ORDERS) --install

.PHONY: test
test: ## all tests, with -race, against real servers; TEST_FLAGS='-run TestName' for some
	@.ci/test

.PHONY: lint
lint: $(GOLANGCI) ## gofmt, go mod tidy, golangci-lint
	@failed=0; \
	unformatted=$$(gofmt -l .); \
	[ -z "$$unformatted" ] || { printf 'gofmt would change:\n%s\nhint: make fix\n' "$$unformatted"; failed=1; }; \
	go mod tidy -diff || { echo 'hint: go mod tidy'; failed=1; }; \
	go mod verify || failed=1; \
	$(GOLANGCI) config verify || failed=1; \
	$(GOLANGCI) run ./... || failed=1; \
	exit $$failed

.PHONY: fix
fix: $(GOLANGCI) ## let gofmt and the linters mend what they can
	@gofmt -w .
	@$(GOLANGCI) run --fix ./...

.PHONY: vuln
vuln: ## known vulnerabilities in the code that is reached
	@.ci/vuln $(GOVULNCHECK)

.PHONY: bench
bench: ## drain a backlog of BENCH_ROWS=200000 rows, beside the bare loop
	@.ci/need
	@BENCH_ROWS=$(BENCH_ROWS) go test -run '^$$' -bench Backlog -benchtime 1x -timeout 30m ./internal/bench

.PHONY: bench-start
bench-start: ## find the place in a stream of BENCH_MESSAGES=10000000 messages
	@BENCH_MESSAGES=$(BENCH_MESSAGES) go test -run '^$$' -bench Start -benchtime 20x -timeout 60m ./sink

.PHONY: bench-verify
bench-verify: ## compare BENCH_VERIFY_ROWS=2000000 rows with the stream: time and memory
	@.ci/need
	@BENCH_VERIFY_ROWS=$(BENCH_VERIFY_ROWS) go test -run '^$$' -bench Verify -benchtime 1x -timeout 60m ./internal/bench

.PHONY: soak
soak: ## the tests that kill, with SOAK=10 times as many rounds
	@OUTBOX_CDC_SOAK=$(SOAK) TEST_TIMEOUT=90m TEST_FLAGS='-run $(SOAK_TESTS)' TEST_PACKAGES=./internal/e2e .ci/test

.PHONY: sim
sim: ## the forwarder in SEEDS=10000 simulated worlds; OUTBOX_CDC_SIM_SEED=n for one alone
	@OUTBOX_CDC_SIM_SEEDS=$(SEEDS) go test ./internal/sim -count=1 -timeout 60m -v -run TestPromisesHoldUnderRandomFaults

.PHONY: fuzz
fuzz: ## each fuzz test for FUZZTIME=10m
	@for package in $$(go list ./...); do \
		for name in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
			echo "== $$package $$name"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

.PHONY: golden
golden: ## record the decoder's golden files anew from a real PostgreSQL
	@.ci/need
	go test ./decode -count=1 -run TestGolden -update

.PHONY: image
image: ## build the container image outbox-cdc:VERSION
	docker build --build-arg VERSION=$(VERSION) -t outbox-cdc:$(VERSION) .

.PHONY: clean
clean: ## remove what was built, tools included
	rm -rf bin .bin

$(GOLANGCI):
	@echo "building golangci-lint $(GOLANGCI_VERSION): takes some minutes, once"
	@GOBIN=$(CURDIR)/.bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv .bin/golangci-lint $@

$(GOVULNCHECK):
	@GOBIN=$(CURDIR)/.bin go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)
	@mv .bin/govulncheck $@
