# link.sh NEAR FAR ADDRESS tbf|htb connects two network namespaces by a link that sends 20 Mbit/s out of the near one,
# which has the tasks: by a token bucket with a queue of 200 kB, or by a class of HTB with one of 100 packets, as
# Kubernetes' and libvirt's limits are. ADDRESS is that of the far end.
set -ex
near=$1 far=$2 address=$3
ip netns add $near
ip netns add $far
ip -n $near link add q0 type veth peer name q1 netns $far
ip -n $near addr add 10.99.0.1/24 dev q0
ip -n $far addr add $address/24 dev q1
ip -n $near link set lo up
ip -n $far link set lo up
ip -n $near link set q0 up
ip -n $far link set q1 up
case $4 in
tbf)
	tc -n $near qdisc add dev q0 root handle 1: tbf rate 20mbit burst 4kb limit 200kb
	;;
htb)
	tc -n $near qdisc add dev q0 root handle 1: htb default 10
	tc -n $near class add dev q0 parent 1: classid 1:10 htb rate 20mbit burst 4kb
	tc -n $near qdisc add dev q0 parent 1:10 pfifo limit 100
	;;
esac
