package result

// The measures of a part as a domain: Linux's nearest equivalents of the eight that Mei
// et al. took of Xen's domains ("Performance Measurements and Analysis of Network I/O
// Applications in Virtualized Cloud", section III). They are in a part's Events, over the
// steady window. Times are in seconds. Package observe reads them, package analyse
// computes rates and shares.
//
// A part's threads are a guest's virtual CPUs, or all of a container's. Only threads that
// exist at both ends of the window are counted.
const (
	DomainUser   = "domain.user_s"
	DomainSystem = "domain.system_s"
	DomainGuest  = "domain.guest_s" // part of it in the guest itself (KVM); ticks

	DomainThreads    = "domain.threads"
	DomainRunning    = "domain.running_s" // of the threads
	DomainWaiting    = "domain.waiting_s" // ready, without a CPU
	DomainExecutions = "domain.executions"

	// DomainInjected are the interrupts that KVM injected into a guest and DomainKicks
	// the guest's exits for devices: the equivalent of event channels in Xen.
	DomainInjected = "domain.injected"
	DomainKicks    = "domain.kicks"
	// DomainWakeups is how often a thread slept and was woken: the proxy for events where
	// there is no KVM.
	DomainWakeups = "domain.wakeups"

	// Bytes of the part's network interface, where the lab has connected it to a network.
	DomainSent     = "domain.sent_bytes"
	DomainReceived = "domain.received_bytes"
	DomainPackets  = "domain.packets" // in both directions

	// DomainGrants is how many of the domain's pages others mapped, by Xen's own records.
	DomainGrants = "domain.grants"
	// DomainEntries is how often the domain entered the hypervisor, by Xen's own records.
	DomainEntries = "domain.entries"

	// DomainSpan is the time that Xen's records span, in which the others were counted; a slow
	// machine begins and ends them some time after the steady window.
	DomainSpan = "domain.span_s"

	// Of Xen's first domain, whose drivers serve the part's: of all its virtual CPUs.
	DriverThreads = "driver.threads"
	DriverRunning = "driver.running_s"
	DriverWaiting = "driver.waiting_s"
)
