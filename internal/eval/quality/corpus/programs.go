package main

// half is the purpose of a program: numbers are chosen on recordings with tuning programs,
// and judged on recordings with test programs.
type half string

const (
	tuning half = "tuning"
	test   half = "test"
)

// program is a real program in a role. sh runs its scripts in the task's cgroup, with $D, a
// directory of the task, and they end with it. Those of a scene on a link run in a network
// namespace of the scene; $FAR before a command runs it at the link's far end, 10.99.0.2.
type program struct {
	name     string
	half     half
	on       place    // of the scenes that contain it
	packages []string // Debian packages
	needs    string   // a command in them
	// setup runs once before the scene, in the task's cgroup.
	setup string
	// run works until it is killed. A victim's run prints a line for each equal piece of
	// work. While $D/heavy exists, the pieces of a program with phases take twice the work.
	run    string
	phases bool
	// cause is what an antagonist takes from others: cpu, cache, memory, io, net.
	cause string
}

// victims are programs that count their own work.
func victims() []program {
	return []program{
		{
			name: "redis", half: tuning, packages: []string{"redis-server", "redis-tools"}, needs: "redis-benchmark",
			setup: `redis-server --port 0 --unixsocket $D/s --save '' --appendonly no --dir $D --daemonize yes >/dev/null
until redis-cli -s $D/s ping >/dev/null 2>&1; do sleep 0.05; done`,
			run: `while redis-benchmark -s $D/s -t get -n 1000 -c 4 -q >/dev/null; do echo; done`,
		},
		{
			name: "perl", half: tuning, packages: []string{"perl"}, needs: "perl", phases: true,
			run: `exec perl -e '$|=1; my $t="the quick brown fox jumps over the lazy dog " x 400; while(1){
my $n=-e "$ENV{D}/heavy"?2:1; for(1..3*$n){ my %w; $w{$_}++ for split / /,$t; $t=~s/(\w+) (\w+)/$2 $1/g; } print "\n"; select(undef,undef,undef,0.002); }'`,
		},
		{
			name: "compile", half: tuning, packages: []string{"gcc"}, needs: "gcc",
			setup: `i=0; while [ $i -lt 40 ]; do echo "int f$i(int a,int b){int s=0;for(int i=0;i<a;i++)for(int j=i;j<b;j++)s+=(i*j)^(s>>3);return s;}"; i=$((i+1)); done >$D/a.c`,
			run:   `while gcc -O1 -c $D/a.c -o $D/a.o; do echo; done`,
		},
		{
			name: "graphics", half: tuning, packages: []string{"graphicsmagick"}, needs: "gm",
			setup: `gm convert -size 500x400 plasma:blue-red $D/in.ppm`,
			run:   `while OMP_NUM_THREADS=1 gm convert $D/in.ppm -resize 60% -blur 2x1 $D/out.ppm; do echo; done`,
		},
		{
			name: "mawk", half: tuning, packages: []string{"mawk"}, needs: "mawk",
			setup: `i=0; while [ $i -lt 3000 ]; do echo "$i host$((i%17)) $((i*7919%1000)) GET /a/$((i%91))"; i=$((i+1)); done >$D/log`,
			run:   `while mawk '{n[$2]+=$3; u[$5]++} END {for (k in n) s+=n[k]; print s}' $D/log $D/log $D/log >/dev/null; do echo; done`,
		},
		{
			name: "nginx", half: test, packages: []string{"nginx-light", "apache2-utils"}, needs: "ab",
			setup: `echo "worker_processes 1; pid $D/pid; error_log /dev/null; events {} http { access_log off; server { listen unix:$D/s; listen 127.0.0.1:18089; location / { return 200 ok; } } }" >$D/conf
nginx -p $D -c $D/conf 2>$D/errors`,
			run: `while ab -q -n 400 -c 4 http://127.0.0.1:18089/ >/dev/null 2>&1; do echo; done`,
		},
		{
			name: "postgres", half: test, packages: []string{"postgresql", "postgresql-contrib"}, needs: "pgbench",
			setup: postgres("fsync=off"),
			run:   pgbench("-S -t 300"),
		},
		{
			name: "python", half: test, packages: []string{"python3"}, needs: "python3", phases: true,
			run: `exec python3 -uc '
import json, os, time
doc = {"rows": [{"id": i, "name": "n%d" % i, "tags": ["a", "b", str(i)]} for i in range(150)]}
while True:
    for _ in range(10 if os.path.exists(os.environ["D"] + "/heavy") else 5):
        s = json.loads(json.dumps(doc))
        sorted(s["rows"], key=lambda r: r["name"][::-1])
    print()
    time.sleep(0.002)
'`,
		},
		{
			name: "sqlite", half: test, packages: []string{"sqlite3"}, needs: "sqlite3",
			setup: `sqlite3 $D/db "create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c where x<4000) insert into t select x, x*7919%1000 from c;"`,
			run:   `while sqlite3 $D/db "select b, count(*), sum(a) from t group by b order by 3 desc limit 5; select count(*) from t x join t y on x.a=y.b;" >/dev/null; do echo; done`,
		},
		{
			name: "lua", half: test, packages: []string{"lua5.4"}, needs: "lua5.4", phases: true,
			run: `exec lua5.4 -e 'io.stdout:setvbuf("no") local path=os.getenv("D").."/heavy"
while true do local n=1 local f=io.open(path) if f then f:close() n=2 end
for _=1,n do local t={} for i=1,4000 do t[i]=(i*7919)%10007 end table.sort(t) local s={} for i=1,500 do s[#s+1]=tostring(t[i]) end table.concat(s,",") end print() end'`,
		},
		{
			name: "redis-log", half: tuning, on: onDisk, packages: []string{"redis-server", "redis-tools"}, needs: "redis-benchmark",
			setup: `redis-server --port 0 --unixsocket $D/s --save '' --appendonly yes --appendfsync always --dir $D --daemonize yes >/dev/null
until redis-cli -s $D/s ping >/dev/null 2>&1; do sleep 0.05; done`,
			run: `while redis-benchmark -s $D/s -t set -n 20 -c 1 -q >/dev/null; do echo; done`,
		},
		{
			name: "dd-read", half: tuning, on: onDisk, packages: []string{"coreutils"}, needs: "dd",
			setup: `head -c 64M /dev/urandom >$D/f; sync $D/f`,
			run:   `while dd if=$D/f of=/dev/null bs=16k count=200 iflag=direct 2>/dev/null; do echo; sleep 0.01; done`,
		},
		{
			name: "sqlite-commit", half: test, on: onDisk, packages: []string{"sqlite3"}, needs: "sqlite3",
			setup: `sqlite3 $D/db "create table t(a primary key,b); insert into t values(1,0);"`,
			run:   `while sqlite3 $D/db "update t set b=b+1; update t set b=b+2; update t set b=b+3;"; do echo; done`,
		},
		{
			name: "postgres-commit", half: test, on: onDisk, packages: []string{"postgresql", "postgresql-contrib"}, needs: "pgbench",
			setup: postgres("fsync=on"),
			run:   pgbench("-N -t 20"),
		},
		{
			name: "redis-remote", half: tuning, on: onLink, packages: []string{"redis-server", "redis-tools"}, needs: "redis-benchmark",
			setup: `$FAR redis-server --bind 10.99.0.2 --protected-mode no --port 18094 --save '' --appendonly no --dir $D --daemonize yes >/dev/null
until redis-cli -h 10.99.0.2 -p 18094 ping >/dev/null 2>&1; do sleep 0.05; done`,
			run: `while redis-benchmark -h 10.99.0.2 -p 18094 -t set -d 200 -n 40 -c 1 -q >/dev/null; do echo; sleep 0.01; done`,
		},
		{
			name: "curl-upload", half: tuning, on: onLink, packages: []string{"curl", "python3"}, needs: "curl",
			setup: `head -c 60k /dev/urandom >$D/file; cat >$D/serve.py <<'EOF'
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_PUT(self):
        self.rfile.read(int(self.headers["Content-Length"])); self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("10.99.0.2", 18095), H).serve_forever()
EOF
$FAR python3 $D/serve.py >/dev/null 2>&1 &
until curl -s -T $D/file http://10.99.0.2:18095/; do sleep 0.05; done`,
			run: `while curl -s -o /dev/null -T $D/file http://10.99.0.2:18095/; do echo; sleep 0.05; done`,
		},
		{
			name: "nginx-remote", half: test, on: onLink, packages: []string{"nginx-light", "apache2-utils"}, needs: "ab",
			setup: `echo "worker_processes 1; pid $D/pid; error_log /dev/null; events {} http { access_log off; server { listen 10.99.0.2:18096; location / { return 200 ok; } } }" >$D/conf
$FAR nginx -p $D -c $D/conf 2>$D/errors`,
			run: `while ab -q -n 40 -c 2 http://10.99.0.2:18096/ >/dev/null 2>&1; do echo; sleep 0.01; done`,
		},
		{
			name: "postgres-remote", half: test, on: onLink, packages: []string{"postgresql", "postgresql-contrib"}, needs: "pgbench",
			setup: postgres("fsync=off"),
			run:   pgbench("-N -t 20 -h 10.99.0.2"),
		},
	}
}

// postgres returns the setup of a server with a small database. It also listens at
// 10.99.0.2 if that exists. pgbench returns the run of its client: one run is a piece.
func postgres(setting string) string {
	return `B=$(ls -d /usr/lib/postgresql/*/bin | tail -1); chmod 711 $D; mkdir $D/d; chown postgres $D/d; cd $D/d
as() { setpriv --reuid=postgres --regid=postgres --init-groups "$@"; }
as $B/initdb -D $D/d/db -A trust >/dev/null
echo 'host all all 10.99.0.0/24 trust' >>$D/d/db/pg_hba.conf
$FAR setpriv --reuid=postgres --regid=postgres --init-groups $B/pg_ctl -D $D/d/db -o "-k $D/d -c listen_addresses=$LISTEN -c ` + setting + ` -c autovacuum=off" -l $D/d/log -w start >/dev/null
as $B/pgbench -h $D/d -i -s 1 -q postgres >/dev/null 2>&1`
}

func pgbench(options string) string {
	return `B=$(ls -d /usr/lib/postgresql/*/bin | tail -1); cd $D/d
while setpriv --reuid=postgres --regid=postgres --init-groups $B/pgbench -h $D/d -n -c 1 ` + options + ` postgres >/dev/null 2>&1; do echo; done`
}

// antagonists use the resources that others need. They create the data that they read.
func antagonists() []program {
	return []program{
		{name: "xz", half: tuning, cause: "cpu", packages: []string{"xz-utils"}, needs: "xz", run: `while :; do xz -6 -c /bin/bash >/dev/null; done`},
		{name: "pigz", half: tuning, cause: "cpu", packages: []string{"pigz"}, needs: "pigz", run: `while :; do pigz -9 -p 2 -c /usr/bin/perl /usr/bin/perl /usr/bin/perl /usr/bin/perl >/dev/null; done`},
		{name: "openssl", half: tuning, cause: "cpu", packages: []string{"openssl"}, needs: "openssl", run: `while :; do openssl speed -seconds 5 sha256 >/dev/null 2>&1; done`},
		{name: "sysbench-cpu", half: tuning, cause: "cpu", packages: []string{"sysbench"}, needs: "sysbench", run: `exec sysbench cpu --threads=2 --cpu-max-prime=20000 --time=3600 run >/dev/null`},
		{name: "stream", half: tuning, cause: "memory", packages: []string{"stress-ng"}, needs: "stress-ng", run: `exec stress-ng --stream 1 -q`},
		{name: "stress-cache", half: tuning, cause: "cache", packages: []string{"stress-ng"}, needs: "stress-ng", run: `exec stress-ng --cache 1 -q`},
		{name: "flac", half: tuning, cause: "cpu", packages: []string{"flac"}, needs: "flac",
			run: `head -c 20000000 /dev/urandom >$D/raw; while :; do flac -8 -s -f --force-raw-format --endian=little --sign=signed --channels=2 --bps=16 --sample-rate=44100 -o $D/out $D/raw; done`},
		{name: "build", half: tuning, cause: "cpu", packages: []string{"g++"}, needs: "g++",
			run: `printf '#include <map>\n#include <string>\n#include <regex>\nint main(){std::map<std::string,int> m;std::regex r("a.*b");return m.size()+std::regex_match("ab",r);}\n' >$D/a.cc
work() { while :; do g++ -O2 -c $D/a.cc -o $D/a$1.o; done; }; work 1 & work 2`},
		{name: "zstd", half: test, cause: "cpu", packages: []string{"zstd"}, needs: "zstd", run: `while :; do zstd -q -15 -T2 -c /usr/bin/perl /bin/bash /usr/bin/perl >/dev/null; done`},
		{name: "bzip2", half: test, cause: "cpu", packages: []string{"bzip2"}, needs: "bzip2", run: `while :; do bzip2 -9 -c /usr/bin/perl >/dev/null; done`},
		{name: "7zip", half: test, cause: "cpu", packages: []string{"p7zip-full"}, needs: "7z", run: `while :; do 7z b 1 -mmt2 >/dev/null; done`},
		{name: "sysbench-memory", half: test, cause: "memory", packages: []string{"sysbench"}, needs: "sysbench", run: `exec sysbench memory --memory-block-size=8M --memory-total-size=100T --time=3600 run >/dev/null`},
		{name: "stress-matrix", half: test, cause: "cpu", packages: []string{"stress-ng"}, needs: "stress-ng", run: `exec stress-ng --matrix 2 -q`},
		{name: "x264", half: test, cause: "cpu", packages: []string{"x264"}, needs: "x264",
			run: `head -c 20000000 /dev/urandom >$D/raw; while :; do x264 --quiet --no-progress --threads 2 --demuxer raw --input-res 640x360 -o $D/out.264 $D/raw; done`},
		{name: "scan", half: test, cause: "cpu", packages: []string{"coreutils", "findutils"}, needs: "sha256sum", run: `while :; do find /usr/lib /usr/share -xdev -type f -size -4M -print0 | xargs -0 sha256sum >/dev/null 2>&1; done`},
		{name: "numbers", half: test, cause: "cpu", packages: []string{"python3"}, needs: "python3", run: `exec python3 -c '
x = 1
while True: x = (x * 6364136223846793005 + 1442695040888963407) % 2**64'`},
		{name: "dd-write", half: tuning, on: onDisk, cause: "io", packages: []string{"coreutils"}, needs: "dd", run: `while :; do dd if=/dev/zero of=$D/out bs=1M count=256 oflag=direct 2>/dev/null; done`},
		{name: "fio", half: tuning, on: onDisk, cause: "io", packages: []string{"fio"}, needs: "fio",
			run: `exec fio --name=w --filename=$D/w --size=256M --rw=randrw --bs=64k --direct=1 --iodepth=16 --ioengine=libaio --time_based --runtime=3600 --output=/dev/null`},
		{name: "logger", half: tuning, on: onDisk, cause: "io", packages: []string{"coreutils"}, needs: "dd", run: `while :; do dd if=/dev/zero of=$D/out bs=64k count=500 oflag=dsync 2>/dev/null; done`},
		{name: "sysbench-files", half: test, on: onDisk, cause: "io", packages: []string{"sysbench"}, needs: "sysbench",
			run: `cd $D; O="--file-total-size=256M --file-num=4 --file-extra-flags=direct"; sysbench fileio $O prepare >/dev/null
exec sysbench fileio $O --file-test-mode=rndwr --file-fsync-freq=0 --threads=4 --time=3600 run >/dev/null`},
		{name: "stress-hdd", half: test, on: onDisk, cause: "io", packages: []string{"stress-ng"}, needs: "stress-ng", run: `exec stress-ng --hdd 2 --hdd-opts direct --hdd-bytes 128M --temp-path $D -q`},
		{name: "rsync-copy", half: test, on: onDisk, cause: "io", packages: []string{"rsync"}, needs: "rsync", run: `while :; do rsync -a --fsync /usr/include /usr/share/perl $D/to; rm -rf $D/to; done`},
		{name: "iperf3", half: tuning, on: onLink, cause: "net", packages: []string{"iperf3"}, needs: "iperf3",
			run: `$FAR iperf3 -s -p 18100 >/dev/null & until iperf3 -c 10.99.0.2 -p 18100 -t 3600 >/dev/null 2>&1; do sleep 0.1; done`},
		{name: "socat", half: tuning, on: onLink, cause: "net", packages: []string{"socat"}, needs: "socat",
			run: `$FAR socat -u TCP-LISTEN:18101,fork,reuseaddr /dev/null & until socat -u /dev/zero TCP:10.99.0.2:18101 2>/dev/null; do sleep 0.1; done`},
		{name: "dump", half: tuning, on: onLink, cause: "net", packages: []string{"curl", "python3"}, needs: "curl",
			run: `$FAR python3 -c '
import socket
s = socket.create_server(("10.99.0.2", 18102))
while True:
    c, _ = s.accept()
    while c.recv(1 << 16): pass' & while :; do curl -s -o /dev/null -H Expect: -T - http://10.99.0.2:18102/dump </dev/zero; sleep 0.1; done`},
		{name: "iperf-udp", half: test, on: onLink, cause: "net", packages: []string{"iperf"}, needs: "iperf",
			run: `$FAR iperf -s -u -p 18103 >/dev/null 2>&1 & sleep 0.2; exec iperf -c 10.99.0.2 -u -p 18103 -b 40M -t 3600 >/dev/null 2>&1`},
		{name: "netcat", half: test, on: onLink, cause: "net", packages: []string{"netcat-openbsd"}, needs: "nc",
			run: `$FAR nc -lk 10.99.0.2 18104 >/dev/null & until nc -N 10.99.0.2 18104 </dev/zero; do sleep 0.1; done`},
		{name: "rsync-remote", half: test, on: onLink, cause: "net", packages: []string{"rsync"}, needs: "rsync",
			run: `mkdir -p $D/to; printf 'use chroot = no\nport = 18105\naddress = 10.99.0.2\n[to]\npath = %s\nread only = no\nuid = 0\ngid = 0\n' $D/to >$D/conf
$FAR rsync --daemon --no-detach --config=$D/conf & while :; do rsync -a --whole-file --port=18105 /usr/lib/git-core /usr/share/perl 10.99.0.2::to 2>/dev/null; rm -rf $D/to/*; sleep 0.1; done`},
	}
}

// innocents do little: now and then, or with a constant small share of a CPU.
func innocents() []program {
	return []program{
		{name: "rotate", half: tuning, packages: []string{"gzip"}, needs: "gzip", run: `while :; do sleep 6; gzip -c /usr/bin/perl >$D/log.gz; done`},
		{name: "vmstat", half: tuning, packages: []string{"procps"}, needs: "vmstat", run: `exec vmstat 1 >/dev/null`},
		{name: "web", half: tuning, packages: []string{"python3", "curl"}, needs: "curl",
			run: `cd $D; echo hello >index.html; python3 -m http.server --bind 127.0.0.1 18091 >/dev/null 2>&1 & while :; do curl -s -o /dev/null http://127.0.0.1:18091/; sleep 0.2; done`},
		{name: "report", half: tuning, packages: []string{"perl"}, needs: "perl", run: `exec perl -e 'while(1){ my $x=0; $x+=sqrt($_) for 1..150000; select(undef,undef,undef,0.04+rand(0.05)); }'`},
		{name: "burst", half: tuning, packages: []string{"openssl"}, needs: "openssl", run: `while :; do sleep 1.5; head -c 20M /dev/zero | openssl md5 >/dev/null; done`},
		{name: "exporter", half: test, packages: []string{"prometheus-node-exporter", "curl"}, needs: "prometheus-node-exporter",
			run: `prometheus-node-exporter --web.listen-address=127.0.0.1:18092 >/dev/null 2>&1 & while :; do curl -s -o /dev/null http://127.0.0.1:18092/metrics; sleep 1; done`},
		{name: "cron", half: test, packages: []string{"findutils"}, needs: "find", run: `while :; do sleep 7; find /etc /usr/share/doc -type f | sort >$D/list; done`},
		{name: "pipeline", half: test, packages: []string{"mawk"}, needs: "mawk", run: `while :; do echo "$(date +%s) GET /x 200"; sleep 0.05; done | mawk -W interactive '{n[$4]++} END {print n[200]}' >/dev/null`},
		{name: "top", half: test, packages: []string{"procps"}, needs: "top", run: `exec top -b -d 0.5 >/dev/null`},
		{name: "analysis", half: test, packages: []string{"python3"}, needs: "python3", run: `exec python3 -c '
import random, time
while True:
    sorted(random.random() for _ in range(15000))
    time.sleep(random.uniform(0.03, 0.1))'`},
		{name: "log", half: tuning, on: onDisk, packages: []string{"coreutils"}, needs: "sync", run: `while :; do date >>$D/log; sync $D/log; sleep 0.5; done`},
		{name: "checkpoint", half: test, on: onDisk, packages: []string{"coreutils"}, needs: "sync", run: `while :; do head -c 200k /dev/urandom >$D/state; sync $D/state; sleep 1; done`},
		{name: "ping", half: tuning, on: onLink, packages: []string{"iputils-ping"}, needs: "ping", run: `exec ping -q -i 0.2 10.99.0.2 >/dev/null`},
		{name: "syslog", half: test, on: onLink, packages: []string{"netcat-openbsd"}, needs: "nc", run: `while :; do date; sleep 0.3; done | nc -u 10.99.0.2 514`},
	}
}
