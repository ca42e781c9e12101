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
	{pkg: "core/sample", core: true, why: "quell's words; everything speaks them, so they know nothing"},
	{pkg: "core/stat", core: true, why: "numbers in, numbers out"},
	{pkg: "core/spec", core: true, may: "core/sample core/stat", why: "what a job normally costs, learnt with stat"},
	{pkg: "core/detect", core: true, may: "core/sample core/stat core/spec", why: "samples against specs"},
	{pkg: "core/command", core: true, may: "core/sample", why: "what operators may have done and within which limits; every door and the planner hold to it"},
	{pkg: "core/command/commandtest", core: true, why: "commands good and bad, for the tests of every door"},
	{pkg: "core/plan", core: true, may: "core/sample core/stat core/spec core/detect core/command", why: "findings in, actions out; an operator's cap within command's limits"},
	{pkg: "core/pipeline", core: true, may: "core/sample core/spec core/detect core/command core/plan", why: "the one loop over detect, plan and spec; agent, replay and sim are its hosts"},
	{pkg: "core/incident", core: true, may: "core/sample core/detect core/plan core/pipeline", why: "an incident as JSON, for logs, the server and people's tools"},
	{pkg: "core/placement", core: true, why: "who should be with whom: numbers in, pairs out"},
	{pkg: "format/atomicfile", why: "files that are there whole or not at all"},
	{pkg: "format/trace", may: "core/sample", why: "samples as CSV"},
	{pkg: "format/trace/tracetest", may: "core/sample", outside: "github.com/google/go-cmp", why: "samples that are hard to write; for tests of every format"},
	{pkg: "format/trace/parquet", may: "core/sample format/trace", outside: "github.com/parquet-go", why: "the same samples by column; apart, so that the agent links no Parquet"},
	{pkg: "format/wire", may: "core/sample core/spec core/command", outside: "google.golang.org/protobuf", why: "what agents and servers say to each other, in sample's, spec's and command's words"},
	{pkg: "format/keyed", outside: "go.yaml.in/yaml", why: "YAML into tagged structs; knows no configuration"},
	{pkg: "format/trace/recording", may: "core/sample format/keyed format/trace format/trace/parquet", outside: "github.com/parquet-go github.com/klauspost/compress", why: "samples out of whatever recorded them; column maps are strict YAML"},
	{pkg: "format/plot", why: "numbers as SVG; knows nothing of what they are of"},
	{pkg: "machine/host", may: "core/sample", outside: "golang.org/x/sys", why: "fills sample's words from /proc and /sys"},
	{pkg: "machine/counter", may: "core/sample machine/host", outside: "golang.org/x/sys github.com/prometheus/common", why: "readings by task; host.Capability for what is missing; Prometheus's own parser for tasks' counters"},
	{pkg: "machine/counter/bpf", may: "core/sample machine/counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "what loaders of eBPF share: a signal's windows as a counter.Source has them; a refusal is a counter.NotSupportedError"},
	{pkg: "machine/counter/runq", may: "core/sample machine/host machine/counter machine/counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "machine/counter/uprobe", may: "core/sample machine/host machine/counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Prober over eBPF"},
	{pkg: "machine/counter/blockio", may: "core/sample machine/host machine/counter machine/counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF; beside runq and uprobe the only package that loads any"},
	{pkg: "machine/counter/netq", may: "core/sample machine/host machine/counter machine/counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "machine/enforce", may: "core/sample machine/host", outside: "golang.org/x/sys", why: "journals host.Write, at a time given in sample's words"},
	{pkg: "machine/egress", may: "machine/host", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a file for enforce that the kernel lacks: what a cgroup sends, limited by an eBPF program"},
	{pkg: "agent/config", may: "core/sample core/spec core/detect core/plan format/keyed", why: "one struct per program out of the parameters that the core declares"},
	{pkg: "agent/logbook", may: "core/sample core/plan core/incident", why: "keeps and finds incident.Records; the agent writes, it and people's tools read"},
	{pkg: "agent/api", may: "core/sample core/spec core/detect core/command core/plan agent/logbook core/incident", why: "the agent's socket: incidents, specs and commands as the core spells them, in JSON, incidents out of the log"},
	{pkg: "agent", may: "core/sample core/stat core/spec core/detect core/command core/plan format/trace format/wire machine/host machine/counter machine/enforce agent/config agent/logbook agent/api core/pipeline core/incident", outside: "golang.org/x/sys github.com/prometheus/client_golang github.com/prometheus/common",
		why: "the loop over the core; what it is fed through are its own interfaces, the types in them are their packages'"},
	{pkg: "agent/daemon", outside: "github.com/spf13/cobra", why: "what the daemons' command lines have in common; knows no daemon"},
	{pkg: "cluster/api", may: "core/sample core/spec core/command core/plan agent/api core/incident", why: "the server's API: what is asked and answered, and the client; apart from the server, which links DuckDB"},
	{pkg: "cluster/bus/spool", may: "format/atomicfile", why: "messages on disk; knows no message"},
	{pkg: "cluster/bus/authority", may: "format/atomicfile format/wire", outside: "github.com/nats-io/jwt github.com/nats-io/nkeys", why: "who may use which of wire's subjects, as NATS's own credentials"},
	{pkg: "cluster/bus", may: "core/sample core/spec format/wire cluster/bus/spool", outside: "github.com/nats-io/nats.go", why: "wire's messages over NATS, from an agent's spool to a server's reader"},
	{pkg: "cluster/bus/embedded", may: "cluster/bus/authority", outside: "github.com/nats-io/nats-server github.com/nats-io/jwt", why: "a NATS server inside quell-server; apart, so that the agent links none"},
	{pkg: "cluster/bus/load", may: "core/sample format/wire cluster/bus", outside: "golang.org/x/sys github.com/prometheus/common", why: "plays machines against a server: wire's messages over bus's connections; reads the server's metrics"},
	{pkg: "cluster/store/segment", may: "core/sample format/trace/parquet", outside: "golang.org/x/sys github.com/parquet-go github.com/klauspost/compress", why: "Parquet by series from the library's encodings: what the store writes and merges, knows neither folders nor commits"},
	{pkg: "cluster/store", may: "core/sample core/plan format/atomicfile format/trace/parquet cluster/store/segment core/incident", outside: "golang.org/x/sys github.com/parquet-go github.com/klauspost/compress", why: "samples and records in Parquet segments: trace/parquet's columns, plan's incidents"},
	{pkg: "cluster/store/dialect", may: "core/sample core/spec cluster/store", why: "what a store's tables and a spec are, in each engine's SQL; runs nothing"},
	{pkg: "cluster/store/digest", may: "core/sample core/stat core/spec format/atomicfile cluster/store", outside: "github.com/parquet-go", why: "segments to spec.Hours, kept, and those to specs"},
	{pkg: "cluster/store/s3", may: "cluster/store", outside: "github.com/aws", why: "a store.Bucket; the only package that links AWS's client"},
	{pkg: "cluster/store/duck", may: "core/sample cluster/store cluster/store/dialect", outside: "golang.org/x/sys github.com/duckdb", why: "SQL over a store's segments; the only package that links DuckDB"},
	{pkg: "cluster/store/spark", may: "core/sample core/spec cluster/store cluster/store/dialect", outside: "google.golang.org/grpc google.golang.org/protobuf github.com/apache/arrow-go", why: "the same SQL on Apache Spark"},
	{pkg: "cluster/server", may: "core/sample core/spec core/command core/plan agent/config format/wire agent/api cluster/api cluster/store cluster/store/dialect cluster/store/digest cluster/store/duck core/incident", outside: "github.com/prometheus/client_golang", why: "the cluster's side; what it is fed through are its own interfaces, the types in them are their packages'"},
	{pkg: "cluster/server/apifuzz", why: "asks the shipped server by its own document; knows nothing else of it"},
	{pkg: "lab/workload", may: "core/sample machine/host", outside: "golang.org/x/sys", why: "names CPUs as sample.Set; places processes in cgroups that host finds"},
	{pkg: "lab/guest", may: "core/sample", outside: "golang.org/x/sys", why: "QEMU as a machine; names CPUs as sample.Set"},
	{pkg: "lab/guest/init", may: "lab/guest", outside: "golang.org/x/sys", why: "PID 1 of a guest: does what guest.Init says"},
	{pkg: "lab/guest/fetch", may: "lab/guest", why: "fills guest's cache of kernels"},
	{pkg: "lab/guest/inside/cpi", why: "tests only, of counter, in a guest"},
	{pkg: "lab/guest/inside/topology", why: "tests only, of host.Topology, in a guest"},
	{pkg: "lab/guest/inside/v2", why: "tests only, of cgroup v2 alone, in a guest"},
	{pkg: "lab/guest/inside/systemd", why: "tests only, of the packaged unit, in a guest"},
	{pkg: "lab/guest/inside/fakepmu", why: "tests only, of the agent's whole loop, in a guest"},
	{pkg: "lab/study", may: "format/keyed", outside: "go.yaml.in/yaml", why: "what a study file says and the plan that follows; touches no machine"},
	{pkg: "lab/result", may: "format/atomicfile lab/study", why: "records on disk; everything in the lab speaks them"},
	{pkg: "lab/load", outside: "golang.org/x/sys", why: "stops and lets go what it is given; knows no study"},
	{pkg: "lab/load/compare", may: "core/sample machine/host lab/workload lab/load", outside: "golang.org/x/sys", why: "holds processes by the lab's law and by others'; knows no study"},
	{pkg: "lab/place", may: "core/sample machine/host lab/study", why: "a cell's parts on a machine's CPUs; touches no machine"},
	{pkg: "lab/analyse", may: "lab/study lab/result", outside: "gonum.org/v1/gonum/stat", why: "records in, results with intervals out; distributions are gonum's"},
	{pkg: "lab/synthetic", may: "lab/study lab/result", why: "records from a model; runs nothing"},
	{pkg: "lab", may: "core/sample machine/host lab/study lab/result lab/place lab/synthetic", why: "the engine: runs a plan and leaves records; environments, load and observers are fed to it"},
	{pkg: "lab/audit", may: "core/sample machine/host lab/study lab/result lab", outside: "golang.org/x/sys", why: "adds to what a lab.Observer sees; perf's switch records are its own"},
	{pkg: "lab/xen", why: "runs Xen's tools and reads what they print; knows no study"},
	{pkg: "lab/env", may: "core/sample machine/host lab/workload lab/guest lab/study lab/load lab lab/xen", outside: "github.com/klauspost/compress golang.org/x/sys", why: "what the engine's roles run in: cgroups and processes are workload's, machines guest's, domains xen's, stopping load's"},
	{pkg: "lab/network", may: "lab/study lab", outside: "golang.org/x/sys github.com/vishvananda/netlink", why: "puts what another maker makes on networks of namespaces; netlink is a library's"},
	{pkg: "lab/remote", may: "core/sample format/keyed lab/study lab", outside: "golang.org/x/sys golang.org/x/crypto/ssh", why: "environments on other hosts behind the engine's interface; its helper makes them with a Maker that it is given"},
	{pkg: "lab/observe", may: "core/sample machine/host machine/counter machine/counter/blockio machine/counter/netq machine/enforce lab/workload format/keyed lab/study lab/result lab", outside: "golang.org/x/sys gonum.org/v1/gonum/stat", why: "watches runs for the engine, by the agent's own sources where the signal is no event of a part; knobs are journalled by enforce, two CPUs' distance is measured by workload"},
	{pkg: "lab/record", may: "core/sample format/trace lab/study lab/result lab/analyse lab", why: "has quell-agent sample the engine's runs and labels that by what the lab knows; starts the agent as a child"},
	{pkg: "lab/httpload", outside: "golang.org/x/sys", why: "asks web servers; knows no study. By the kernel's clock it tells the lab when"},
	{pkg: "lab/httpload/omission", may: "lab/httpload", outside: "golang.org/x/sys", why: "shows generators beside each other; stops its server by signals"},
	{pkg: "lab/udpload", may: "lab/result", outside: "golang.org/x/sys", why: "sends and counts datagrams; of the lab it knows only what its figures are called in a record"},
	{pkg: "lab/web", why: "what web servers are started with; starts none"},
	{pkg: "lab/guest/inside/xen", why: "tests only, of the lab's Xen environment, in Xen's first domain"},
	{pkg: "lab/render", may: "format/keyed format/plot lab/study lab/result lab/analyse", outside: "go.yaml.in/yaml", why: "results for people and their tools: draws what analyses say, computes nothing; expectations are strict YAML"},
	{pkg: "lab/platform", may: "core/sample machine/host lab/study lab/result lab/place lab/analyse", why: "the short studies of a machine in hand and what their results say of it; runs nothing"},
	{pkg: "lab/render/parquet", may: "lab/study lab/result lab/analyse lab/render", outside: "github.com/parquet-go", why: "a study's numbers and seconds by column; apart, so that nothing else links Parquet"},
	{pkg: "lab/depot", outside: "github.com/aws/aws-sdk-go-v2/aws", why: "files to and from S3-compatible storage; knows no study. Of AWS's SDK its signer only: quell is what guests boot"},
	{pkg: "lab/smoke", may: "lab/result", why: "runs, kills and judges the shipped quell lab"},
	{pkg: "lab/fault", may: "lab/result", outside: "golang.org/x/sys", why: "kills and disturbs the shipped quell lab, and judges what is left"},
	{pkg: "eval/sim", may: "core/sample core/stat core/spec core/detect core/plan format/trace core/pipeline core/incident", why: "the real detect and plan over machines of a model; writes what it played, with labels, as a trace"},
	{pkg: "eval/quality", may: "core/stat core/detect core/plan eval/sim", why: "rules against the simulator's scenarios, counted"},
	{pkg: "eval/quality/table", may: "core/detect eval/sim eval/quality", why: "make quality"},
	{pkg: "eval/evaluation", may: "core/sample core/stat core/detect core/plan core/incident", why: "incidents counted as the paper's section 7 counts them"},
	{pkg: "eval/replay", may: "core/sample core/stat core/spec core/detect core/plan format/trace format/trace/recording core/pipeline core/incident", why: "the real detect and plan over a recording"},
	{pkg: "eval/quality/fit", may: "core/sample core/stat core/detect core/plan eval/sim format/trace/recording core/pipeline eval/replay eval/quality", why: "fits the numbers of rule evidence on recordings and the simulator"},
	{pkg: "eval/quality/noise", may: "core/sample core/stat format/trace format/trace/recording", why: "how cost varies in recordings and in the simulator, by one instrument"},
	{pkg: "eval/quality/corpus", may: "core/sample core/detect format/trace format/trace/recording eval/replay lab/workload", why: "make corpus; runs quell-agent as a program"},
	{pkg: "people/report", may: "core/sample core/stat core/spec core/detect core/plan format/plot eval/evaluation eval/replay machine/host agent/api core/incident core/pipeline", why: "incidents, the agent's status and host.Capability as text for people"},
	{pkg: "people/demo", may: "core/sample core/spec core/detect core/command core/plan format/trace machine/host machine/counter machine/enforce lab/workload agent/config agent/logbook agent/api cluster/api people/report agent core/incident", outside: "golang.org/x/sys golang.org/x/term",
		why: "a scenario over the shipped agent: reads its incidents, starts workloads"},
	{pkg: "people/demo/figures", may: "people/demo", why: "plays the demo many times and reads its results"},
	{pkg: "testkit/quelltest", outside: "golang.org/x/sys", why: "the kernel is asked what it can; imported by any test, so it imports nothing of quell"},
	{pkg: "testkit/quelltest/tally", why: "reads go test -json"},
	{pkg: "testkit/quelltest/deps", why: "a table of programs and their Debian packages"},
	{pkg: "testkit/archtest", why: "tests only"},
	{pkg: "testkit/quelltest/soak", may: "format/atomicfile", outside: "golang.org/x/sys", why: "runs the tests many times, and keeps a record"},
	{pkg: "testkit/bpftest", may: "testkit/quelltest core/sample machine/host machine/counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "tasks, windows and a kernel for tests of signals over counter/bpf"},
	{pkg: "testkit/bench", may: "core/sample machine/host agent/config", outside: "golang.org/x/sys", why: "starts the shipped agent and its rivals as processes and meters them; host says where cgroup2 is and which CPUs there are; config what is shipped"},
	{pkg: "testkit/fault", may: "core/sample machine/host core/command machine/enforce agent/api", outside: "golang.org/x/sys", why: "kills the shipped agent and the enforcer at every step, and judges what is left"},
	{pkg: "cmd/quell-agent", may: "agent/daemon core/sample core/stat core/spec core/detect core/plan format/trace machine/host machine/counter machine/counter/runq machine/counter/uprobe machine/counter/blockio machine/counter/netq machine/enforce machine/egress agent/config agent/logbook agent/api agent format/wire cluster/bus core/incident", outside: "golang.org/x/sys github.com/spf13 github.com/prometheus", why: "wiring"},
	{pkg: "cmd/quell-server", may: "agent/daemon core/sample format/trace agent/config format/wire format/atomicfile cluster/bus cluster/bus/authority cluster/bus/embedded cluster/bus/load cluster/store cluster/store/digest cluster/store/duck cluster/store/s3 cluster/store/spark cluster/server", outside: "github.com/spf13", why: "wiring"},
	{pkg: "cmd/quell", may: "format/keyed core/sample core/stat core/spec core/detect core/command core/plan core/placement format/trace format/trace/parquet format/trace/recording eval/evaluation eval/replay eval/sim eval/quality machine/host machine/counter machine/counter/runq machine/counter/uprobe machine/counter/blockio machine/counter/netq machine/enforce lab/workload agent/config agent/logbook agent/api cluster/api people/report agent people/demo lab lab/study lab/result lab/analyse lab/load lab/httpload lab/udpload lab/audit lab/env lab/network lab/web lab/observe lab/remote lab/platform lab/record lab/render lab/render/parquet lab/depot cluster/store cluster/store/spark core/incident", outside: "golang.org/x/sys golang.org/x/term github.com/spf13", why: "wiring"},
}

// mutable lists the package-level variables that may change, with the reason.
var mutable = map[string]string{
	"internal/lab/workload.sink": "keeps the compiler from dropping the loops; written, never read",
	"cmd/quell.version":          "stamped by the linker",
	"cmd/quell-agent.version":    "stamped by the linker",
	"cmd/quell-server.version":   "stamped by the linker",
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
var agentNever = words("github.com/quell-dev/quell/internal/cluster/bus/embedded github.com/quell-dev/quell/internal/cluster/bus/authority github.com/nats-io/nats-server github.com/quell-dev/quell/internal/format/trace/parquet github.com/marcboeker github.com/duckdb github.com/parquet-go github.com/apache/arrow")

func words(s string) []string { return strings.Fields(s) }
