# quell's targets. Needs Go (the version in go.mod) and, for -race and
# quell-server, a C and C++ compiler.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Nothing that is shipped is linked with C, but quell-server: DuckDB.
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
BENCHTIME ?= 0.5s
FUZZTIME  ?= 10s
PKGS ?= ./...

CC_FOUND  := $(shell command -v $${CC:-gcc} || command -v clang)
CXX_FOUND := $(shell command -v $${CXX:-g++} || command -v clang++)
RACE      := $(if $(CC_FOUND),-race)

.PHONY: help demo demo-figures fault cluster-fault churn test test-guests test-browser bench bench-agent lab-smoke lab-fault lab-load quality fuzz lint build generate clean bin/quell bin/quell-agent bin/quell-server

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: bin/quell bin/quell-agent ## build and run the demo: one noisy neighbour found, proved and quieted
	bin/quell demo

demo-figures: bin/quell bin/quell-agent ## play the demo 45 times against what is promised of it (half an hour)
	go run ./internal/demo/figures

# QUELL_TEST_KILLS=5000 for more points, QUELL_TEST_SEED=1 for the same ones again.
churn: bin/quell-agent ## 100,000 cgroups come and go under the agent: it holds on to none, and loses no sample (root, 2 to 5 minutes)
	go test -count 1 -v -timeout 10m ./cmd/quell-agent -run '^TestChurn$$' -args -agent $(CURDIR)/bin/quell-agent -churn 100000

cluster-fault: ## kill -9 of the bus's server, of agents, and of one of three nodes, 50 times each under load (30 minutes)
	go test -count 1 -v -timeout 60m ./internal/bus -run '^Test(Cluster)?Kills$$' -args -kills 50

fault: bin/quell-agent ## kill -9 at 1,000 points and see that every limit comes back (root, 10 minutes)
	CGO_ENABLED=0 go run ./internal/enforce/fault

# Packages whose tests ask something of the machine may measure it, and would
# disturb each other: they go one at a time, after all others.
ALONE  = $(shell go list $(PKGS) | grep -Fx "$$(grep -lr --include='*_test.go' 'quelltest[.]Need' cmd internal | xargs -n1 dirname | sort -u | sed "s,^,$$(go list -m)/,")")
OTHERS = $(filter-out $(ALONE),$(shell go list $(PKGS)))

test: ## go vet, then every test with -race; lists what failed and what was skipped
	@$(if $(and $(CC_FOUND),$(CXX_FOUND)),,echo 'needs a C and C++ compiler, for -race and DuckDB: apt-get install -y g++'; exit 1)
	@status=0; go vet $(PKGS) || status=1; go build $(RACE) -o /dev/null $(PKGS) || status=1; \
	go run ./internal/quelltest/tally $(RACE) -timeout 10m $(if $(OTHERS),-- $(OTHERS)) $(if $(ALONE),-- -p 1 $(ALONE)) || status=1; exit $$status

test-guests: ## boot Linux guests in QEMU and test on their kernels what this one lacks (docs/guests.md)
	@go run ./internal/guest/fetch
	@status=0; GOARCH=arm64 go vet -tags inguest ./internal/guest/inside/... || status=1; go vet -tags guests ./internal/guest || status=1; \
	go run ./internal/quelltest/tally -tags guests -count 1 -timeout 20m ./internal/guest || status=1; exit $$status

test-browser: ## look at the lab's report in Chromium: widths, dark, print, contrast (apt-get install chromium; 2 minutes)
	@status=0; go vet -tags browser ./internal/lab/render || status=1; \
	go run ./internal/quelltest/tally -tags browser -count 1 -timeout 5m -run 'Browser|Print' ./internal/lab/render || status=1; exit $$status

bench: ## every benchmark once; comparisons print ratios
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(PKGS)

bench-agent: bin/quell-agent ## what the agent costs, beside other agents and the least possible (15 min; BENCH=-quick: 3)
	@mkdir -p bin
	go build -o bin/bench ./internal/bench
	bin/bench $(BENCH)

lab-smoke: bin/quell ## a study from its file to its report, killed in the middle (root, 2 minutes)
	go run ./internal/lab/smoke bin/quell studies/smoke.yaml

lab-fault: bin/quell ## kill -9 of a study at 50 moments, and what may happen in a run (root, 5 minutes)
	go run ./internal/lab/fault -quell bin/quell

lab-load: ## how exactly a load is held, beside stress-ng and others (root, 7 minutes of a quiet CPU)
	go run ./internal/lab/load/compare

quality: ## how often each rule is right over the simulator's scenarios (docs/rules.md; half an hour, QUALITY='-seeds 3' for less)
	go run ./internal/quality/table $(QUALITY)
	$(if $(QUALITY),,go run ./internal/quality/table -rules evidence -seeds 1 -days 10000)

fuzz: ## every fuzz target for FUZZTIME each
	@status=0; for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd internal 2>/dev/null | xargs -r -n1 dirname | sort -u); do \
		for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go); do \
			echo "$$dir $$f"; \
			go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) ./$$dir || status=1; \
		done; done; exit $$status

lint: ## gofmt, go vet and staticcheck (the version in go.mod)
	@out=$$(gofmt -l cmd internal); if [ -n "$$out" ]; then echo "gofmt -w $$out"; exit 1; fi
	go vet $(PKGS)
	go tool staticcheck $(PKGS)

build: bin/quell bin/quell-agent bin/quell-server ## the programs, and the agent for linux/amd64 and linux/arm64, in bin/
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o bin/quell-agent-linux-amd64 ./cmd/quell-agent
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o bin/quell-agent-linux-arm64 ./cmd/quell-agent

bin/quell bin/quell-agent: # go knows what has changed
	@mkdir -p bin
	$(GOBUILD) -o $@ ./cmd/$(@F)

bin/quell-server: # needs a C++ compiler
	@mkdir -p bin
	CGO_ENABLED=1 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/quell-server

generate: ## compile the eBPF programs again (needs clang and libbpf's headers)
	go generate $(PKGS)

clean: ## remove bin/
	rm -rf bin
