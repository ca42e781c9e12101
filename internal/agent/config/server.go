package config

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quell-dev/quell/internal/core/spec"
	"github.com/quell-dev/quell/internal/format/keyed"
)

// Server is the configuration of quell-server. The tags give each key's help
// and range; docs/server.md shows them.
type Server struct {
	StateDir  string `key:"state_dir" help:"directory of the store, the bus's buckets and the keys"`
	Listen    string `key:"listen" help:"address of the HTTP API; beyond loopback it needs tls and tokens_file"`
	LogLevel  string `key:"log_level" help:"debug, info, warn or error" oneof:"debug info warn error"`
	LogFormat string `key:"log_format" help:"text or json" oneof:"text json"`
	// MemoryMB is a soft limit.
	MemoryMB int `key:"memory_mb" help:"soft memory limit: above it the server collects garbage more often; queries are separate processes and not included" min:"128" max:"1000000"`
	// TokensFile holds hashes, not tokens.
	TokensFile string       `key:"tokens_file" help:"file of hashed API tokens (quell-server token prints its lines); empty: any client on loopback may read, and all commands are refused"`
	TLS        ServerTLS    `key:"tls"`
	Bus        ServerBus    `key:"bus"`
	Store      ServerStore  `key:"store"`
	Specs      ServerSpecs  `key:"specs"`
	Query      ServerQuery  `key:"query"`
	Limits     ServerRates  `key:"limits"`
	Notify     ServerNotify `key:"notify"`
	OTLP       ServerOTLP   `key:"otlp"`
	Evict      ServerEvict  `key:"evict"`
}

// ServerTLS names the certificate of the API.
type ServerTLS struct {
	Cert string `key:"cert" help:"certificate, PEM"`
	Key  string `key:"key" help:"its private key, PEM"`
}

// ServerBus configures how agents' messages arrive.
type ServerBus struct {
	URL         string `key:"url" help:"an external NATS server or cluster: tls://HOST:PORT, or nats://HOST:PORT on loopback, several separated by commas; empty: the embedded NATS server"`
	Credentials string `key:"credentials" help:"file of credentials for the external NATS server"`
	CA          string `key:"ca" help:"CA certificates for the external NATS server's certificate, PEM; empty: the system's"`
	Listen      string `key:"listen" help:"address of the embedded NATS server, for agents; empty: no agents, only imports; beyond loopback it needs tls"`
	SyncAlways  bool   `key:"sync_always" help:"the embedded NATS server fsyncs each decision and spec before it is acknowledged; otherwise once a second"`
	WaitingMB   int    `key:"waiting_mb" help:"maximum size in memory of samples that have come and are not read yet, and a quarter of it for records; beyond it agents keep theirs" min:"48" max:"100000"`
	Replicas    int    `key:"replicas" help:"copies of each bucket: 3 on a cluster" min:"1" max:"5"`
}

// ServerStore configures how samples and records are kept.
type ServerStore struct {
	Flush       time.Duration `key:"flush" help:"commit received samples this often" min:"100ms" max:"1m"`
	MaxPending  int           `key:"max_pending" help:"number of samples in memory that triggers a commit" min:"1000" max:"10000000"`
	KeepSamples time.Duration `key:"keep_samples" help:"samples older than this are removed" min:"1h" max:"87600h"`
	KeepRecords time.Duration `key:"keep_records" help:"incidents, actions, audit entries and specs older than this are removed" min:"24h" max:"175200h"`
	Upkeep      time.Duration `key:"upkeep" help:"merge small segments and remove old ones this often" min:"1s" max:"1h"`
	S3          ServerS3      `key:"s3"`
}

// ServerS3 configures a store outside the state directory. Credentials are looked up as
// AWS's tools do: environment, files, the machine's role.
type ServerS3 struct {
	Bucket   string `key:"bucket" help:"bucket of S3-compatible storage for the store; empty: it is in state_dir. Credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or what AWS's tools use"`
	Prefix   string `key:"prefix" help:"prefix of the names of its files"`
	Endpoint string `key:"endpoint" help:"URL of the storage; empty: AWS"`
	Region   string `key:"region" help:"empty: from the environment, else us-east-1"`
	CopiesMB int    `key:"copies_mb" help:"maximum size on disk of local copies in state_dir" min:"64" max:"10000000"`
}

// ServerSpecs are the parameters for learning specs over the whole cluster.
type ServerSpecs struct {
	Every    time.Duration `key:"every" help:"recompute all specs this often" min:"10s" max:"168h"`
	Between  time.Duration `key:"between" help:"between computations, update specs with new samples and publish changes this often; 0: never" min:"0s" max:"1h"`
	Engine   string        `key:"engine" help:"engine that computes specs; empty: quell-server, which reads each segment once; sc://HOST:PORT: Apache Spark, by one SQL statement through Spark Connect"`
	LookBack time.Duration `key:"look_back" help:"use samples up to this age" min:"1h" max:"87600h"`
	spec.Params
	// MinMachines hides that of Params, which an agent's configuration does not have: it has one machine.
	MinMachines int `key:"min_machines" help:"machines with such a task that a spec needs; from 3 on a single machine that reports false costs cannot make or move one" min:"1" max:"1000000"`
	// Threshold and Above are those of Params, which an agent's configuration does not have either.
	Threshold spec.Threshold `key:"threshold" help:"threshold of a job's costs, which agents judge by: sigmas: the mean and as many standard deviations as the agent's detect.sigmas, as in the paper; quantile: what a share of the job's samples exceeds (above); gev: the same, by a generalised extreme value distribution fitted to them" oneof:"sigmas quantile gev"`
	Above     float64        `key:"above" help:"share of a job's samples that is above its threshold, with quantile and gev" min:"0.001" max:"0.2"`
	MemoryMB  int            `key:"memory_mb" help:"memory limit of the computation" min:"64" max:"1000000"`
}

// ServerQuery limits people's queries.
type ServerQuery struct {
	Time     time.Duration `key:"time" help:"time limit of a query" min:"100ms" max:"1h"`
	MemoryMB int           `key:"memory_mb" help:"memory limit of a query" min:"32" max:"1000000"`
	Threads  int           `key:"threads" help:"CPUs of a query" min:"1" max:"256"`
	Rows     int           `key:"rows" help:"maximum number of rows of a result; the rest is cut off" min:"1" max:"10000000"`
	MaxMB    int           `key:"max_mb" help:"maximum size of a result; the rest is cut off" min:"1" max:"4096"`
	AtOnce   int           `key:"at_once" help:"maximum number of concurrent queries that users write; others wait. Lists of incidents and pairs, and the computation of specs, have one more each" min:"1" max:"256"`
	// PerCaller is below AtOnce by default, so that one caller cannot stop all others.
	PerCaller int `key:"per_caller" help:"maximum number of concurrent queries of one caller" min:"1" max:"256"`
}

// ServerRates limit the callers' requests.
type ServerRates struct {
	PerSecond   float64 `key:"per_second" help:"requests of one client per second, on average" min:"0.1" max:"100000"`
	Burst       int     `key:"burst" help:"requests of one client in a burst" min:"1" max:"100000"`
	BodyKB      int     `key:"body_kb" help:"maximum size of a request" min:"1" max:"65536"`
	AnswersMB   int     `key:"answers_mb" help:"memory for requests and answers in progress, half of it for one caller; queries wait for their readers when it is full" min:"16" max:"1000000"`
	Connections int     `key:"connections" help:"maximum number of API connections; a further one takes the place of the longest idle one, or waits" min:"10" max:"100000"`
	Streams     int     `key:"streams" help:"maximum number of event streams" min:"1" max:"100000"`
	// StreamsPerCaller is below Streams by default, as PerCaller.
	StreamsPerCaller int `key:"streams_per_caller" help:"maximum number of event streams of one caller" min:"1" max:"100000"`
}

// ServerPeer is how a server is reached that gets notifications.
type ServerPeer struct {
	TokenFile string `key:"token_file" help:"file with a bearer token, read again for each request; empty: none"`
	CA        string `key:"ca" help:"CA certificates for its certificate, PEM; empty: the system's"`
}

// ServerNotify configures notifications of incidents.
type ServerNotify struct {
	Level    string        `key:"level" help:"least level of a suspect: possible, likely or proven" oneof:"possible likely proven"`
	CoolDown time.Duration `key:"cool_down" help:"after a notification of a victim's and a suspect's job, further incidents of this pair are only counted for this long" min:"0s" max:"168h"`
	Link     string        `key:"link" help:"URL of this server for people, for links to the dashboard; empty: no links"`
	Webhook  struct {
		URL     string `key:"url" help:"http:// or https:// URL that gets a POST with JSON when an incident names a suspect and when it ends; empty: none"`
		URLFile string `key:"url_file" help:"file with this URL instead, if it contains a secret"`
		ServerPeer
	} `key:"webhook"`
	Alertmanager struct {
		URL string `key:"url" help:"URL of an Alertmanager, for the same as alerts; empty: none"`
		ServerPeer
	} `key:"alertmanager"`
	Kubernetes struct {
		URL string `key:"url" help:"URL of a Kubernetes API server, for the same as events of victims that are pods; https://kubernetes.default.svc in a pod; empty: none"`
		ServerPeer
	} `key:"kubernetes"`
}

// ServerOTLP configures the export to OpenTelemetry.
type ServerOTLP struct {
	URL   string        `key:"url" help:"URL of an OpenTelemetry collector (OTLP over HTTP, for example http://127.0.0.1:4318) for the server's metrics and for incidents as log events; empty: none"`
	Every time.Duration `key:"every" help:"send metrics this often" min:"1s" max:"1h"`
	ServerPeer
}

// ServerEvict configures what becomes of persistent antagonists.
type ServerEvict struct {
	Mode       string        `key:"mode" help:"off; advise: the audit log says what would be restarted on another machine; on: it is" oneof:"off advise on"`
	After      int           `key:"after" help:"number of caps on a task that helped the victim of one incident after which the task is restarted elsewhere" min:"3" max:"1000"`
	CoolDown   time.Duration `key:"cool_down" help:"time between two restarts of tasks of one job" min:"1m" max:"720h"`
	PerHour    int           `key:"per_hour" help:"maximum number of restarts in an hour, of all jobs" min:"1" max:"1000"`
	Hook       string        `key:"hook" help:"program that restarts a task that is no pod: it reads a JSON object with machine, task, job, path and victim from its standard input; empty: none"`
	Kubernetes struct {
		URL string `key:"url" help:"URL of the Kubernetes API server that evicts pods; https://kubernetes.default.svc in a pod; empty: none"`
		ServerPeer
	} `key:"kubernetes"`
}

// DefaultServer returns the paper's values where it has one, and limits for a server
// with two processors and 4 GB.
func DefaultServer() Server {
	s := spec.Paper()
	notify := ServerNotify{Level: "likely", CoolDown: time.Hour}
	const account = "/var/run/secrets/kubernetes.io/serviceaccount/" // of a pod
	notify.Kubernetes.ServerPeer = ServerPeer{TokenFile: account + "token", CA: account + "ca.crt"}
	evict := ServerEvict{Mode: "off", After: 3, CoolDown: 24 * time.Hour, PerHour: 4}
	evict.Kubernetes.ServerPeer = notify.Kubernetes.ServerPeer
	return Server{
		StateDir: "/var/lib/quell-server", Listen: "127.0.0.1:9781", LogLevel: "info", LogFormat: "text", MemoryMB: 900,
		Bus: ServerBus{Listen: "127.0.0.1:4222", WaitingMB: 64, Replicas: 1},
		Store: ServerStore{Flush: 2 * time.Second, MaxPending: 1_000_000, KeepSamples: 30 * 24 * time.Hour, KeepRecords: 365 * 24 * time.Hour, Upkeep: 10 * time.Second,
			S3: ServerS3{CopiesMB: 10_000}},
		Specs:  ServerSpecs{Every: s.Every, Between: time.Minute, LookBack: 14 * 24 * time.Hour, Params: s, MinMachines: 3, Threshold: s.Threshold, Above: s.Above, MemoryMB: 512},
		Query:  ServerQuery{30 * time.Second, 256, 2, 100_000, 64, 2, 1},
		Limits: ServerRates{20, 40, 1024, 128, 1000, 100, 10},
		Notify: notify, OTLP: ServerOTLP{Every: time.Minute}, Evict: evict,
	}
}

// LoadServer is Load for quell-server: store.flush is QUELL_SERVER_STORE_FLUSH
// in the environment.
func LoadServer(file string, environ, settings []string) (*Server, error) {
	s := DefaultServer()
	if err := fill(&s, "QUELL_SERVER_", file, environ, settings); err != nil {
		return nil, err
	}
	return &s, nil
}

// Validate returns every problem of the current values.
func (s *Server) Validate() []Problem {
	ps := problems(keyed.Check("", s))
	add := ps.add
	if s.StateDir == "" {
		add("state_dir", `""`, "a directory")
	}
	loopback := address("listen", s.Listen, "127.0.0.1:9781", add)
	if (s.TLS.Cert == "") != (s.TLS.Key == "") {
		add("tls.key", strconv.Quote(s.TLS.Key), "both tls.cert and tls.key, or neither")
	}
	if !loopback && s.TLS.Cert == "" {
		add("tls.cert", `""`, "a certificate, since listen is beyond loopback")
	}
	if !loopback && s.TokensFile == "" {
		add("tokens_file", `""`, "a file of tokens, since listen is beyond loopback")
	}
	if s.Bus.Listen != "" {
		if loopback := address("bus.listen", s.Bus.Listen, "127.0.0.1:9781", add); !loopback && s.Bus.URL == "" && s.TLS.Cert == "" {
			add("bus.listen", strconv.Quote(s.Bus.Listen), "an address of loopback, or a certificate in tls.cert")
		}
	}
	checkURLs("bus", s.Bus.URL, s.Bus.Credentials, add)
	if e := s.Specs.Engine; e != "" && !strings.HasPrefix(e, "sc://") {
		add("specs.engine", strconv.Quote(e), "empty, or sc://HOST:PORT")
	} else if e != "" && s.Specs.Threshold != spec.BySigmas {
		add("specs.threshold", strconv.Quote(string(s.Specs.Threshold)), "sigmas, since specs.engine gives no distributions")
	}
	if s3 := s.Store.S3; s3.Bucket == "" && s3.Endpoint != "" {
		add("store.s3.bucket", `""`, "a bucket, since store.s3.endpoint is set")
	}
	if most := s.Limits.AnswersMB << 10 / 2; s.Limits.BodyKB > most {
		add("limits.body_kb", s.Limits.BodyKB, fmt.Sprintf("at most %d, half of limits.answers_mb", most))
	}
	if s.Specs.LookBack > s.Store.KeepSamples {
		add("specs.look_back", s.Specs.LookBack, fmt.Sprintf("at most store.keep_samples, %s", s.Store.KeepSamples))
	} else if s.Specs.LookBack > s.Store.KeepRecords { // else samples of incidents that are not known any more would teach
		add("specs.look_back", s.Specs.LookBack, fmt.Sprintf("at most store.keep_records, %s", s.Store.KeepRecords))
	}
	n := &s.Notify
	if n.Webhook.URL != "" && n.Webhook.URLFile != "" {
		add("notify.webhook.url_file", strconv.Quote(n.Webhook.URLFile), "notify.webhook.url or this, not both")
	}
	if n.Link != "" {
		checkHTTP("notify.link", n.Link, "", add)
	}
	if e := &s.Evict; e.Hook != "" && !filepath.IsAbs(e.Hook) {
		add("evict.hook", strconv.Quote(e.Hook), "an absolute path")
	} else if e.Mode == "on" && e.Hook == "" && e.Kubernetes.URL == "" {
		add("evict.mode", e.Mode, "evict.kubernetes.url or evict.hook, which restarts tasks")
	}
	for _, r := range s.receivers() {
		if r.file == "" { // else it is checked when it is read
			checkHTTP(r.key+".url", r.url, r.TokenFile, add)
		}
	}
	return ps
}

// receiver is a configured server that gets notifications.
type receiver struct {
	key, url, file string
	*ServerPeer
}

// receivers are those that are configured.
func (s *Server) receivers() []receiver {
	n := &s.Notify
	all := []receiver{{"notify.webhook", n.Webhook.URL, n.Webhook.URLFile, &n.Webhook.ServerPeer}, {"notify.alertmanager", n.Alertmanager.URL, "", &n.Alertmanager.ServerPeer},
		{"notify.kubernetes", n.Kubernetes.URL, "", &n.Kubernetes.ServerPeer}, {"evict.kubernetes", s.Evict.Kubernetes.URL, "", &s.Evict.Kubernetes.ServerPeer}, {"otlp", s.OTLP.URL, "", &s.OTLP.ServerPeer}}
	return slices.DeleteFunc(all, func(r receiver) bool { return r.url == "" && r.file == "" })
}

// CheckHTTP returns what a URL of HTTP must be instead; "" if it is good. Passwords belong in
// files, and a token is sent in plain text at most within the machine.
func CheckHTTP(text, tokenFile string) (want string) {
	at, err := url.Parse(text)
	switch {
	case err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Hostname() == "" || at.User != nil || at.Fragment != "":
		return "http://HOST:PORT or https://HOST:PORT, without credentials"
	case tokenFile != "" && at.Scheme != "https" && !isLoopback(at.Hostname()):
		return "https:// beyond loopback, since a token is sent"
	}
	return ""
}

func checkHTTP(key, text, tokenFile string, add func(key string, value any, want string)) {
	if want := CheckHTTP(text, tokenFile); want != "" {
		add(key, "a URL that is not shown because it may contain a password", want)
	}
}

// address checks HOST:PORT and reports whether it is a loopback address.
func address(key, value, example string, add func(key string, value any, want string)) (loopback bool) {
	host, port, err := net.SplitHostPort(value)
	if _, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil {
		add(key, strconv.Quote(value), "HOST:PORT, e.g. "+example)
		return true // reported already
	}
	return isLoopback(host)
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// SpecParams returns the parameters for learning specs.
func (s *Server) SpecParams() spec.Params {
	p := s.Specs.Params
	p.Every, p.MinMachines, p.Threshold, p.Above = s.Specs.Every, s.Specs.MinMachines, s.Specs.Threshold, s.Specs.Above
	return p
}

// ServerReference writes the defaults as a commented YAML file.
func ServerReference() string { return reference(DefaultServer()) }
