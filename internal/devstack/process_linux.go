package devstack

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
)

func signalWhenOrphaned(attr *syscall.SysProcAttr, sig syscall.Signal) {
	attr.Pdeathsig = sig
}

// childrenOf returns the ids of the direct children of a process, as far as /proc tells.
func childrenOf(pid int) []int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var pids []int
	for field := range bytes.FieldsSeq(raw) {
		if child, err := strconv.Atoi(string(field)); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// alive says whether a process runs. One that ended and was not yet waited for does not:
// it holds neither memory nor ports.
func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// pid (name) state: the name may hold spaces and parentheses
	_, rest, found := bytes.Cut(raw[bytes.LastIndexByte(raw, ')')+1:], []byte(" "))
	return found && len(rest) > 0 && rest[0] != 'Z' && rest[0] != 'X'
}
