package testenv

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// shared is what the tests of one package use together; Main closes it.
var shared struct {
	sync.Mutex
	hasMain  bool
	cluster  *Cluster
	binary   string
	closings []func() error
}

// Main runs the tests of a package and then closes what they shared: the server of
// Postgres and the folder of Binary. It also fails when goroutines are left over. Use it as
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
func Main(m *testing.M, leaks ...goleak.Option) int {
	shared.Lock()
	shared.hasMain = true
	shared.Unlock()

	code := m.Run()

	shared.Lock()
	defer shared.Unlock()
	var err error
	for _, closing := range shared.closings {
		err = errors.Join(err, closing())
	}
	shared.closings = nil
	if code == 0 {
		err = errors.Join(err, goleak.Find(leaks...))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return code
}

// needMain fails a test whose package would not close what is shared; shared is locked.
func needMain(tb testing.TB) {
	tb.Helper()
	if !shared.hasMain {
		tb.Fatal("this package needs: func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }")
	}
}
