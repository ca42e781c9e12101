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
	{pkg: "core/sample", core: true, why: "quell's basic types; every package uses them, so they import nothing"},
	{pkg: "core/stat", core: true, why: "statistics of plain numbers"},
	{pkg: "core/spec", core: true, may: "core/sample core/stat", why: "normal costs of jobs, learnt with stat"},
	{pkg: "core/detect", core: true, may: "core/sample core/stat core/spec", why: "compares samples with specs"},
	{pkg: "core/command", core: true, may: "core/sample", why: "operators' commands and their limits, checked by every interface and by the planner"},
	{pkg: "core/plan", core: true, may: "core/sample core/stat core/detect core/command", why: "turns findings into actions; operators' caps stay within command's limits"},
	{pkg: "core/pipeline", core: true, may: "core/sample core/stat core/spec core/detect core/command core/plan", why: "the loop over detect, plan and spec, shared by agent, replay and sim"},
	{pkg: "core/incident", core: true, may: "core/sample core/stat core/detect core/plan core/pipeline", why: "an incident as JSON, for logs, the server and people's tools"},
	{pkg: "core/placement", core: true, why: "placement advice: which tasks should share a machine"},
	{pkg: "format/atomicfile", why: "files that are written completely or not at all"},
	{pkg: "format/printable", why: "untrusted text, safe to print; every program's exits use it"},
	{pkg: "format/certificate", why: "certificates in files that change; the agent and the server say when they expire"},
	{pkg: "format/trace", may: "core/sample", why: "samples as CSV"},
	{pkg: "format/trace/tracetest", may: "core/sample", outside: "github.com/google/go-cmp", why: "samples that are hard to encode; for tests of every format"},
	{pkg: "format/trace/parquet", may: "core/sample format/trace", outside: "github.com/parquet-go", why: "samples as Parquet; separate, so that the agent links no Parquet"},
	{pkg: "format/wire", may: "core/sample core/spec core/command", outside: "google.golang.org/protobuf", why: "messages between agents and servers, with the types of sample, spec and command"},
	{pkg: "format/keyed", may: "core/sample", outside: "go.yaml.in/yaml", why: "YAML into tagged structs, with durations as people write them; independent of any configuration"},
	{pkg: "format/trace/recording", may: "core/sample format/keyed format/trace format/trace/parquet", outside: "github.com/parquet-go github.com/klauspost/compress", why: "samples from the recordings of other programs; column maps are strict YAML"},
	{pkg: "format/plot", may: "format/printable", why: "plots of numbers as SVG; independent of their source"},
	{pkg: "format/page", may: "format/plot format/printable", why: "pages of sections with tables and plots, as HTML and Markdown; independent of their content"},
	{pkg: "machine/host", may: "core/sample", outside: "golang.org/x/sys", why: "reads sample's types from /proc and /sys"},
	{pkg: "machine/origin", may: "core/sample machine/host", outside: "google.golang.org/protobuf/encoding/protowire", why: "where cgroups come from: layouts of paths, and the answers of container runtimes"},
	{pkg: "machine/chase", outside: "golang.org/x/sys", why: "a pointer chase through memory; knows no signal and no workload"},
	{pkg: "machine/counter", may: "core/sample machine/host machine/chase", outside: "golang.org/x/sys github.com/prometheus/common", why: "readings by task; host.Capability for what is missing; Prometheus's own parser for tasks' counters"},
	{pkg: "machine/counter/bpf", may: "core/sample machine/host machine/counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "shared code of eBPF loaders: a counter.Source's windows, counter.NotSupportedError if the kernel refuses; the kernel's clock"},
	{pkg: "machine/counter/bperf", may: "core/sample machine/counter machine/counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF, with counter's perf groups"},
	{pkg: "machine/counter/runq", may: "core/sample machine/host machine/counter machine/counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "machine/counter/usage", may: "machine/host machine/counter machine/counter/bpf", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "a host.Accounts over eBPF"},
	{pkg: "machine/counter/syscalls", may: "core/sample machine/counter machine/counter/bpf", outside: "github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "machine/counter/uprobe", may: "machine/host machine/counter", outside: "github.com/cilium/ebpf", why: "a counter.Prober over eBPF"},
	{pkg: "machine/counter/blockio", may: "core/sample machine/host machine/counter machine/counter/bpf", outside: "github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "machine/counter/netq", may: "core/sample machine/counter machine/counter/bpf", outside: "github.com/cilium/ebpf", why: "a counter.Source over eBPF"},
	{pkg: "machine/counter/sources", may: "core/sample machine/host machine/counter machine/counter/bperf machine/counter/runq machine/counter/syscalls machine/counter/uprobe machine/counter/blockio machine/counter/netq", why: "the table of all sources, for the agent and quell doctor"},
	{pkg: "machine/enforce", may: "core/sample machine/host", outside: "golang.org/x/sys", why: "journals host.Write; times are sample.Millis; names the processes that hold a lock"},
	{pkg: "machine/egress", may: "machine/host machine/enforce", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "limits a cgroup's sent traffic by an eBPF program, as a file for enforce"},
	{pkg: "agent/config", may: "core/sample core/spec core/detect core/plan format/keyed machine/origin", why: "one struct per program, with the core's parameters; its rules propose classes from origin.Facts"},
	{pkg: "agent/logbook", may: "core/sample core/pipeline core/incident", why: "stores and finds incident.Records; the agent writes, the agent and the command line read"},
	{pkg: "agent/api", may: "core/sample core/spec core/command core/plan format/keyed agent/logbook core/incident", why: "the agent's socket: incidents, specs and commands as JSON of the core's types"},
	{pkg: "agent", may: "format/printable core/sample core/spec core/detect core/command core/plan format/atomicfile format/wire machine/host machine/counter machine/enforce machine/origin agent/config agent/logbook agent/api core/pipeline core/incident format/certificate", outside: "golang.org/x/sys github.com/prometheus/client_golang github.com/prometheus/client_model github.com/prometheus/common",
		why: "the loop over the core; its inputs are its own interfaces with other packages' types"},
	{pkg: "agent/daemon", may: "format/printable", outside: "github.com/spf13/cobra", why: "shared code of the daemons: command lines and listeners"},
	{pkg: "agent/child", why: "runs the daemons as children of other programs, for the lab, the demo and the test kit"},
	{pkg: "cluster/api", may: "core/sample core/spec core/command agent/api core/incident", why: "the server's API and its client; separate from the server, which links DuckDB"},
	{pkg: "cluster/bus/spool", may: "format/atomicfile", why: "messages on disk, as bytes"},
	{pkg: "cluster/bus/credential", outside: "github.com/nats-io/jwt github.com/nats-io/nkeys", why: "the files of credentials, which agents read and the authority writes; the agent links it without the authority"},
	{pkg: "cluster/bus/authority", may: "format/atomicfile format/wire cluster/bus/credential", outside: "github.com/nats-io/jwt github.com/nats-io/nkeys golang.org/x/sys", why: "access to wire's subjects, as NATS credentials"},
	{pkg: "cluster/bus", may: "core/sample core/spec core/command format/wire format/atomicfile cluster/bus/spool cluster/bus/credential", outside: "github.com/nats-io/nats.go", why: "wire's messages over NATS, from an agent's spool to a server's reader"},
	{pkg: "cluster/bus/embedded", may: "cluster/bus/authority", outside: "github.com/nats-io/nats-server github.com/nats-io/jwt", why: "a NATS server inside quell-server; separate, so that the agent links none"},
	{pkg: "cluster/bus/load", may: "core/sample format/wire cluster/bus", outside: "golang.org/x/sync golang.org/x/sys github.com/prometheus/common", why: "simulates machines against a server with wire's messages; reads the server's metrics"},
	{pkg: "cluster/store/segment", may: "core/sample format/trace/parquet", outside: "github.com/parquet-go github.com/klauspost/compress", why: "writes and merges Parquet by series; independent of folders and commits"},
	{pkg: "cluster/store", may: "core/sample core/detect format/atomicfile format/trace/parquet cluster/store/segment core/incident", outside: "golang.org/x/sync golang.org/x/sys github.com/parquet-go github.com/klauspost/compress", why: "samples and records in Parquet segments: trace/parquet's columns, plan's incidents"},
	{pkg: "cluster/store/dialect", may: "core/sample core/spec cluster/store", why: "a store's tables and specs in each engine's SQL; runs nothing"},
	{pkg: "cluster/store/digest", may: "core/sample core/stat core/spec format/atomicfile format/trace/parquet cluster/store/segment cluster/store", outside: "golang.org/x/sync github.com/parquet-go", why: "turns segments into stored spec.Hours, and those into specs"},
	{pkg: "cluster/store/s3", may: "cluster/store", outside: "github.com/aws", why: "a store.Bucket; the only package that links AWS's client"},
	{pkg: "cluster/store/duck", may: "core/sample cluster/store cluster/store/dialect", outside: "golang.org/x/sys github.com/duckdb", why: "SQL over a store's segments; the only package that links DuckDB"},
	{pkg: "cluster/store/spark", may: "core/sample core/spec cluster/store cluster/store/dialect", outside: "google.golang.org/grpc google.golang.org/protobuf github.com/google/uuid github.com/apache/arrow-go", why: "the same SQL on Apache Spark"},
	{pkg: "cluster/notify", may: "format/printable core/sample core/detect core/incident agent/config", outside: "github.com/prometheus/client_golang", why: "tells webhooks, Alertmanager and Kubernetes of incidents"},
	{pkg: "cluster/otlp", may: "core/sample core/detect core/incident agent/config cluster/notify", outside: "github.com/prometheus/client_golang go.opentelemetry.io", why: "exports to OpenTelemetry, through notify's queue and client; the agent never links its SDK"},
	{pkg: "cluster/evict", may: "format/printable core/command core/detect core/plan core/incident agent/config cluster/notify cluster/store", outside: "github.com/prometheus/client_golang", why: "evicts persistent antagonists, through notify's client; the server tells it of incidents"},
	{pkg: "cluster/server", may: "format/printable format/certificate core/sample core/spec core/detect core/command core/plan agent/config format/wire agent/api cluster/api cluster/store cluster/store/dialect cluster/store/duck core/incident", outside: "github.com/prometheus/client_golang go.yaml.in/yaml golang.org/x/time", why: "the cluster's side; its inputs are its own interfaces with other packages' types"},
	{pkg: "lab/role", may: "machine/host", why: "what the lab's programs print, by the clock of host; used by the programs and by the engine"},
	{pkg: "lab/workload", may: "core/sample machine/host lab/role machine/chase", outside: "golang.org/x/sys", why: "names CPUs as sample.Set; places processes in cgroups that host finds"},
	{pkg: "lab/guest", may: "core/sample", outside: "golang.org/x/sys", why: "QEMU as a machine; names CPUs as sample.Set"},
	{pkg: "lab/guest/init", may: "lab/guest", outside: "golang.org/x/sys", why: "PID 1 of a guest: carries out guest.Init"},
	{pkg: "lab/guest/fetch", may: "lab/guest", why: "fills guest's cache of kernels"},
	{pkg: "lab/guest/inside/cpi", why: "tests only, of counter, in a guest"},
	{pkg: "lab/guest/inside/topology", why: "tests only, of host.Topology, in a guest"},
	{pkg: "lab/guest/inside/v2", why: "tests only, of cgroup v2 alone, in a guest"},
	{pkg: "lab/guest/inside/packages", why: "tests only, of the packages, in a guest"},
	{pkg: "lab/guest/inside/systemd", why: "tests only, of the packaged unit, in a guest"},
	{pkg: "lab/guest/inside/fakepmu", why: "tests only, of the agent's whole loop, in a guest"},
	{pkg: "lab/study", may: "format/keyed", outside: "go.yaml.in/yaml", why: "study files and their plans; touches no machine"},
	{pkg: "lab/result", may: "format/atomicfile lab/study", why: "records on disk, used by the whole lab"},
	{pkg: "lab/load", outside: "golang.org/x/sys", may: "machine/host", why: "stops and continues processes; independent of studies"},
	{pkg: "lab/place", may: "core/sample machine/host lab/study", why: "places a cell's parts on CPUs; touches no machine"},
	{pkg: "lab/analyse", may: "core/sample core/stat lab/role lab/study lab/result", outside: "gonum.org/v1/gonum/stat", why: "computes results with intervals from records; distributions from gonum"},
	{pkg: "lab/synthetic", may: "lab/study lab/result", why: "records from a model; runs nothing"},
	{pkg: "lab", may: "core/sample machine/host lab/role lab/study lab/result lab/load lab/place lab/synthetic", why: "the engine: runs a plan and writes records; environments, observers and the holding of load are its inputs, load has the types of levels and periods"},
	{pkg: "lab/audit", may: "core/sample machine/host lab/result lab", outside: "golang.org/x/sys", why: "a lab.Observer of perf's context-switch records"},
	{pkg: "lab/xen", why: "runs Xen's tools and parses their output; independent of studies"},
	{pkg: "lab/helper", may: "core/sample machine/host lab/role lab/study lab/result lab", outside: "golang.org/x/sys", why: "the engine's environments and processes over a connection; makes environments with a given Maker"},
	{pkg: "lab/image", may: "lab/role lab/guest", outside: "golang.org/x/sys", why: "makes and finds disks of guests; runs none"},
	{pkg: "lab/remote", may: "format/keyed lab/helper", outside: "golang.org/x/crypto/ssh", why: "starts helpers on other hosts"},
	{pkg: "lab/env", may: "core/sample machine/host lab/role lab/workload lab/guest lab/study lab/load lab lab/xen lab/helper lab/image lab/remote", outside: "github.com/klauspost/compress github.com/vishvananda/netlink golang.org/x/sys golang.org/x/crypto/ssh", why: "environments of the engine's roles, from workload (cgroups, processes), guest (machines), image and remote (guests with a disk), xen (domains) and load (stopping)"},
	{pkg: "lab/network", may: "machine/host lab/study lab", outside: "golang.org/x/sys github.com/vishvananda/netlink", why: "puts environments on networks of namespaces, by netlink"},
	{pkg: "lab/observe", may: "core/sample machine/host machine/counter machine/counter/blockio machine/counter/netq machine/enforce lab/role lab/workload format/keyed lab/study lab/result lab lab/xen", outside: "golang.org/x/sys gonum.org/v1/gonum/stat", why: "observes runs for the engine, with the agent's sources, and Xen's domains by Xen's tools; enforce journals settings, workload measures the distance of CPUs"},
	{pkg: "lab/record", may: "core/sample core/stat format/trace machine/host agent/child lab/workload lab/study lab/result lab/analyse lab", why: "has quell-agent sample the engine's runs, and labels the samples; starts the agent as a child, with a folder as workload names them"},
	{pkg: "lab/httpload", may: "machine/host lab/role", why: "loads web servers; independent of studies"},
	{pkg: "lab/web", why: "commands and configurations of web servers; starts none"},
	{pkg: "lab/guest/inside/xen", why: "tests only, of the lab's Xen environment, in Xen's first domain"},
	{pkg: "lab/render", may: "format/keyed format/plot lab/study lab/result lab/analyse core/stat format/page format/printable", why: "renders results for people and tools, computes nothing; expectations are strict YAML"},
	{pkg: "lab/platform", may: "core/sample machine/host lab/study lab/result lab/place lab/analyse core/stat format/page", why: "short studies of the present machine, and a page of their results; runs nothing"},
	{pkg: "lab/render/parquet", may: "lab/analyse lab/render core/stat", outside: "github.com/parquet-go", why: "a study's numbers as Parquet; separate, so that nothing else links Parquet"},
	{pkg: "lab/depot", outside: "github.com/aws/aws-sdk-go-v2/aws", why: "files to and from S3-compatible storage; links only AWS's signer, since guests boot quell"},
	{pkg: "lab/fault", why: "tests only, of the shipped quell lab, killed and disturbed"},
	{pkg: "eval/stat", may: "core/stat", outside: "gonum.org/v1/gonum", why: "statistics of evaluations, with gonum, which the agent does not link"},
	{pkg: "eval/rivals", may: "core/detect", why: "other projects' rules as detect's parameters"},
	{pkg: "eval/sim", may: "core/sample core/stat core/spec core/detect core/plan format/trace core/pipeline core/incident eval/rivals eval/stat", why: "the real detect and plan on simulated machines; writes labelled traces"},
	{pkg: "eval/quality", may: "core/detect core/plan eval/sim eval/rivals eval/stat", why: "counts how often rules are right on the simulator's scenarios"},
	{pkg: "eval/quality/table", may: "core/detect eval/sim eval/quality eval/rivals", why: "make quality"},
	{pkg: "eval/evaluation", may: "core/sample core/stat core/detect core/plan core/incident eval/stat", why: "counts incidents as the paper's section 7 does"},
	{pkg: "eval/month", may: "core/detect core/incident core/plan core/sample cluster/store eval/rivals eval/sim", why: "make evaluate-month: plays a simulated cluster into a store"},
	{pkg: "eval/placing", may: "core/detect core/incident core/plan core/sample core/stat eval/evaluation eval/rivals eval/sim", why: "make placement: places a simulated fleet's tasks by the pairs that were measured"},
	{pkg: "eval/replay", may: "core/sample core/stat core/spec core/detect core/plan format/trace core/pipeline core/incident eval/rivals eval/stat", why: "the real detect and plan over a recording"},
	{pkg: "eval/quality/fit", may: "core/sample core/detect core/plan eval/sim format/trace/recording core/pipeline eval/replay eval/quality eval/stat eval/rivals", why: "fits the numbers of rule evidence on recordings and the simulator"},
	{pkg: "eval/quality/corpus", may: "agent/child core/sample core/detect format/atomicfile format/keyed format/trace format/trace/recording eval/replay lab/workload eval/rivals", why: "make corpus; runs quell-agent as a program"},
	{pkg: "people/report", may: "core/sample core/stat core/spec core/detect core/plan format/plot eval/evaluation eval/replay machine/host agent/api core/incident format/page eval/stat format/printable", outside: "github.com/clipperhouse/displaywidth", why: "incidents, the agent's status and host.Capability as text for people"},
	{pkg: "people/dashboard", why: "the pages of quell-server in a browser: files and their headers; the data comes from the API"},
	{pkg: "people/dashboard/local", may: "core/sample core/spec core/command core/incident agent/logbook agent/api cluster/api", why: "the dashboard of one machine: answers the pages' requests from the agent's socket with the types of the server's API"},
	{pkg: "people/demo", may: "core/sample core/spec core/detect core/command core/plan format/trace machine/host lab/workload agent/logbook agent/api agent/child cluster/api core/incident", outside: "golang.org/x/sys",
		why: "runs a scenario with the shipped agent: starts workloads, reads incidents"},
	{pkg: "people/top", may: "core/sample core/command core/incident core/plan format/trace/recording agent/api agent/logbook people/report", outside: "charm.land/bubbletea/v2", why: "the interactive screen of quell top: asks the agent, and reads recordings of earlier times"},
	{pkg: "people/cli/app", may: "core/sample format/atomicfile agent/api people/report format/printable", outside: "github.com/spf13", why: "what all commands of quell share"},
	{pkg: "people/cli/replaycmd", may: "eval/rivals core/sample core/detect core/plan format/trace format/trace/parquet format/keyed format/trace/recording agent/config eval/sim eval/quality eval/replay people/report people/cli/app", outside: "github.com/spf13", why: "the commands quell replay and quell sim"},
	{pkg: "people/cli/labcmd", may: "core/sample format/atomicfile format/keyed machine/host machine/enforce lab/workload lab/place lab/study lab/result lab/load lab/analyse lab lab/audit lab/guest lab/image lab/helper lab/env lab/network lab/remote lab/observe lab/record lab/httpload lab/web lab/render lab/platform lab/render/parquet lab/depot people/cli/app format/printable", outside: "golang.org/x/sys github.com/spf13", why: "the command quell lab"},
	{pkg: "people/cli", may: "core/sample core/spec core/detect core/command core/plan core/incident core/placement machine/host machine/counter machine/counter/runq machine/counter/uprobe machine/counter/usage machine/counter/sources agent/config agent/logbook agent/api agent cluster/api cluster/store cluster/store/spark lab/workload eval/evaluation agent/daemon people/report people/top people/dashboard people/dashboard/local people/demo people/cli/app people/cli/labcmd people/cli/replaycmd format/printable", outside: "golang.org/x/term github.com/spf13 github.com/apache/arrow-go github.com/parquet-go/parquet-go", why: "all other commands of quell"},
	{pkg: "testkit/quelltest", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "probes the kernel's capabilities; imported by every test, so it imports nothing of quell"},
	{pkg: "testkit/quelltest/tally", why: "reads go test -json"},
	{pkg: "testkit/archtest", why: "tests only"},
	{pkg: "testkit/quelltest/soak", why: "tests only, of soak.sh"},
	{pkg: "testkit/bpftest", may: "testkit/quelltest core/sample machine/host machine/counter", outside: "golang.org/x/sys github.com/cilium/ebpf", why: "tasks, windows and a fake kernel for tests of signals over counter/bpf"},
	{pkg: "testkit/commandtest", why: "valid and invalid commands, for the tests of every interface"},
	{pkg: "testkit/together", may: "core/sample core/incident core/plan", why: "judges what an agent says of tasks that hurt only together, here and in a guest"},
	{pkg: "testkit/bench", why: "tests only, of what the shipped agent costs"},
	{pkg: "testkit/fault", why: "tests only, of the shipped agent and the enforcer, killed at every step"},
	{pkg: "testkit/chart", why: "tests only, of the Helm chart and the images"},
	{pkg: "testkit/clitest", may: "people/cli/app", outside: "github.com/spf13", why: "runs command lines of quell in tests"},
	{pkg: "cmd/quell-agent", may: "format/printable format/atomicfile format/certificate agent/daemon core/sample format/trace machine/host machine/counter machine/counter/blockio machine/counter/sources machine/counter/usage machine/enforce machine/egress machine/origin agent/config agent/api agent cluster/bus", outside: "github.com/spf13", why: "wiring"},
	{pkg: "cmd/quell-server", may: "format/certificate agent/daemon agent/child core/sample format/trace agent/config format/wire format/atomicfile cluster/bus cluster/bus/authority cluster/bus/credential cluster/bus/embedded cluster/bus/load cluster/store cluster/store/digest cluster/store/duck cluster/store/s3 cluster/store/spark cluster/evict cluster/notify cluster/otlp cluster/server people/dashboard", outside: "github.com/spf13 golang.org/x/crypto/x509roots", why: "wiring"},
	{pkg: "cmd/quell", may: "people/cli", why: "wiring"},
}

// mutable lists the package-level variables that may change, with the reason.
var mutable = map[string]string{
	"internal/testkit/quelltest.ports": "no port is returned twice",
	"cmd/quell.version":                "stamped by the linker",
	"cmd/quell-agent.version":          "stamped by the linker",
	"cmd/quell-server.version":         "stamped by the linker",
}

// coreStd are the standard packages that the pure core may use: none of them
// reaches the operating system, a clock or another goroutine. (time is
// here for its types; impure bars the rest.)
var coreStd = words("bytes cmp container/heap container/list container/ring encoding encoding/binary encoding/json " +
	"errors fmt hash hash/fnv hash/maphash iter maps math math/big math/bits math/cmplx slices sort strconv strings time unicode unicode/utf8")

// impure are the functions of those packages that the core may not call.
var impure = map[string][]string{
	"time": words("Now Since Until After AfterFunc Tick NewTimer NewTicker Sleep LoadLocation"),
	"fmt":  words("Print Printf Println Scan Scanf Scanln"),
}

// agentNever are import paths that must not be linked into the agent.
var agentNever = words("github.com/quell-dev/quell/internal/cluster/bus/embedded github.com/quell-dev/quell/internal/cluster/bus/authority github.com/nats-io/nats-server github.com/quell-dev/quell/internal/format/trace/parquet github.com/marcboeker github.com/duckdb github.com/parquet-go github.com/apache/arrow go.opentelemetry.io")

func words(s string) []string { return strings.Fields(s) }
