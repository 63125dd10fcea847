package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

const (
	throwAwayPrefix = "outbox-cdc-"
	throwAwayLock   = "lock"
	// A folder younger than this may belong to a process that has yet to lock it.
	throwAwayYoung = time.Minute
)

// throwAwayKinds are all words that stand behind the prefix.
var throwAwayKinds = []string{"pg-", "nats-", "run-"}

// throwAway is a folder that is removed when it is closed. A process that dies before
// leaves it to the next one, which finds its lock free.
type throwAway struct {
	dir  string
	lock *os.File
}

// makeThrowAway makes a folder that the account can reach, with a short path, since
// sockets may lie in it, and removes those that dead processes left behind.
func makeThrowAway(kind string, a *account) (*throwAway, error) {
	parent := os.TempDir()
	if len(parent) > socketPathMax/2 || a.checkReach(parent) != nil {
		parent = "/tmp" // a temporary folder of root's own is of no use to postgres
	}
	sweep(parent)
	dir, err := os.MkdirTemp(parent, throwAwayPrefix+kind)
	if err != nil {
		return nil, fmt.Errorf("make throw-away folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, throwAwayLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock throw-away folder: %w", err), os.RemoveAll(dir))
	}
	return &throwAway{dir: dir, lock: lock}, nil
}

// remove removes the folder. It may be called again, and of nil.
func (t *throwAway) remove() error {
	if t == nil || t.lock == nil {
		return nil
	}
	err := os.RemoveAll(t.dir)
	err = errors.Join(err, t.lock.Close())
	t.lock = nil
	return err
}

// sweep removes the throw-away folders of dead processes, as far as it may. It cannot
// fail: what it leaves is for the next one.
func sweep(parent string) {
	for _, kind := range throwAwayKinds {
		locks, err := filepath.Glob(filepath.Join(parent, throwAwayPrefix+kind+"*", throwAwayLock))
		if err != nil {
			continue // the parent's name is no pattern
		}
		for _, lock := range locks {
			sweepOne(lock)
		}
	}
}

func sweepOne(lock string) {
	file, err := os.OpenFile(lock, os.O_RDWR, 0)
	if err != nil {
		return // another user's, or gone meanwhile
	}
	defer file.Close() //nolint:errcheck // nothing was written
	info, err := file.Stat()
	if err != nil || time.Since(info.ModTime()) < throwAwayYoung {
		return
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return // in use
	}
	_ = os.RemoveAll(filepath.Dir(lock))
}
