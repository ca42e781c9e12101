# quell's targets. Needs Go (the version in go.mod) and, for -race and
# quell-server, a C and C++ compiler.

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION)
# Of the shipped programs only quell-server is linked with C (DuckDB).
GOBUILD := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)'
# Tools of the tests are built with the same flags, so that shared packages are compiled once.
GORUN   := go run -trimpath
# Sums up what go test -json writes. That go test failed is an event of its own: the others
# may not say it.
TALLY  := $(GORUN) ./internal/testkit/quelltest/tally
FAILED := echo '{"Action":"exit"}'
BENCHTIME ?= 0.5s
FUZZTIME  ?= 10s
PKGS ?= ./...

CC_FOUND  := $(shell command -v $${CC:-gcc} || command -v clang)
CXX_FOUND := $(shell command -v $${CXX:-g++} || command -v clang++)
RACE      := $(if $(CC_FOUND),-race)

# The S3 server of the tests: Versity's gateway over a folder. Built separately, no part of quell.
S3VERSION = v1.8.0
S3BIN     = $(HOME)/.cache/quell/versitygw-$(S3VERSION)
export PATH := $(S3BIN):$(PATH)

.PHONY: help test-groups test-runtimes test-cluster demo cluster corpus fault cluster-fault churn hostile-scale scale scale-overload test test-hostile test-deps test-s3 test-guests disk-figures bench-counters test-xen test-prometheus test-otlp test-browser test-spark soak-gate fuzz-api cluster-specs test-decisions bench bench-agent bench-starved lab-smoke lab-papers test-image lab-fault quality evaluate-month placement fuzz fuzz-corpus lint build generate release packages images test-helm test-node test-packages release-check vuln docs notice tryouts clean bin/quell bin/quell-agent bin/quell-server

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z0-9][a-z0-9\/ -]*:.*## / { n = split($$1, names, " "); for (i = 1; i <= n; i++) printf "  make %-16s %s\n", names[i], $$2 }' Makefile

demo: bin/quell bin/quell-agent ## build and run the demo: one noisy neighbour found, proved and quieted
	bin/quell demo

cluster: bin/quell bin/quell-agent bin/quell-server ## the same on a cluster: a server and three agents on this machine (root, a minute)
	bin/quell demo --cluster

tryouts: ## the ten tasks of docs/tryouts.md, by the commands of the page, on the demo's tasks (root, a minute)
	@status=0; go vet -tags tryouts ./internal/people/demo || status=1; \
	{ go test -json -tags tryouts -count 1 -timeout 5m -run '^TestTryouts$$' ./internal/people/demo || $(FAILED); } | $(TALLY) || status=1; exit $$status

test-cluster: ## test the cluster's demo: no sample lost or stored twice, nothing left behind (root, 2 minutes)
	go vet -tags cluster ./internal/people/demo && { go test -json -tags cluster -count 1 -timeout 10m -run TheCluster ./internal/people/demo || $(FAILED); } | $(TALLY)

CASES ?= 10
test-groups: ## three real tasks that hurt a fourth only together, CASES=10 times here and in a guest: named and capped together, the victim relieved, undone (root, an hour or more)
	@internal/testkit/quelltest/deps.sh guests
	@$(GORUN) ./internal/lab/guest/fetch
	@status=0; go vet -tags 'groups guests' ./internal/people/cli ./internal/lab/guest || status=1; \
	{ go test -json -tags groups -count 1 -timeout 40m -run '^TestThreeRealTasksHurtOnlyTogether$$' ./internal/people/cli -args -cases $(CASES) || $(FAILED); \
		QUELL_TEST_ROUNDS=$(CASES) go test -json -tags 'groups guests' -count 1 -timeout 2h -run '^TestGroups$$' ./internal/lab/guest || $(FAILED); \
	} | $(TALLY) || status=1; exit $$status

churn: bin/quell-agent ## create and remove 100,000 cgroups under the agent: it keeps none and loses no sample (root, 2 to 5 minutes)
	go test -count 1 -v -timeout 10m ./cmd/quell-agent -run '^TestChurn$$' -args -agent $(CURDIR)/bin/quell-agent -churn 100000

hostile-scale: bin/quell-agent ## 100,000 cgroups of one task, a file system that hangs and 700 idle clients: others' samples, and the time of the agent's loop (root, 5 minutes)
	go test -count 1 -v -timeout 20m ./cmd/quell-agent -run '^TestHostileScale$$' -args -agent $(CURDIR)/bin/quell-agent -scale 100000

cluster-fault: ## kill -9 the bus's server, agents, and one of three nodes, 50 times each under load (4 minutes)
	go test -count 1 -v -timeout 60m ./internal/cluster/bus -run '^Test(Cluster)?Kills$$' -args -kills 50

scale: bin/quell-server ## send 300,000 samples per second from 6,000 machines for five minutes: what the server accepts, and its cost (quiet machine, ulimit -n 8000)
	bin/quell-server load --self --machines 6000 --tasks 50 --period 1s --for 5m

# Twice what make scale sends, and more than 2 CPUs handle; OVERLOAD='--machines 1000 --tasks 50 --for 1m --drain 2m' for others.
OVERLOAD ?= --machines 6000 --tasks 100 --period 1s --for 10m --drain 20m
scale-overload: bin/quell-server ## send twice as much as make scale for ten minutes, then the rest: agents wait, nothing acknowledged is lost (quiet machine, ulimit -n 8000)
	bin/quell-server load --self $(OVERLOAD)

test-s3: $(S3BIN)/versitygw ## the tests of make test that store in S3: a real S3 server that is killed, and two quell-servers on it, one of them killed
	go test -count 1 -v ./internal/cluster/store/s3
	go test -count 1 -v -run '^TestOneOfTwoServersIsKilled$$' ./cmd/quell-server
	go test -count 1 -v -run '^TestResultsInStorage$$' ./internal/people/cli/labcmd

$(S3BIN)/versitygw:
	GOBIN=$(@D) go install github.com/versity/versitygw/cmd/versitygw@$(S3VERSION)

# QUELL_TEST_KILLS=5000 for more points, QUELL_TEST_SEED=1 for the same ones again.
FAULTS ?= TestKilledAtRandomPoints|TestSingleFaults
fault: ## kill -9 the agent at 1,000 points, and fail 1,000 single system calls: every limit must be restored (root, 20 minutes; FAULTS=TestSingleFaults FAULT='-only 7' for one point)
	CGO_ENABLED=0 QUELL_TEST_KILLS=$${QUELL_TEST_KILLS:-1000} QUELL_TEST_FAULTS=$${QUELL_TEST_FAULTS:-1000} go test -count 1 -v -timeout 90m ./internal/testkit/fault -run '^($(FAULTS))$$' -args -workers 6 -patience 5s -lateness 2s $(FAULT)

# Packages whose tests need a capability of the machine may measure it, and would
# disturb each other: they run one at a time (ALONE), after all others. The packages in
# BESIDE need a tool, root or cgroups, but do not depend on speed: they run with the others.
BESIDE = $(addprefix internal/,agent testkit/archtest format/atomicfile testkit/bench cluster/bus machine/counter/blockio machine/counter/uprobe machine/egress machine/enforce testkit/fault lab/guest machine/host lab/audit lab/env lab/fault lab/network lab/remote people/cli people/cli/labcmd cluster/notify lab/image machine/counter/bpf machine/origin testkit/chart testkit/quelltest/soak) cmd/quell-agent
ALONE  = $(filter-out $(BESIDE:%=$(shell go list -m)/%),$(shell go list $(PKGS) | grep -Fx "$$(grep -lr --include='*_test.go' 'quelltest[.]Need' cmd internal | xargs -n1 dirname | sort -u | sed "s,^,$$(go list -m)/,")"))
# The core starts no goroutine (archtest), and the simulator one for each machine of a fleet only:
# the race detector, which makes them ten times slower, could find nothing in their other tests.
PURE   = $(filter $(shell go list -m)/internal/core/% %/eval/sim,$(shell go list $(PKGS)))
OTHERS = $(filter-out $(ALONE) $(PURE),$(shell go list $(PKGS)))
# As quelltest.Program builds: what is compiled for the programs is used again.
PLAIN  = -trimpath -buildvcs=false

test-deps: ## install the programs that the tests need and this machine lacks: Debian packages, the guests' kernels, an S3 server (root)
	@internal/testkit/quelltest/deps.sh
	@$(GORUN) ./internal/lab/guest/fetch
	@$(MAKE) --no-print-directory $(S3BIN)/versitygw

# Many tests wait for programs more than they compute: twice as many packages as there are
# CPUs are linked or run at once, and four tests of a package that call t.Parallel.
PARALLEL := $(shell echo $$(( $$(nproc) * 2 )))

# Everything is compiled before any test runs: the packages that the tests import, with
# -race as for go vet, and the programs that they start, built as quelltest.Program does.
test: ## go vet, then every test with -race; lists failed and skipped tests
	@$(if $(and $(CC_FOUND),$(CXX_FOUND)),,echo 'needs a C and C++ compiler, for -race and DuckDB: apt-get install -y g++'; exit 1)
	@internal/testkit/quelltest/deps.sh -n test
	@status=0; go vet $(RACE) $(PKGS) || status=1; \
	$(if $(OTHERS)$(ALONE),go list $(RACE) -export -test $(OTHERS) $(ALONE) >/dev/null || status=1;) \
	$(if $(PURE),CGO_ENABLED=0 go list $(PLAIN) -export -test $(PURE) >/dev/null || status=1;) \
	$(if $(filter ./...,$(PKGS)),CGO_ENABLED=0 go build $(PLAIN) -o /dev/null ./cmd/quell-agent ./cmd/quell || status=1;) \
	export GORACE=atexit_sleep_ms=0; { :; \
		$(if $(PURE),CGO_ENABLED=0 go test -json $(PLAIN) -vet=off -timeout 10m $(PURE) || $(FAILED);) \
		$(if $(filter %/eval/sim,$(PURE)),go test -json $(RACE) -vet=off -run Fleet ./internal/eval/sim || $(FAILED);) \
		$(if $(OTHERS),go test -json $(RACE) -vet=off -p $(PARALLEL) -parallel 4 -timeout 10m $(OTHERS) || $(FAILED);) \
		$(if $(ALONE),go test -json $(RACE) -vet=off -timeout 10m -p 1 $(ALONE) || $(FAILED);) \
	} | $(TALLY) || status=1; exit $$status

# Their tests are part of make test too: what is compiled for that is used again. Those in guests are
# left to make test-guests.
ATTACKS  = awk -F '\t' '!/^\#/ && $$2 !~ /guest/ && $$3 != "TestHostileAgent"' internal/testkit/archtest/attacks.tsv
ATTACKED = $(addprefix $(shell go list -m)/,$(shell $(ATTACKS) | cut -f 2 | sort -u))
NAMES    = ^($(subst $(eval) ,|,$(strip $(shell $(ATTACKS) | cut -f 3 | sort -u))))$$
test-hostile: ## the attacks of docs/security.md by their names (attacks.tsv), then 20,000 random messages of a hostile agent (HOSTILE='-hostile.seed 5' for others)
	@{ CGO_ENABLED=0 go test -json $(PLAIN) -vet=off -count 1 -timeout 10m -run '$(NAMES)' $(filter $(PURE),$(ATTACKED)) || $(FAILED); \
		go test -json $(RACE) -vet=off -parallel 4 -count 1 -timeout 10m -run '$(NAMES)' $(filter-out $(ALONE) $(PURE),$(ATTACKED)) || $(FAILED); \
		go test -json $(RACE) -vet=off -count 1 -timeout 10m -p 1 -run '$(NAMES)' $(filter $(ALONE),$(ATTACKED)) || $(FAILED); \
		go test -json $(RACE) -vet=off -count 1 -timeout 10m -run '^TestHostileAgent$$' ./cmd/quell-server -args -hostile.messages 20000 $(HOSTILE) || $(FAILED); \
	} | $(TALLY)

test-guests: ## boot Linux guests in QEMU and test there what this machine's kernel lacks (docs/guests.md)
	@internal/testkit/quelltest/deps.sh guests
	@$(GORUN) ./internal/lab/guest/fetch
	@status=0; GOARCH=arm64 go vet -trimpath -tags inguest ./internal/lab/guest/inside/... || status=1; go vet $(RACE) -tags guests ./internal/lab/guest || status=1; \
	{ go test -json $(RACE) -tags guests -count 1 -timeout 45m ./internal/lab/guest || $(FAILED); } | $(TALLY) || status=1; exit $$status

bench-counters: ## cpi by eBPF and in cgroup mode: calls of a PMU at switches, instructions counted, ns a switch (root, 5 minutes)
	@internal/testkit/quelltest/deps.sh guests
	@$(GORUN) ./internal/lab/guest/fetch
	{ go test -json -tags guests -count 1 -timeout 45m -run 'TestCPI/by_eBPF|TestCallbacks' ./internal/lab/guest || $(FAILED); } | $(TALLY)
	go test -run '^$$' -bench Switch -benchtime 7x ./internal/machine/counter/bperf

disk-figures: ## ten times in a guest: a writer on a slow disk is named, limited and released (10 minutes)
	@internal/testkit/quelltest/deps.sh guests
	@$(GORUN) ./internal/lab/guest/fetch
	{ QUELL_TEST_ROUNDS=10 go test -json -tags guests -count 1 -timeout 45m -run TestV2/disk ./internal/lab/guest || $(FAILED); } | $(TALLY)

test-xen: ## boot Xen with two guests in QEMU and test the lab's Xen environment in it and two studies on it (docs/xen.md; 15 minutes, and a download of 110 MB once)
	@internal/testkit/quelltest/deps.sh guests
	@status=0; go vet -tags inguest ./internal/lab/guest/inside/xen || status=1; go vet -tags guests,xen ./internal/lab/guest || status=1; \
	{ go test -json -tags guests,xen -count 1 -timeout 50m -run '^TestXen' ./internal/lab/guest || $(FAILED); } | $(TALLY) || status=1; exit $$status

test-runtimes: ## name tasks of real runtimes: containerd with CRI pods, Docker, podman, LXC, libvirt, QEMU (root, 3 minutes, and a download of 76 MB once)
	@{ command -v libvirtd && command -v virsh; } >/dev/null || apt-get install -y -qq --no-install-recommends libvirt-daemon libvirt-clients
	@status=0; go vet -tags runtimes ./internal/machine/origin || status=1; \
	{ go test -json -tags runtimes -count 1 -timeout 15m -run '^TestRuntimes$$' ./internal/machine/origin || $(FAILED); } | $(TALLY) || status=1; exit $$status

# The programs of Kubernetes are those of the module in internal/testkit/chart/kube, or in a folder that KUBE
# names. All are built apart, and no part of quell.
KUBE_MODULE         = $(CURDIR)/internal/testkit/chart/kube
KUBEVERSION         = $(shell sed -n 's,^require k8s.io/kubernetes \(v[0-9.]*\).*,\1,p' $(KUBE_MODULE)/go.mod)
KUBE               ?= $(HOME)/.cache/quell/kubernetes-$(KUBEVERSION)
HELMVERSION         = v4.3.1
HELM                = $(HOME)/.cache/quell/helm-$(HELMVERSION)
KUBECONFORMVERSION  = v0.8.0
KUBECONFORM         = $(HOME)/.cache/quell/kubeconform-$(KUBECONFORMVERSION)
# Only its definitions of ServiceMonitor and PrometheusRule are read.
OPERATOR            = github.com/prometheus-operator/prometheus-operator@v0.85.0
# Only its updater is built; its definition of VerticalPodAutoscaler is read.
VPAVERSION          = v1.8.1
VPA                 = $(HOME)/.cache/quell/vpa-$(VPAVERSION)
MODULE_DIR          = $$(cd $(KUBE_MODULE) && go mod download -json $(1) | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')

test-helm: images $(HELM)/helm $(KUBECONFORM)/kubeconform $(KUBE)/kubelet $(VPA)/vpa-updater ## the Helm chart: accepted by a real kube-apiserver, run by a real kubelet with containerd from the images (root; 5 minutes, and 20 once to build Kubernetes)
	@status=0; go vet -tags helm ./internal/testkit/chart || status=1; (cd deploy/images && go vet . && go test -count 1 .) || status=1; \
	operator=$(call MODULE_DIR,$(OPERATOR)); vpa=$(call MODULE_DIR,k8s.io/autoscaler/vertical-pod-autoscaler@$(VPAVERSION)); \
	{ PATH=$(HELM):$(KUBECONFORM):$(KUBE):$(VPA):$$PATH QUELL_AUTOSCALER=$$vpa QUELL_IMAGES=$(CURDIR)/$(IMAGES) QUELL_IMAGE_TAG=$(VERSION) QUELL_IMAGE_TOOL=$(CURDIR)/bin/image QUELL_PROMETHEUS_OPERATOR=$$operator \
		go test -json -tags helm -count 1 -timeout 20m ./internal/testkit/chart || $(FAILED); } | $(TALLY) || status=1; exit $$status

test-node: images $(HELM)/helm $(KUBE)/kubelet ## the Helm chart on a node with cgroup v2 and systemd's cgroups: Kubernetes and containerd in a Debian guest (root; 30 minutes)
	@internal/testkit/quelltest/deps.sh guests packages
	@$(GORUN) ./internal/lab/guest/fetch
	@mkdir -p bin/task && cc -O1 -static -o bin/task/task internal/testkit/chart/testdata/task.c
	@bin/image -out $(IMAGES)/task.tar -name localhost/task:1 -user 0:0 -entrypoint /task amd64=bin/task
	@status=0; go vet -tags guests,node ./internal/lab/guest || status=1; \
	{ go test -json -tags guests,node -count 1 -timeout 2h -run '^TestNode$$' ./internal/lab/guest -args -kube $(KUBE) -helm $(HELM)/helm -images $(CURDIR)/$(IMAGES) -image-tag $(VERSION) || $(FAILED); } | $(TALLY) || status=1; exit $$status

$(HELM)/helm:
	GOBIN=$(@D) go install -trimpath helm.sh/helm/v4/cmd/helm@$(HELMVERSION)

$(KUBECONFORM)/kubeconform:
	GOBIN=$(@D) go install -trimpath github.com/yannh/kubeconform/cmd/kubeconform@$(KUBECONFORMVERSION)

# As a main module: its go.mod has exclusions, with which go install builds nothing.
$(VPA)/vpa-updater:
	@mkdir -p $(@D)
	CGO_ENABLED=0 go build -C $(call MODULE_DIR,k8s.io/autoscaler/vertical-pod-autoscaler@$(VPAVERSION)) -trimpath -ldflags '-s -w' -o $@ ./pkg/updater

$(KUBE)/kube-apiserver $(KUBE)/kubelet $(KUBE)/kube-scheduler &: $(KUBE_MODULE)/go.mod
	@mkdir -p $(@D)
	CGO_ENABLED=0 go build -C $(KUBE_MODULE) -trimpath -ldflags '-s -w' -o $(@D)/etcd go.etcd.io/etcd/server/v3
	CGO_ENABLED=0 go build -C $(KUBE_MODULE) -trimpath -ldflags '-s -w -X k8s.io/component-base/version.gitVersion=$(KUBEVERSION)' -o $(@D)/ k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-scheduler

# axe-core, which checks pages for accessibility: no part of quell.
AXEVERSION = 4.14.1
AXE        = $(HOME)/.cache/quell/axe-core-$(AXEVERSION)/axe.min.js

$(AXE):
	@mkdir -p $(@D) && cd $(@D) && file=$$(npm pack --silent axe-core@$(AXEVERSION)) && tar -xzf $$file --strip-components=1 package/axe.min.js && rm $$file

test-browser: $(AXE) ## test the lab's report and the dashboard in Chromium: widths, dark mode, print, contrast, live data, commands, hostile names (6 minutes; PAINT=200ms on a quiet machine: the first paint must come by then)
	@internal/testkit/quelltest/deps.sh -n browser
	@status=0; go vet $(RACE) -tags browser ./internal/lab/render ./internal/people/dashboard || status=1; \
	{ go test -json $(RACE) -tags browser -count 1 -timeout 5m -run 'Browser|Print' ./internal/lab/render || $(FAILED); \
	QUELL_AXE=$(AXE) go test -json -tags browser -count 1 -timeout 10m -run Browser ./internal/people/dashboard $(if $(PAINT),-args -paint $(PAINT)) || $(FAILED); } | $(TALLY) || status=1; exit $$status

test-prometheus: ## a real Prometheus and Alertmanager with the shipped rules, on the demo: the alert names victim and suspect, every panel has its query (root, 2 minutes)
	@internal/testkit/quelltest/deps.sh -n prometheus
	@status=0; go vet -tags prometheus ./internal/people/demo || status=1; \
	{ go test -json -tags prometheus -count 1 -timeout 10m -run '^TestPrometheus' ./internal/people/demo || $(FAILED); } | $(TALLY) || status=1; exit $$status

# The collector of OpenTelemetry with what the test needs of it: no part of quell.
OTELVERSION = v0.165.0
OTELCOL     = $(HOME)/.cache/quell/otelcol-$(OTELVERSION)/otelcol

$(OTELCOL): internal/cluster/otlp/testdata/collector.yaml
	@mkdir -p $(@D) && sed 's/VERSION/$(OTELVERSION)/' $< >$(@D)/builder.yaml && cd $(@D) && \
	GOFLAGS=-trimpath go run go.opentelemetry.io/collector/cmd/builder@$(OTELVERSION) --config builder.yaml >builder.log 2>&1 || { cat builder.log; exit 1; }

test-otlp: $(OTELCOL) ## OpenTelemetry's collector, built once, receives metrics and incidents from quell-server's exporter (1 minute; the first time 10)
	@status=0; go vet -tags otlp ./internal/cluster/otlp || status=1; \
	{ QUELL_OTELCOL=$(OTELCOL) go test -json -tags otlp -count 1 -timeout 10m ./internal/cluster/otlp || $(FAILED); } | $(TALLY) || status=1; exit $$status

# SOAK='-tests 2 -ci 0' for less. It continues where it was interrupted (docs/testing.md).
soak-gate: test-deps ## 6 runs of make test and 1 of .ci/run in a clone of this commit, with stress-ng on 2 CPUs; none may fail (3 hours)
	@internal/testkit/quelltest/deps.sh soak
	@internal/testkit/quelltest/soak/soak.sh $(SOAK)

fuzz-api: ## what the server answers to requests made from its OpenAPI document, and to malformed ones (10 minutes; FUZZAPI='-for 1m')
	go test -count 1 -v -timeout 0 ./cmd/quell-server -run '^TestAPIFuzz$$' -args -for 10m -seed 0 $(FUZZAPI)

# ulimit -n must exceed the number of connections by two, for the server and for the clients each.
cluster-specs: ## the time until a changed spec reaches the connections of 10,000 agents (2 minutes)
	ulimit -n 20000; go test -count 1 -run '^$$' -bench SpecReachesAgents -benchtime 10x -timeout 20m ./internal/cluster/bus -args -subscribers 10000

# As for cluster-specs.
test-decisions: ## operators' decisions: what an agent missed within 5 s of coming back, a new one's before its first window, 10,000 connections within 10 s (2 minutes)
	go vet ./internal/cluster/bus ./internal/agent && { for pkg in './internal/cluster/bus -args -timed' ./internal/agent; do go test -json -count 1 -timeout 10m -run 'Decision|Decided|Uncap|TestServerLoses|TestTwoServersDecide' $$pkg || $(FAILED); done; } | $(TALLY)
	ulimit -n 20000; go test -count 1 -run '^$$' -bench DecisionReachesAgents -benchtime 10x -timeout 20m ./internal/cluster/bus -args -subscribers 10000

# The pip package contains Spark itself; --no-deps omits what only Python needs.
SPARK ?= $(HOME)/.cache/quell/spark
test-spark: ## compare specs and quantiles from Apache Spark, a master and two workers, with DuckDB's (Java 17, python3; 3 minutes, downloads 430 MB once)
	@test -d $(SPARK) || { python3 -m venv $(SPARK) && $(SPARK)/bin/pip install -q --no-deps pyspark==4.3.0; }
	@status=0; go vet -tags spark ./internal/cluster/store/duck || status=1; \
	{ QUELL_SPARK_HOME=$$(echo $(SPARK)/lib/python3*/site-packages/pyspark) go test -json -tags spark -count 1 -timeout 25m -run Spark ./internal/cluster/store/duck || $(FAILED); } | $(TALLY) || status=1; exit $$status

bench: ## every benchmark once; comparisons print ratios
	go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) $(PKGS)

bench-agent: bin/quell-agent ## the cost of the agent, compared with other agents and a minimal reader (15 minutes; BENCH=-quick: 4)
	go test -count 1 -v -timeout 0 ./internal/testkit/bench -run '^TestCost$$' -args measure -agent $(CURDIR)/bin/quell-agent -bin $(CURDIR)/bin/rivals -keep $(CURDIR)/bin/bench-agent.json $(BENCH)

bench-starved: bin/quell-agent ## while stress-ng takes all CPU time: how many of the agent's windows are complete, and how late caps are undone (root, 5 minutes)
	@internal/testkit/quelltest/deps.sh soak
	go test -count 1 -v -timeout 20m ./cmd/quell-agent -run '^TestStarved$$' -args -agent $(CURDIR)/bin/quell-agent -starve 1m $(STARVED)

lab-smoke: ## run a study from its file to its report, killed in the middle (root, 2 minutes)
	go test -trimpath -count 1 -v -timeout 10m ./internal/lab/fault -run '^TestKilledAndDisturbed$$' -args -smoke $(CURDIR)/studies/smoke.yaml

# Paper 000's, 003's, 001's in containers and in guests, and 002's; on Xen: make test-xen.
PAPERS = vm-mapping-image cpu-pinning-small net-io-small-lxc net-io-small-guests noisy-neighbour-small
lab-papers: bin/quell ## run the papers' small studies from their images to their reports, at most 45 minutes each; it continues where it was interrupted (root, with mmdebstrap; STUDY=vm-mapping-image for one)
	@status=0; for study in $(or $(STUDY),$(PAPERS)); do \
		for image in $$(sed -n 's/.* image: \([a-z0-9-]*\)[ ,}].*/\1/p' studies/$$study.yaml | sort -u); do \
			test -e "$${XDG_CACHE_HOME:-$$HOME/.cache}/quell/guest/images/$$image" || bin/quell lab image build $$image || exit 1; done; \
		bin/quell lab run --out lab-results/$$study studies/$$study.yaml || status=1; \
		bin/quell lab report lab-results/$$study || status=1; \
	done; exit $$status

test-image: bin/quell ## boot the image of quell lab image build and run its programs (root, with mmdebstrap)
	@test -e "$${XDG_CACHE_HOME:-$$HOME/.cache}/quell/guest/images/bench" || bin/quell lab image build bench
	go vet -tags images ./internal/lab/env
	go test -tags images -count 1 -v -timeout 40m -run '^TestImage' ./internal/lab/env

lab-fault: ## kill -9 a study at 50 moments, and disturb its runs (root, 5 minutes; LABFAULT='-seed 1' for the same moments again)
	go test -count 1 -v -timeout 30m ./internal/lab/fault -run '^TestKilledAndDisturbed$$' -args -kills 50 -seed 0 $(LABFAULT)

quality: ## how often each rule is right over the recorded corpus, then over the simulator's scenarios (docs/rules.md; a quarter of an hour, QUALITY='-seeds 3' for less)
	go run ./internal/eval/quality/corpus -score
	go run ./internal/eval/quality/table $(QUALITY)
	$(if $(QUALITY),,go run ./internal/eval/quality/table -rules evidence -seed 5001 -seeds 1 -days 30000)

# The rows are made once, and kept in bin/month; MONTH='-machines 100 -days 7' for less, MONTH='-distinct 50' for the rows of
# as many machines of which only 50 are played.
evaluate-month: ## the figures of CPI²'s section 7 from the stored rows of a simulated cluster of 1,000 machines over 30 days, within 60 s and 1 GB (docs/evaluation.md; the rows take two hours of CPU time to make once)
	go run ./internal/eval/month -out bin/month $(MONTH)
	go test -count 1 -v -timeout 10m ./internal/eval/month -run '^TestMonthIsEvaluated$$' -args -month $(CURDIR)/bin/month -page $(CURDIR)/bin/month.html

placement: ## hours of interference of a simulated fleet that keeps measured pairs of jobs apart, as many random ones, or wrong ones (docs/sim.md; 10 minutes, PLACEMENT='-rule cpi2')
	go run ./internal/eval/placing $(PLACEMENT)

corpus: bin/quell-agent ## record real programs that hurt each other, 28 scenes of 5 minutes; continues where it was interrupted (root; docs/corpus.md)
	go run ./internal/eval/quality/corpus $(CORPUS)

fuzz: ## every fuzz target for FUZZTIME, two at once, less what fuzz.tsv records with their present code (FUZZ='format/wire|FuzzText' for some)
	@internal/testkit/quelltest/fuzz.sh $(FUZZTIME) internal/testkit/quelltest/fuzz.tsv '$(FUZZ)'

fuzz-corpus: ## keep the newest 32 inputs that fuzzing found for each target in testdata/fuzz, which every test run replays
	@cache=$$(go env GOCACHE)/fuzz/$$(go list -m); for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' cmd internal | xargs -n1 dirname | sort -u); do \
		for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$dir/*_test.go); do \
			for n in $$(ls -t $$cache/$$dir/$$f 2>/dev/null | head -32); do mkdir -p $$dir/testdata/fuzz/$$f; cp $$cache/$$dir/$$f/$$n $$dir/testdata/fuzz/$$f/; done; \
		done; done

# Built apart: it would add about 200 modules to go.mod.
LINTVERSION = v2.15.0
LINT        = $(HOME)/.cache/quell/golangci-lint-$(LINTVERSION)/golangci-lint

$(LINT):
	GOBIN=$(@D) go install -trimpath github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINTVERSION)

# Packages with tests that only some targets build.
TAGGED = $(shell grep -rlE --include='*_test.go' '^//go:build (browser|cluster|groups|guests|helm|images|otlp|prometheus|runtimes|spark|tryouts|xen)' cmd internal | xargs -n1 dirname | sort -u | sed 's,^,./,')

lint: $(LINT) ## gofmt, go vet, staticcheck (the version in go.mod) and golangci-lint (.golangci.yml)
	@out=$$(gofmt -l cmd internal deploy); if [ -n "$$out" ]; then echo "gofmt -w $$out"; exit 1; fi
	go vet $(RACE) $(PKGS)
	go vet -tags browser,cluster,groups,guests,helm,images,node,otlp,packages,prometheus,runtimes,spark,tryouts,xen $(TAGGED)
	GOARCH=arm64 CGO_ENABLED=0 go vet -tags inguest ./internal/lab/guest/inside/...
	GOFLAGS='$(GOFLAGS) $(RACE)' $$(go tool -n staticcheck) $(PKGS)
	GOFLAGS='$(GOFLAGS) $(RACE)' $(LINT) run --timeout 30m $(PKGS)

build: bin/quell bin/quell-agent bin/quell-server ## the programs, and the agent for linux/amd64 and linux/arm64, in bin/
	GOOS=linux GOARCH=amd64 $(GOBUILD) -o bin/quell-agent-linux-amd64 ./cmd/quell-agent
	GOOS=linux GOARCH=arm64 $(GOBUILD) -o bin/quell-agent-linux-arm64 ./cmd/quell-agent

bin/quell bin/quell-agent: ## the program alone (always run: go knows what has changed)
	@mkdir -p bin
	$(GOBUILD) -o $@ ./cmd/$(@F)

bin/quell-server: ## the program alone (needs a C++ compiler)
	@mkdir -p bin
	CGO_ENABLED=1 go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS)' -o $@ ./cmd/quell-server

# The same commit, Go and C++ compiler give the same bytes: no path, time or build id of this machine.
# quell-server has an archive of its own, for this machine's architecture only: it is linked with C++.
SBOMVERSION = v1.10.0
SBOM        = $(HOME)/.cache/quell/cyclonedx-gomod-$(SBOMVERSION)/cyclonedx-gomod
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
release release-check: GO_RELEASE = go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS) -buildid='
release: $(SBOM) ## archives of the programs for linux/amd64 and linux/arm64, SBOMs and SHA256SUMS, in bin/release (docs/releases.md)
	@rm -rf bin/release && mkdir -p bin/release/tree
	@set -e; pack() { rest=$(VERSION)-linux-$$2; name=quell$$1-$$rest; dir=bin/release/tree/$$name; shift 2; \
		cp LICENSE NOTICE $$dir; case $$1 in quell-server) cp deploy/systemd/quell-server* $$dir;; *) cp deploy/systemd/quell-[ar]* $$dir;; esac; \
		for program; do $(SBOM) bin -json -noserial -notimestamp -version $(VERSION) -output bin/release/$$program-$$rest.cdx.json $$dir/$$program; done; \
		tar -C bin/release/tree --sort=name --format=gnu --mtime=@$(SOURCE_DATE_EPOCH) --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX -c $$name | gzip -n >bin/release/$$name.tar.gz; }; \
	for arch in amd64 arm64; do \
		GOOS=linux GOARCH=$$arch CGO_ENABLED=0 $(GO_RELEASE) -o bin/release/tree/quell-$(VERSION)-linux-$$arch/ ./cmd/quell ./cmd/quell-agent; \
		pack '' $$arch quell quell-agent; \
	done; arch=$$(go env GOHOSTARCH); \
	GOOS=linux GOARCH=$$arch CGO_ENABLED=1 $(GO_RELEASE) -o bin/release/tree/quell-server-$(VERSION)-linux-$$arch/ ./cmd/quell-server; \
	pack -server $$arch quell-server; \
	cd bin/release; rm -rf tree; sha256sum *.* | tee SHA256SUMS

# v2.48.0 needs modules that are not everywhere to be had.
NFPMVERSION = v2.43.0
NFPM        = $(HOME)/.cache/quell/nfpm-$(NFPMVERSION)/nfpm
# Without a tag: older than any release, by the time of the commit.
PACKAGE_VERSION ?= $(subst -,.,$(patsubst v%,%,$(if $(filter v%,$(VERSION)),$(VERSION),0~git$(shell git log -1 --date=format:%Y%m%d%H%M%S --format=%cd).$(VERSION))))
packages: release $(NFPM) ## Debian and RPM packages of the release, in bin/release (docs/install.md)
	@rm -rf bin/packages && mkdir -p bin/packages/completion bin/packages/doc
	go test -count 1 ./internal/people/cli ./cmd/quell-agent -run '^TestManPages$$' -args -man $(CURDIR)/bin/packages/man
	go test -count 1 ./cmd/quell-server -run '^TestManPages$$' -args -man $(CURDIR)/bin/packages/server-man
	@find bin/packages/man bin/packages/server-man -type f -exec gzip -9n {} +
	@set -e; host=$$(go env GOHOSTARCH); cp -r README.md docs/*.md docs/study.schema.json studies NOTICE LICENSE bin/packages/doc; mv bin/packages/doc/LICENSE bin/packages/doc/copyright; \
	for a in bin/release/quell-*.tar.gz; do tar -C bin/packages -xzf $$a; done; \
	for shell in bash zsh fish; do bin/packages/quell-$(VERSION)-linux-$$host/quell completion $$shell >bin/packages/completion/quell.$$shell; done; \
	pack() { ARCH=$$2 TREE=bin/packages/quell-$(VERSION)-linux-$$2 SERVER_TREE=bin/packages/quell-server-$(VERSION)-linux-$$2 \
		PACKAGE_VERSION='$(PACKAGE_VERSION)' SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) $(NFPM) package -f deploy/packages/$$1.yaml -p $$3 -t bin/release/ >/dev/null; }; \
	for kind in deb rpm; do pack quell amd64 $$kind; pack quell arm64 $$kind; pack quell-server $$host $$kind; done; \
	cd bin/release; sha256sum $$(ls | grep -vx SHA256SUMS) >SHA256SUMS; ls -l *.deb *.rpm

# Debian's tree is made once, and kept in the user's cache.
test-packages: packages ## install, use, upgrade, downgrade, remove and purge the Debian packages in a fresh Debian in QEMU, and the RPM packages in a tree (root; 15 minutes, and a download of 60 MB once)
	@internal/testkit/quelltest/deps.sh guests packages
	@$(GORUN) ./internal/lab/guest/fetch
	go test -tags guests,packages -count 1 -v -timeout 60m ./internal/lab/guest -run '^(TestPackages|TestRPMPackages)$$' -args -packages $(CURDIR)/bin/release

$(NFPM):
	GOBIN=$(@D) go install -trimpath github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPMVERSION)

$(SBOM):
	GOBIN=$(@D) go install -trimpath github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@$(SBOMVERSION)

# The second build begins with an empty cache.
release-check: ## build the release of the last commit in two folders: every archive must have the same bytes
	@set -e; dir=$$(mktemp -d); trap 'rm -rf '$$dir EXIT; \
	for copy in a longer/b; do mkdir -p $$dir/$$copy; git archive HEAD | tar -x -C $$dir/$$copy; \
		$(MAKE) --no-print-directory -C $$dir/$$copy release VERSION=$(VERSION) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH); export GOCACHE=$$dir/cache; done; \
	diff -r $$dir/a/bin/release $$dir/longer/b/bin/release && echo "both builds are the same"

# quell-server is linked statically, C library included, so that its image needs no base: the resolver
# and the users are Go's own (netgo, osusergo). The linker's warnings about that are not shown. Debian
# has the terms of these libraries.
IMAGE_REGISTRY ?= localhost
IMAGES = bin/images
images: GO_RELEASE = go build -trimpath -buildvcs=false -ldflags '$(LDFLAGS) -buildid='
images: ## OCI images of the agent (amd64 and arm64) and of the server, as archives in bin/images, without a daemon (docs/kubernetes.md)
	@rm -rf $(IMAGES) && mkdir -p $(IMAGES)
	@set -e; host=$$(go env GOHOSTARCH); root=$(CURDIR)/$(IMAGES)/root; \
	for arch in amd64 arm64; do mkdir -p $$root/agent-$$arch/usr/bin; \
		GOOS=linux GOARCH=$$arch CGO_ENABLED=0 $(GO_RELEASE) -o $$root/agent-$$arch/usr/bin/ ./cmd/quell ./cmd/quell-agent; done; \
	mkdir -p $$root/server-$$host/usr/bin; \
	out=$$(CGO_ENABLED=1 go build -trimpath -buildvcs=false -tags netgo,osusergo -o $$root/server-$$host/usr/bin/ \
		-ldflags '$(LDFLAGS) -buildid= -linkmode external -extldflags "-static -Wl,--build-id=none"' ./cmd/quell-server 2>&1) || { echo "$$out"; exit 1; }; \
	for dir in $$root/*; do mkdir -p $$dir/usr/share/doc/quell; cp LICENSE NOTICE $$dir/usr/share/doc/quell; done; \
	for library in libc6 libstdc++6; do cp /usr/share/doc/$$library/copyright $$root/server-$$host/usr/share/doc/quell/$$library; done; \
	cp /usr/share/common-licenses/LGPL-2.1 $$root/server-$$host/usr/share/doc/quell; \
	go build -C deploy/images -trimpath -o $(CURDIR)/bin/image .; \
	image() { name=$$1 user=$$2 about=$$3; shift 3; bin/image -out $(IMAGES)/$$name.tar -name $(IMAGE_REGISTRY)/$$name:$(VERSION) -title $$name -description "$$about" \
		-version $(VERSION) -revision $$(git rev-parse HEAD) -time $(SOURCE_DATE_EPOCH) -user $$user -entrypoint /usr/bin/$$name "$$@"; }; \
	image quell-agent 0:0 'finds the noisy neighbour on a machine, proves it, and quiets it' amd64=$$root/agent-amd64 arm64=$$root/agent-arm64; \
	image quell-server 65532:65532 'stores and answers what the agents of a cluster find' $$host=$$root/server-$$host; \
	rm -r $$root; cd $(IMAGES) && sha256sum *.tar | tee SHA256SUMS

# VULNDB is a folder, a zip file or a URL with a database in the format of https://go.dev/doc/security/vuln/database.
VULNVERSION = v1.9.0
VULN        = $(HOME)/.cache/quell/govulncheck-$(VULNVERSION)/govulncheck
VULNDB     ?= https://vuln.go.dev

vuln: $(VULN) ## known vulnerabilities in what the programs call (VULNDB=vulndb.zip: a database file; without a database it says so and fails)
	@set -e; db='$(VULNDB)'; dir=$$(mktemp -d); trap 'rm -rf '$$dir EXIT; \
	case $$db in *.zip) unzip -q "$$db" -d $$dir; db=file://$$dir;; *://*) ;; *) db=file://$$(realpath "$$db");; esac; \
	date=$$(curl -fsS --max-time 30 "$$db/index/db.json") || { echo 'NOT SCANNED: no vulnerability database at $(VULNDB). Fetch https://vuln.go.dev/vulndb.zip elsewhere, then make vuln VULNDB=vulndb.zip'; exit 3; }; \
	echo "database $(VULNDB) $$date"; \
	$(VULN) -db "$$db" ./cmd/quell ./cmd/quell-agent ./cmd/quell-server

$(VULN):
	GOBIN=$(@D) go install -trimpath golang.org/x/vuln/cmd/govulncheck@$(VULNVERSION)

# The generator of the site: no part of quell.
MKDOCSVERSION = 9.8.2
MKDOCS        = $(HOME)/.cache/quell/mkdocs-material-$(MKDOCSVERSION)/bin/mkdocs

$(MKDOCS):
	python3 -m venv $(HOME)/.cache/quell/mkdocs-material-$(MKDOCSVERSION)
	$(HOME)/.cache/quell/mkdocs-material-$(MKDOCSVERSION)/bin/pip install -q mkdocs-material==$(MKDOCSVERSION)

docs: $(MKDOCS) ## the pages of docs/ as a site in bin/site; fails on a page that is not in mkdocs.yml and on a dead link (python3)
	NO_MKDOCS_2_WARNING=1 $(MKDOCS) build --strict --quiet

notice: ## write NOTICE, the licences of all linked modules, which a test compares
	go test -count 1 ./internal/testkit/archtest -run Notice -args -update

generate: ## compile the eBPF programs again (needs clang and libbpf's headers)
	go generate $(PKGS)

clean: ## remove bin/
	rm -rf bin
