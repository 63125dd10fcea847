package sink

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/internal/testenv"
)

// sized returns a message whose body has about that many bytes.
func sized(t *testing.T, e *Encoder, number, size int) *Message {
	t.Helper()
	var v decode.Values
	v.Fields[decode.FieldEventID], v.Kinds[decode.FieldEventID] = fmt.Appendf(nil, "%08d-0000-4000-8000-000000000000", number), decode.KindUUID
	v.Fields[decode.FieldAggregateType], v.Fields[decode.FieldEventType] = []byte("order"), []byte("placed")
	v.Fields[decode.FieldPayload] = bytes.Repeat([]byte{'x'}, size)
	return encode(t, e, decode.NewEvent(decode.Position{Timeline: 1, CommitLSN: 100, Ordinal: uint64(number)}, time.Now(), decode.TableName{}, v))
}

func TestTheClientLibraryAndThePublisherWriteToOneConnectionInTurns(t *testing.T) {
	const count = 20000
	natsURL := testenv.NATS(t).URL()
	c, err := Dial(t.Context(), ClientConfig{URL: natsURL}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	f := frames{}
	f.use(c.plainConn())
	if f.conn == nil {
		t.Fatal("a plain connection is not taken for one")
	}
	listener := testenv.ConnectNATS(t, natsURL)
	heard := map[string]*nats.Subscription{}
	for _, subject := range []string{"outbox.>", "theirs"} {
		sub, err := listener.SubscribeSync(subject)
		if err != nil {
			t.Fatal(err)
		}
		if err := sub.SetPendingLimits(-1, -1); err != nil {
			t.Fatal(err)
		}
		heard[subject] = sub
	}
	if err := listener.Flush(); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for n := range count {
			if err := c.nc.Publish("theirs", make([]byte, n%3000)); err != nil {
				t.Error(err)
				return
			}
		}
		if err := c.nc.Flush(); err != nil {
			t.Error(err)
		}
	})
	e := encoder(t, nil)
	for n := range count {
		err := f.publish(sized(t, e, n, n%3000), []byte("reply.x"), "S", uint64(n), n%2 == 0)
		if err == nil && n%7 == 0 {
			err = f.flush()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.flush(); err != nil {
		t.Fatal(err)
	}
	group.Wait()
	for subject, sub := range heard {
		for n := range count {
			if _, err := sub.NextMsg(testenv.Deadline); err != nil {
				t.Fatalf("message %d of %s: %v", n, subject, err)
			}
		}
	}
	if n := c.nc.Stats().Reconnects; n != 0 {
		t.Errorf("the connection broke %d times", n)
	}
}

func TestMessagesAreStoredTheSameWithAndWithoutTLS(t *testing.T) {
	const count = 1000
	certFile, keyFile := certificate(t)
	stored := func(c ClientConfig, opts ...nats.Option) []*jetstream.RawStreamMsg {
		nc, err := nats.Connect(c.URL, opts...)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		ctx := testenv.Context(t, testenv.Deadline)
		stream, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"outbox.>"}, AllowBatchPublish: true})
		if err != nil {
			t.Fatal(err)
		}
		p := NewPublisher(PublisherConfig{Client: c, Stream: "S", Subject: "outbox.>", InFlightMax: 256, AckTimeout: testenv.Deadline, Log: slog.New(slog.DiscardHandler)})
		defer p.Close()
		p.Begin(Origin{SystemID: "1", Name: "outbox", Timeline: 1, WALEndLSN: math.MaxInt64})
		e := encoder(t, nil)
		for added, settled := 0, 0; settled < count; settled += len(p.Settled()) {
			now := time.Now()
			for ; added < count && p.Room(now); added++ {
				if taken, err := p.Add(ctx, sized(t, e, added, added%100), now); err != nil || !taken {
					t.Fatal(taken, err)
				}
			}
			if err := p.Step(ctx, now, false); err != nil {
				t.Fatal(err)
			}
			if ctx.Err() != nil {
				t.Fatalf("%d of %d settled, condition: %v", settled, count, p.Condition())
			}
		}
		plain := p.broker.(*natsBroker).frames.conn != nil
		if want := c.CAFile == ""; plain != want {
			t.Errorf("the publisher writes to the connection itself: %v, want %v", plain, want)
		}
		var out []*jetstream.RawStreamMsg
		for n := range uint64(count) {
			msg, err := stream.GetMsg(ctx, n+1)
			if err != nil {
				t.Fatal(err)
			}
			msg.Time = time.Time{}
			out = append(out, msg)
		}
		return out
	}
	plain := stored(ClientConfig{URL: testenv.NATS(t).URL()})
	secure := testenv.NATS(t, fmt.Sprintf("tls { cert_file: %q, key_file: %q }", certFile, keyFile))
	encrypted := stored(ClientConfig{URL: secure.URL(), CAFile: certFile}, nats.RootCAs(certFile))
	for i := range plain {
		if !reflect.DeepEqual(plain[i], encrypted[i]) {
			t.Fatalf("message %d: %+v without TLS, %+v with it", i, plain[i], encrypted[i])
		}
	}
}

// certificate makes a self-signed certificate for 127.0.0.1.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}
