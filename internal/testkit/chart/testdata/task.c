// The program of every container but quell's: it uses a little CPU time.
#include <signal.h>
#include <unistd.h>
static void end(int s) { _exit(0); }
int main(void) {
	signal(SIGTERM, end); signal(SIGINT, end);
	for (;;) { for (volatile long i = 0; i < 2000000; i++); usleep(50000); }
}
