package cpi

// perTurn is how many instructions a turn of spin's loop takes.
const perTurn = 2

// spin executes perTurn × n instructions, and three more.
//
//go:noescape
func spin(n uint64)
