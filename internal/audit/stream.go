package audit

import (
	"context"
	"strings"

	"github.com/outbox-cdc/outbox-cdc/decode"
	"github.com/outbox-cdc/outbox-cdc/sink"
)

// readStream takes what the stream holds now.
func (v *verification) readStream(ctx context.Context) error {
	var err error
	if v.scannedSeq, err = v.servers.NATS.Newest(ctx, v.cfg.Stream); err != nil {
		return err //nolint:wrapcheck // it names the stream
	}
	v.base = v.stream.FirstSequence
	return v.scanStream(ctx)
}

// scanStream takes the messages up to scannedSeq that are there still.
func (v *verification) scanStream(ctx context.Context) error {
	v.highest = map[string]newest{}
	var done uint64
	err := v.servers.NATS.Scan(ctx, v.cfg.Stream, v.scannedSeq, func(m *sink.Scanned) error {
		done++
		v.progress("messages read", done, v.stream.Messages)
		return v.addMessage(m)
	})
	if err != nil {
		return err //nolint:wrapcheck // it names the stream
	}
	// It may have lost its beginning meanwhile.
	if v.stream, err = v.servers.NATS.StreamStatus(ctx, v.cfg.Stream); err != nil {
		return err //nolint:wrapcheck // it names the stream
	}
	v.first.from, v.republished.from = v.stream.FirstSequence, v.stream.FirstSequence
	oldest, err := v.servers.NATS.MessageFrom(ctx, v.cfg.Stream, max(1, v.stream.FirstSequence))
	if oldest != nil {
		v.oldestAt = oldest.StoredAt.UnixMicro()
	}
	return err //nolint:wrapcheck // it names the stream
}

// addMessage takes a message, if it is of this outbox.
func (v *verification) addMessage(m *sink.Scanned) error {
	_, name, _ := strings.Cut(m.Source, "/")
	if name != v.cfg.Source {
		return nil
	}
	r := record{key: v.keys.ofHeader(m.EventID), a: m.Sequence}
	if m.Republished || m.Position == "" {
		r.a |= republishedBit
		return v.messages.add(r)
	}
	position, err := decode.ParsePosition(m.Position)
	if err != nil {
		// No forwarder sent it: it has no place in the order.
		r.a |= republishedBit
		return v.messages.add(r)
	}
	if m.Source == v.pg.Server.SystemIdentifier+"/"+name && position.Timeline == v.timeline && position.CommitLSN >= v.snapshotLSN {
		r.a |= newBit
	}
	if v.withoutRow.has(v.fromBase(m.Sequence)) {
		return v.messages.add(r)
	}
	switch top, known := v.highest[m.Source]; {
	case known && position.Compare(top.position) < 0:
		r.a |= invertedBit
		r.b = top.sequence
	default:
		v.highest[m.Source] = newest{position, m.Sequence}
	}
	return v.messages.add(r)
}
