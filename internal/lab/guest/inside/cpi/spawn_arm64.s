#include "textflag.h"

// Numbers of system calls (asm-generic/unistd.h) and of the signal that a
// parent gets.
#define SYS_exit  93
#define SYS_clone 220
#define SIGCHLD   17

// func spawn(turns uint64) (pid int)
TEXT ·spawn(SB),NOSPLIT,$0-16
	MOVD $SIGCHLD, R0
	MOVD ZR, R1
	MOVD ZR, R2
	MOVD ZR, R3
	MOVD ZR, R4
	MOVD $SYS_clone, R8
	SVC
	CBZ  R0, child
	MOVD R0, pid+8(FP)
	RET

child:
	MOVD turns+0(FP), R0

loop:
	SUB  $1, R0, R0
	CBNZ R0, loop
	MOVD ZR, R0
	MOVD $SYS_exit, R8
	SVC
	UNDEF
