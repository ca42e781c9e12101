#!/bin/sh
# Prints what quell reads of this machine as a txtar archive. Usage:
#   sh capture.sh PATTERN "what machine it is" > name.txtar
# Of the cgroups, the tops and those whose path has PATTERN in it are taken,
# with their processes. Read the result before committing it: it has names of
# cgroups and mounts in it.
pattern=$1
echo "Captured by capture.sh: $2"
echo "Kernel $(uname -r), $(uname -m)."

file() { # file NAME: one file, if it can be read
	if [ -f "$1" ] && text=$(cat "$1" 2>/dev/null); then
		printf -- '-- %s --\n' "${1#/}"
		[ -z "$text" ] || printf '%s\n' "$text"
	fi
}
only() { # only NAME PATTERN: the lines that match
	printf -- '-- %s --\n' "${1#/}"
	grep -E "$2" "$1"
}

only /proc/self/mountinfo ' - (cgroup|cgroup2|proc|sysfs|resctrl) '
only /proc/stat '^cpu'
only /proc/cpuinfo '^$|^processor|^vendor_id|^cpu family|^model|^stepping|^flags|^CPU '
only /proc/self/limits 'Limit|Max open files'
only /proc/filesystems 'proc|cgroup|resctrl'
for f in /proc/self/schedstat /proc/pressure/* /proc/sys/kernel/nmi_watchdog /proc/sys/kernel/perf_event_paranoid \
	/sys/hypervisor/type /proc/device-tree/hypervisor/compatible /sys/class/dmi/id/sys_vendor /sys/class/dmi/id/product_name \
	/sys/devices/system/cpu/online /sys/devices/system/node/node*/cpulist; do
	file "$f"
done
# Identifies one boot of one machine, so not the real one.
printf -- '-- proc/sys/kernel/random/boot_id --\n00000000-0000-4000-8000-000000000000\n'
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
	for name in physical_package_id core_id core_cpus_list thread_siblings_list; do
		file "$cpu/topology/$name"
	done
	for index in "$cpu"/cache/index*; do
		for name in level type id size shared_cpu_list; do
			file "$index/$name"
		done
	done
done

pids=
cgroup() { # cgroup DIR
	for name in cgroup.controllers cgroup.procs cgroup.threads tasks cpu.stat cpu.pressure memory.pressure io.pressure \
		cpu.max cpu.max.burst cpu.cfs_quota_us cpu.cfs_period_us cpu.cfs_burst_us cpuacct.usage cpuset.cpus; do
		case $name-$1 in
		cgroup.procs-$mount | cgroup.threads-$mount | tasks-$mount) ;; # everything else on the machine
		*) file "$1/$name" ;;
		esac
	done
	[ "$1" = "$mount" ] || pids="$pids $(cat "$1/cgroup.procs")"
}
for mount in $(grep -E ' - (cgroup2 |cgroup .*[,[:space:]](cpu|cpuacct|cpuset)(,|$))' /proc/self/mountinfo | cut -d' ' -f5); do
	cgroup "$mount"
	for dir in $(find "$mount" -mindepth 1 -type d -path "*$pattern*" | sort); do
		cgroup "$dir"
	done
done
for pid in $(echo "$pids" | tr ' ' '\n' | sort -nu); do
	only "/proc/$pid/cgroup" '^[0-9]+:([a-z,]*cpu[a-z,]*)?:'
	file "/proc/$pid/stat"
	for task in /proc/"$pid"/task/*; do
		only "$task/cgroup" '^[0-9]+:([a-z,]*cpu[a-z,]*)?:'
		only "$task/status" '^(Name|State|Cpus_allowed_list)'
	done
done
