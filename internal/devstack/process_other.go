//go:build !linux

package devstack

import "syscall"

// Only Linux can send a signal to a child when its parent dies.
func signalWhenOrphaned(*syscall.SysProcAttr, syscall.Signal) {}

func childrenOf(int) []int { return nil }

func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
