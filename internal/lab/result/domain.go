package result

// The measures of a part as a domain: Linux's nearest to the eight that Mei et
// al. took of Xen's domains ("Performance Measurements and Analysis of Network
// I/O Applications in Virtualized Cloud", section III). They are in a part's
// Events, over the steady window; times are in seconds. Package observe reads them,
// package analyse makes rates and shares of them.
//
// A part's threads are a guest's virtual CPUs, or all of a container's. Those
// that begin or end within the window are counted as far as they were there at
// both of its ends.
const (
	DomainUser   = "domain.user_s"
	DomainSystem = "domain.system_s"
	DomainGuest  = "domain.guest_s" // of that, in the guest itself (KVM); ticks

	DomainThreads    = "domain.threads"
	DomainRunning    = "domain.running_s" // of the threads
	DomainWaiting    = "domain.waiting_s" // ready, without a CPU
	DomainExecutions = "domain.executions"

	// DomainInjected are interrupts that KVM gave a guest and DomainKicks its
	// exits for devices: what event channels are to Xen's.
	DomainInjected = "domain.injected"
	DomainKicks    = "domain.kicks"
	// DomainWakeups are how often a thread slept and was woken: the proxy of
	// events where there is no KVM.
	DomainWakeups = "domain.wakeups"

	// Bytes of its network interface, where the lab has put it on a network.
	DomainSent     = "domain.sent_bytes"
	DomainReceived = "domain.received_bytes"
)

// Values of a part that asks web servers (Part.Values), of its counted time;
// times are in seconds from when each request was to begin.
const (
	HTTPOffered = "http.offered" // requests/s; 0: as many as it got
	HTTPRate    = "http.rate"    // good answers/s
	HTTPBytes   = "http.bytes"   // of bodies, /s
	HTTPLatency = "http.latency" // mean
	HTTPP95     = "http.latency_p95"
	HTTPP99     = "http.latency_p99"
)
