package testenv

import (
	"net"
	"sync"
	"sync/atomic"
)

// link is one connection through a Proxy.
type link struct {
	proxy   *Proxy
	ends    [2]net.Conn // indexed by the direction that leads there
	swallow [2]atomic.Bool
	closing sync.Once
	gone    chan struct{} // closed by close
	ended   atomic.Int32  // directions whose sender has ended in a black hole
}

const linkBuffer = 32 << 10

// copy moves bytes in one direction until the link ends.
func (l *link) copy(d Direction) {
	from, to := l.ends[1-d], l.ends[d]
	buffer := make([]byte, linkBuffer)
	for {
		count, err := from.Read(buffer)
		l.proxy.bytes[d].Add(int64(count))
		if count > 0 && !l.forward(d, to, buffer[:count]) {
			break
		}
		if err != nil {
			break
		}
	}
	l.end(d)
}

// forward writes data, with the pauses and actions that the proxy asks for. It returns
// false when the link has ended.
func (l *link) forward(d Direction, to net.Conn, data []byte) bool {
	for len(data) > 0 {
		select {
		case <-l.proxy.whenResumed():
		case <-l.gone:
			return false
		}
		pass, do := l.proxy.take(d, len(data))
		if pass > 0 && !l.swallow[d].Load() {
			if _, err := to.Write(data[:pass]); err != nil {
				return false
			}
		}
		data = data[pass:]
		if do != nil {
			do()
		}
	}
	return true
}

// end handles that the sender of a direction has closed. In a black hole the other side
// learns nothing of it.
func (l *link) end(d Direction) {
	if l.swallow[d].Load() && l.ended.Add(1) < int32(len(l.ends)) {
		_ = l.ends[1-d].Close() // this side is finished with
		return
	}
	l.close()
	l.proxy.remove(l)
}

// close ends both sides. Any goroutine may call it, again too.
func (l *link) close() {
	l.closing.Do(func() {
		close(l.gone)
		for _, conn := range l.ends {
			_ = conn.Close() // what was in flight is lost, as meant
		}
	})
}
