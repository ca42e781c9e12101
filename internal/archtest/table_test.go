package archtest

import "strings"

// row says what a package may import, and why it needs it.
type row struct {
	pkg     string // below internal/, or cmd/NAME
	core    bool   // pure: see rules_test.go
	may     string // packages above it in the table
	outside string // prefixes of import paths outside the module and the standard library
	why     string
}

// table is the architecture: dependencies point up. Every package needs a row, with a reason.
var table = []row{
	{pkg: "sample", core: true, why: "quell's words; everything speaks them, so they know nothing"},
	{pkg: "stat", core: true, why: "numbers in, numbers out"},
	{pkg: "spec", core: true, may: "sample stat", why: "what a job normally costs, learnt with stat"},
	{pkg: "detect", core: true, may: "sample stat spec", why: "samples against specs"},
	{pkg: "command", core: true, may: "sample", why: "what operators may have done and within which limits; every door and the planner hold to it"},
	{pkg: "command/commandtest", core: true, why: "commands good and bad, for the tests of every door"},
	{pkg: "plan", core: true, may: "sample stat spec detect command", why: "findings in, actions out; an operator's cap within command's limits"},
	{pkg: "pipeline", core: true, may: "sample spec detect command plan", why: "the one loop over detect, plan and spec; agent, replay and sim are its hosts"},
	{pkg: "incident", core: true, may: "sample detect plan pipeline", why: "an incident as JSON, for logs, the server and people's tools"},
	{pkg: "placement", core: true, why: "who should be with whom: numbers in, pairs out"},
	{pkg: "quelltest", outside: "golang.org/x/sys", why: "the kernel is asked what it can; imported by any test, so it imports nothing of quell"},
	{pkg: "quelltest/tally", why: "reads go test -json"},
	{pkg: "quelltest/deps", why: "a table of programs and their Debian packages"},
	{pkg: "archtest", why: "tests only"},
	{pkg: "atomicfile", why: "files that are there whole or not at all"},
	{pkg: "quelltest/soak", may: "atomicfile", outside: "golang.org/x/sys", why: "runs the tests many times, and keeps a record"},
	{pkg: "trace", may: "sample", why: "samples as CSV"},
	{pkg: "trace/tracetest", may: "sample", outside: "github.com/google/go-cmp", why: "samples that are hard to write; for tests of every format"},
	{pkg: "trace/parquet", may: "sample trace", outside: "github.com/parquet-go", why: "the same samples by column; apart, so that the agent links no Parquet"},
	{pkg: "sim", may: "sample stat spec detect plan trace pipeline incident", why: "the real detect and plan over machines of a model; writes what it played, with labels, as a trace"},
	{pkg: "quality", may: "stat detect plan sim", why: "rules against the simulator's scenarios, counted"},
	{pkg: "quality/table", may: "detect sim quality", why: "make quality"},
	{pkg: "wire", may: "sample spec command", outside: "google.golang.org/protobuf", why: "what agents and servers say to each other, in sample's, spec's and command's words"},
	{pkg: "host", may: "sample", outside: "golang.org/x/sys", why: "fills sample's words from /proc and /sys"},
	{pkg: "counter", may: "sample host", outside: "golang.org/x/sys github.com/prometheus/common", why: "readings by task; host.Capability for what is missing; Prometheus's own parser for tasks' counters"},
	{pkg: "counter/bpf", may: "sample counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "what loaders of eBPF share: a signal's windows as a counter.Source has them; a refusal is a counter.NotSupportedError"},
	{pkg: "counter/bpf/bpftest", may: "quelltest sample host counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "tasks, windows and a kernel for tests of signals over counter/bpf"},
	{pkg: "counter/runq", may: "sample host counter counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "counter/uprobe", may: "sample host counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Prober over eBPF"},
	{pkg: "counter/blockio", may: "sample host counter counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF; beside runq and uprobe the only package that loads any"},
	{pkg: "counter/netq", may: "sample host counter counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "enforce", may: "sample host", outside: "golang.org/x/sys", why: "journals host.Write, at a time given in sample's words"},
	{pkg: "egress", may: "host", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a file for enforce that the kernel lacks: what a cgroup sends, limited by an eBPF program"},
	{pkg: "workload", may: "sample host", outside: "golang.org/x/sys", why: "names CPUs as sample.Set; places processes in cgroups that host finds"},
	{pkg: "keyed", outside: "go.yaml.in/yaml", why: "YAML into tagged structs; knows no configuration"},
	{pkg: "trace/recording", may: "sample keyed trace trace/parquet", outside: "github.com/parquet-go github.com/klauspost/compress", why: "samples out of whatever recorded them; column maps are strict YAML"},
	{pkg: "plot", why: "numbers as SVG; knows nothing of what they are of"},
	{pkg: "evaluation", may: "sample stat detect plan incident", why: "incidents counted as the paper's section 7 counts them"},
	{pkg: "replay", may: "sample stat spec detect plan trace trace/recording pipeline incident", why: "the real detect and plan over a recording"},
	{pkg: "quality/fit", may: "sample stat detect plan sim trace/recording pipeline replay quality", why: "fits the numbers of rule evidence on recordings and the simulator"},
	{pkg: "quality/noise", may: "sample stat trace trace/recording", why: "how cost varies in recordings and in the simulator, by one instrument"},
	{pkg: "quality/corpus", may: "sample detect trace trace/recording replay workload", why: "make corpus; runs quell-agent as a program"},
	{pkg: "guest", may: "sample", outside: "golang.org/x/sys", why: "QEMU as a machine; names CPUs as sample.Set"},
	{pkg: "guest/init", may: "guest", outside: "golang.org/x/sys", why: "PID 1 of a guest: does what guest.Init says"},
	{pkg: "guest/fetch", may: "guest", why: "fills guest's cache of kernels"},
	{pkg: "guest/inside/cpi", why: "tests only, of counter, in a guest"},
	{pkg: "guest/inside/topology", why: "tests only, of host.Topology, in a guest"},
	{pkg: "guest/inside/v2", why: "tests only, of cgroup v2 alone, in a guest"},
	{pkg: "guest/inside/systemd", why: "tests only, of the packaged unit, in a guest"},
	{pkg: "guest/inside/fakepmu", why: "tests only, of the agent's whole loop, in a guest"},
	{pkg: "config", may: "sample spec detect plan keyed", why: "one struct per program out of the parameters that the core declares"},
	{pkg: "logbook", may: "sample plan incident", why: "keeps and finds incident.Records; the agent writes, it and people's tools read"},
	{pkg: "api", may: "sample spec detect command plan logbook incident", why: "the agent's socket: incidents, specs and commands as the core spells them, in JSON, incidents out of the log"},
	{pkg: "api/cluster", may: "sample spec command plan api incident", why: "the server's API: what is asked and answered, and the client; apart from the server, which links DuckDB"},
	{pkg: "report", may: "sample stat spec detect plan plot evaluation replay host api incident pipeline", why: "incidents, the agent's status and host.Capability as text for people"},
	{pkg: "agent", may: "sample stat spec detect command plan trace wire host counter enforce config logbook api pipeline incident", outside: "golang.org/x/sys github.com/prometheus/client_golang github.com/prometheus/common",
		why: "the loop over the core; what it is fed through are its own interfaces, the types in them are their packages'"},
	{pkg: "bus/spool", may: "atomicfile", why: "messages on disk; knows no message"},
	{pkg: "bus/authority", may: "atomicfile wire", outside: "github.com/nats-io/jwt github.com/nats-io/nkeys", why: "who may use which of wire's subjects, as NATS's own credentials"},
	{pkg: "bus", may: "sample spec wire bus/spool", outside: "github.com/nats-io/nats.go", why: "wire's messages over NATS, from an agent's spool to a server's reader"},
	{pkg: "bus/embedded", may: "bus/authority", outside: "github.com/nats-io/nats-server github.com/nats-io/jwt", why: "a NATS server inside quell-server; apart, so that the agent links none"},
	{pkg: "demo", may: "sample spec detect command plan trace host counter enforce workload config logbook api api/cluster report agent incident", outside: "golang.org/x/sys golang.org/x/term",
		why: "a scenario over the shipped agent: reads its incidents, starts workloads"},
	{pkg: "demo/figures", may: "demo", why: "plays the demo many times and reads its results"},
	{pkg: "lab/study", may: "keyed", outside: "go.yaml.in/yaml", why: "what a study file says and the plan that follows; touches no machine"},
	{pkg: "lab/result", may: "atomicfile lab/study", why: "records on disk; everything in the lab speaks them"},
	{pkg: "lab/load", outside: "golang.org/x/sys", why: "stops and lets go what it is given; knows no study"},
	{pkg: "lab/load/compare", may: "sample host workload lab/load", outside: "golang.org/x/sys", why: "holds processes by the lab's law and by others'; knows no study"},
	{pkg: "lab/place", may: "sample host lab/study", why: "a cell's parts on a machine's CPUs; touches no machine"},
	{pkg: "lab/analyse", may: "lab/study lab/result", outside: "gonum.org/v1/gonum/stat", why: "records in, results with intervals out; distributions are gonum's"},
	{pkg: "lab/synthetic", may: "lab/study lab/result", why: "records from a model; runs nothing"},
	{pkg: "lab", may: "sample host lab/study lab/result lab/place lab/synthetic", why: "the engine: runs a plan and leaves records; environments, load and observers are fed to it"},
	{pkg: "lab/audit", may: "sample host lab/study lab/result lab", outside: "golang.org/x/sys", why: "adds to what a lab.Observer sees; perf's switch records are its own"},
	{pkg: "lab/xen", why: "runs Xen's tools and reads what they print; knows no study"},
	{pkg: "lab/env", may: "sample host workload guest lab/study lab/load lab lab/xen", outside: "github.com/klauspost/compress golang.org/x/sys", why: "what the engine's roles run in: cgroups and processes are workload's, machines guest's, domains xen's, stopping load's"},
	{pkg: "lab/network", may: "lab/study lab", outside: "golang.org/x/sys github.com/vishvananda/netlink", why: "puts what another maker makes on networks of namespaces; netlink is a library's"},
	{pkg: "lab/remote", may: "sample keyed lab/study lab", outside: "golang.org/x/sys golang.org/x/crypto/ssh", why: "environments on other hosts behind the engine's interface; its helper makes them with a Maker that it is given"},
	{pkg: "lab/observe", may: "sample host counter counter/blockio counter/netq enforce workload keyed lab/study lab/result lab", outside: "golang.org/x/sys gonum.org/v1/gonum/stat", why: "watches runs for the engine, by the agent's own sources where the signal is no event of a part; knobs are journalled by enforce, two CPUs' distance is measured by workload"},
	{pkg: "lab/record", may: "sample trace lab/study lab/result lab/analyse lab", why: "has quell-agent sample the engine's runs and labels that by what the lab knows; starts the agent as a child"},
	{pkg: "lab/httpload", outside: "golang.org/x/sys", why: "asks web servers; knows no study. By the kernel's clock it tells the lab when"},
	{pkg: "lab/httpload/omission", may: "lab/httpload", outside: "golang.org/x/sys", why: "shows generators beside each other; stops its server by signals"},
	{pkg: "lab/udpload", may: "lab/result", outside: "golang.org/x/sys", why: "sends and counts datagrams; of the lab it knows only what its figures are called in a record"},
	{pkg: "lab/web", why: "what web servers are started with; starts none"},
	{pkg: "guest/inside/xen", why: "tests only, of the lab's Xen environment, in Xen's first domain"},
	{pkg: "lab/render", may: "keyed plot lab/study lab/result lab/analyse", outside: "go.yaml.in/yaml", why: "results for people and their tools: draws what analyses say, computes nothing; expectations are strict YAML"},
	{pkg: "lab/platform", may: "sample host lab/study lab/result lab/place lab/analyse", why: "the short studies of a machine in hand and what their results say of it; runs nothing"},
	{pkg: "lab/render/parquet", may: "lab/study lab/result lab/analyse lab/render", outside: "github.com/parquet-go", why: "a study's numbers and seconds by column; apart, so that nothing else links Parquet"},
	{pkg: "lab/depot", outside: "github.com/aws/aws-sdk-go-v2/aws", why: "files to and from S3-compatible storage; knows no study. Of AWS's SDK its signer only: quell is what guests boot"},
	{pkg: "lab/smoke", may: "lab/result", why: "runs, kills and judges the shipped quell lab"},
	{pkg: "lab/fault", may: "lab/result", outside: "golang.org/x/sys", why: "kills and disturbs the shipped quell lab, and judges what is left"},
	{pkg: "bench", may: "sample host config", outside: "golang.org/x/sys", why: "starts the shipped agent and its rivals as processes and meters them; host says where cgroup2 is and which CPUs there are; config what is shipped"},
	{pkg: "bus/load", may: "sample wire bus", outside: "golang.org/x/sys github.com/prometheus/common", why: "plays machines against a server: wire's messages over bus's connections; reads the server's metrics"},
	{pkg: "store/segment", may: "sample trace/parquet", outside: "golang.org/x/sys github.com/parquet-go github.com/klauspost/compress", why: "Parquet by series from the library's encodings: what the store writes and merges, knows neither folders nor commits"},
	{pkg: "store", may: "sample plan atomicfile trace/parquet store/segment incident", outside: "golang.org/x/sys github.com/parquet-go github.com/klauspost/compress", why: "samples and records in Parquet segments: trace/parquet's columns, plan's incidents"},
	{pkg: "store/dialect", may: "sample spec store", why: "what a store's tables and a spec are, in each engine's SQL; runs nothing"},
	{pkg: "store/digest", may: "sample stat spec atomicfile store", outside: "github.com/parquet-go", why: "segments to spec.Hours, kept, and those to specs"},
	{pkg: "store/s3", may: "store", outside: "github.com/aws", why: "a store.Bucket; the only package that links AWS's client"},
	{pkg: "store/duck", may: "sample store store/dialect", outside: "golang.org/x/sys github.com/duckdb", why: "SQL over a store's segments; the only package that links DuckDB"},
	{pkg: "store/spark", may: "sample spec store store/dialect", outside: "google.golang.org/grpc google.golang.org/protobuf github.com/apache/arrow-go", why: "the same SQL on Apache Spark"},
	{pkg: "server", may: "sample spec command plan config wire api api/cluster store store/dialect store/digest store/duck incident", outside: "github.com/prometheus/client_golang", why: "the cluster's side; what it is fed through are its own interfaces, the types in them are their packages'"},
	{pkg: "server/apifuzz", why: "asks the shipped server by its own document; knows nothing else of it"},
	{pkg: "enforce/fault", may: "sample host command enforce api", outside: "golang.org/x/sys", why: "kills the shipped agent and the enforcer at every step, and judges what is left"},
	{pkg: "daemon", outside: "github.com/spf13/cobra", why: "what the daemons' command lines have in common; knows no daemon"},
	{pkg: "cmd/quell-agent", may: "daemon sample stat spec detect plan trace host counter counter/runq counter/uprobe counter/blockio counter/netq enforce egress config logbook api agent wire bus incident", outside: "golang.org/x/sys github.com/spf13 github.com/prometheus", why: "wiring"},
	{pkg: "cmd/quell-server", may: "daemon sample trace config wire atomicfile bus bus/authority bus/embedded bus/load store store/digest store/duck store/s3 store/spark server", outside: "github.com/spf13", why: "wiring"},
	{pkg: "cmd/quell", may: "keyed sample stat spec detect command plan placement trace trace/parquet trace/recording evaluation replay sim quality host counter counter/runq counter/uprobe counter/blockio counter/netq enforce workload config logbook api api/cluster report agent demo lab lab/study lab/result lab/analyse lab/load lab/httpload lab/udpload lab/audit lab/env lab/network lab/web lab/observe lab/remote lab/platform lab/record lab/render lab/render/parquet lab/depot store store/spark incident", outside: "golang.org/x/sys golang.org/x/term github.com/spf13", why: "wiring"},
}

// mutable lists the package-level variables that may change, with the reason.
var mutable = map[string]string{
	"internal/workload.sink":   "keeps the compiler from dropping the loops; written, never read",
	"cmd/quell.version":        "stamped by the linker",
	"cmd/quell-agent.version":  "stamped by the linker",
	"cmd/quell-server.version": "stamped by the linker",
}

// coreStd are the standard packages that the pure core may use: none of them
// reaches the operating system, a clock or another goroutine. (time and
// math/rand are here for their types; rules_test.go bars the rest of them.)
var coreStd = words("bytes cmp container/heap container/list container/ring encoding encoding/binary encoding/json " +
	"errors fmt hash hash/fnv hash/maphash iter maps math math/big math/bits math/cmplx math/rand math/rand/v2 slices sort strconv strings time unicode unicode/utf8")

// impure are the functions of those packages that the core may not call.
var impure = map[string][]string{
	"time": words("Now Since Until After AfterFunc Tick NewTimer NewTicker Sleep LoadLocation"),
	"fmt":  words("Print Printf Println Scan Scanf Scanln"),
}

// randOK are the names of math/rand and math/rand/v2 that use no global source.
var randOK = words("New NewSource NewPCG NewChaCha8 NewZipf Rand Source Source64 PCG ChaCha8 Zipf")

// agentNever are import paths that must not be linked into the agent.
var agentNever = words("github.com/quell-dev/quell/internal/bus/embedded github.com/quell-dev/quell/internal/bus/authority github.com/nats-io/nats-server github.com/quell-dev/quell/internal/trace/parquet github.com/marcboeker github.com/duckdb github.com/parquet-go github.com/apache/arrow")

func words(s string) []string { return strings.Fields(s) }
